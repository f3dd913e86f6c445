"""The shipped workflows for official models, made from short descriptions."""
