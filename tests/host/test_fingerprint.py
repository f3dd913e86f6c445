"""The fingerprint of a model's own weights: what it sees and what it costs."""

import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture
def fresh(tiny):
    """A model that no other test has loaded."""
    import comfy.model_management

    yield tiny.load()
    comfy.model_management.unload_all_models()


def fingerprint(model) -> str:
    from carnator_core.hosts.comfy_identity import base_weights

    return base_weights(model)


def test_it_sees_another_precision_of_the_same_weights(fresh) -> None:
    before = fingerprint(fresh)
    fresh.model.diffusion_model.half()
    assert fingerprint(fresh) != before


def test_it_sees_a_change_made_in_place_in_a_loaded_model(fresh) -> None:
    """Writes through .data leave no trace that a cache could be told by."""
    import comfy.model_management

    comfy.model_management.load_models_gpu([fresh])
    before = fingerprint(fresh)
    weight = fresh.model.diffusion_model.blocks[2].ffn[2].weight
    weight.data += 0.01
    assert fingerprint(fresh) != before


class Reads(TorchDispatchMode):
    """Counts tensors that values are taken out of, and those values."""

    def __init__(self):
        super().__init__()
        self.tensors = self.values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index.Tensor:
            self.tensors += 1
            self.values += out.numel()
        return out


def test_it_reads_each_tensor_once_and_at_most_256_values_of_it(fresh) -> None:
    diffusion = fresh.model.diffusion_model
    tensors = [*diffusion.parameters(), *diffusion.buffers()]
    with Reads() as reads:
        fingerprint(fresh)
    assert reads.tensors == len(tensors)
    assert reads.values == sum(min(256, tensor.numel()) for tensor in tensors)


def test_it_is_fast(fresh) -> None:
    fingerprint(fresh)
    started = time.perf_counter()
    fingerprint(fresh)
    tensors = len(list(fresh.model.diffusion_model.parameters()))
    assert (time.perf_counter() - started) / tensors < 0.001
