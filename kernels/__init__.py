"""Block-sparse attention: a reference in plain torch, kernels for GPUs, and the choice between them."""
