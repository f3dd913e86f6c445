"""Triton kernels run in Triton's interpreter here, and what they leave unwritten is NaN."""

import importlib
import os
from collections.abc import Callable
from types import ModuleType

import pytest
import torch

# Before anything imports Triton: its own library decides by this, too, how its functions are defined.
os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def triton_kernels() -> Callable[[str], ModuleType]:
    """Gives a kernel module by name."""
    pytest.importorskip("triton")
    return lambda name: importlib.import_module(f"kernels.{name}")


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN."""

    def empty(*shape, **kwargs) -> torch.Tensor:
        size = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return torch.full(tuple(size), torch.nan, **kwargs)

    monkeypatch.setattr(torch, "empty", empty)
