"""Which kernel computes block-sparse attention here, and why the others do not.

Constraints are data. A kernel that meets them must also agree with the reference on a small example, once per process,
device, dtype and shape class, before it is trusted.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import reference
from .block_lists import BlockLists

log = logging.getLogger("carnator")

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, BlockLists], torch.Tensor]
HALF_TYPES = (torch.bfloat16, torch.float16)
TOLERANCE = 1e-2  # relative error in half precision; a right kernel stays below 3e-3


@dataclass(frozen=True)
class Kernel:
    """One implementation and what it needs.

    Args:
        module: its module in this package, imported when it is first considered.
        capability: lowest compute capability, or None for any device.
        only_major: the one major capability it is written for.
    """

    module: str
    capability: tuple[int, int] | None = None
    only_major: int | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    blocks: tuple[int, ...] | None = None


# In order of preference.
KERNELS = (
    Kernel("gluon_block_sparse", (9, 0), 9, HALF_TYPES, (64, 128), (128,)),
    Kernel("triton_block_sparse", (8, 0), None, HALF_TYPES, (64, 128), (64, 128)),
    Kernel("reference"),
)


@dataclass(frozen=True)
class Case:
    """What decides between kernels."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    block: int


@dataclass(frozen=True)
class Choice:
    """The kernel to use and, for each one passed over, its name with the reason."""

    name: str
    attend: Attend
    passed_over: tuple[tuple[str, str], ...]


def unmet(kernel: Kernel, case: Case) -> str | None:
    """Which constraint a case does not meet, as a sentence; None if all are met."""
    if kernel.capability is not None:
        if case.device.type != "cuda" or torch.version.hip:
            return f"needs an NVIDIA GPU, this is {case.device.type}"
        capability = torch.cuda.get_device_capability(case.device)
        if capability < kernel.capability or kernel.only_major not in (None, capability[0]):
            return f"not for compute capability {capability[0]}.{capability[1]}"
    for what, allowed in (("dtype", kernel.dtypes), ("head_dim", kernel.head_dims), ("block", kernel.blocks)):
        if allowed is not None and getattr(case, what) not in allowed:
            return f"{what.replace('_', ' ')} {getattr(case, what)} is not among {', '.join(map(str, allowed))}"
    return None


@functools.cache
def choose(case: Case) -> Choice:
    """The first kernel that is available, meets its constraints and agrees with the reference."""
    passed_over = []
    for kernel in KERNELS:
        why = unmet(kernel, case)
        if why is None:
            try:
                attend = importlib.import_module(f".{kernel.module}", __package__).attend
                why = None if attend is reference.attend else _disagreement(attend, case)
            except Exception as error:  # a compiler of any version may fail in any way: the next kernel takes over
                why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if why is None:
            return Choice(kernel.module, attend, tuple(passed_over))
        log.info("Carnator: attention kernel %s is not used: %s", kernel.module, why)
        passed_over.append((kernel.module, why))
    raise AssertionError("the reference meets every case")


def _disagreement(attend: Attend, case: Case) -> str | None:
    """Compare with the reference on ragged lengths, strided inputs, an empty and a full row."""
    heads, queries, keys = 2, 3 * case.block + 5, 5 * case.block - 12
    random = torch.Generator().manual_seed(1)
    width = heads * case.head_dim
    q = torch.randn(2, queries, width, generator=random).to(case.device, case.dtype)
    fused = torch.randn(2, keys, 2 * width, generator=random).to(case.device, case.dtype)
    k, v = fused[..., :width], fused[..., width:]
    mask = torch.rand(heads, 4, 5, generator=random) < 0.5
    mask[0, 0], mask[1, 1], mask[:, 2] = True, False, torch.tensor([False, True, False, False, True])
    lists = BlockLists.of(mask.to(case.device), case.block)
    expected = reference.attend(q.float(), k.float(), v.float(), lists)
    error = float((attend(q, k, v, lists).float() - expected).norm() / expected.norm())
    return None if error <= TOLERANCE else f"its self-check is off by {error:.1e}"


@torch.library.custom_op("carnator::block_sparse_attention", mutates_args=())
def _operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    indices: torch.Tensor, counts: torch.Tensor, order: torch.Tensor,
    heads: int, query_blocks: int, key_blocks: int, block: int,
) -> torch.Tensor:  # fmt: skip
    lists = BlockLists(indices, counts, order, heads, query_blocks, key_blocks, block)
    return choose(Case(q.device, q.dtype, q.shape[2] // heads, block)).attend(q, k, v, lists)


@_operator.register_fake
def _(q, k, v, indices, counts, order, heads, query_blocks, key_blocks, block):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


def block_sparse_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """Attention of q [B, Lq, H·D] over the kept blocks of k, v [B, Lk, H·D]; a torch operator, usable under compile."""
    return _operator(
        q, k, v, lists.indices, lists.counts, lists.order,
        lists.heads, lists.query_blocks, lists.key_blocks, lists.block,
    )  # fmt: skip
