"""Property tests use the same examples in every run: a failure is a change of the code, never of the dice."""

from hypothesis import settings

settings.register_profile("carnator", derandomize=True, deadline=None, database=None, max_examples=40)
settings.load_profile("carnator")
