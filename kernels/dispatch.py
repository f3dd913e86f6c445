"""Which kernel computes block-sparse attention or block mass here, why the others do not, and whether it pays.

Constraints are data. A kernel that meets them must also agree with the reference on a small example, once per process,
device, dtype and shape class, before it is trusted. The host's own sparse attention (comfy-kitchen's sol_attn and
draft_attention; ComfyUI 0.3.75 has none) chooses its blocks itself, takes no block mask and wants as many queries as
keys, so it is not among them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from . import reference
from .block_lists import BlockLists

log = logging.getLogger("carnator")

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
    Kernel("flex_block_sparse", (7, 5), None, (*HALF_TYPES, torch.float32), (64, 128), (64, 128)),
    Kernel("reference"),
)
MASS_KERNELS = (
    Kernel("triton_block_mass", (8, 0), None, HALF_TYPES, (64, 128), (64, 128)),
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
    function: Callable[..., torch.Tensor]
    passed_over: tuple[tuple[str, str], ...]


def unmet(kernel: Kernel, case: Case) -> str | None:
    """Which constraint a case does not meet, as a sentence; None if all are met."""
    if kernel.capability is not None:
        if case.device.type != "cuda" or torch.version.hip:
            return f"needs an NVIDIA GPU, this is {'ROCm' if torch.version.hip else case.device.type}"
        capability = torch.cuda.get_device_capability(case.device)
        if capability < kernel.capability or kernel.only_major not in (None, capability[0]):
            return f"not for compute capability {capability[0]}.{capability[1]}"
    for what, allowed in (("dtype", kernel.dtypes), ("head_dim", kernel.head_dims), ("block", kernel.blocks)):
        if allowed is not None and getattr(case, what) not in allowed:
            return f"{what.replace('_', ' ')} {getattr(case, what)} is not among {', '.join(map(str, allowed))}"
    return None


@functools.cache
def choose(case: Case) -> Choice:
    """The first attention kernel that is available, meets its constraints and agrees with the reference.

    Raises torch.OutOfMemoryError where that cannot be found out now; the next call tries again.
    """
    return _first(KERNELS, "attend", _disagreement, case)


@functools.cache
def choose_mass(case: Case) -> Choice:
    """As ``choose``, for block mass."""
    return _first(MASS_KERNELS, "block_mass", _mass_disagreement, case)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error may not come again once others use less memory. Triton and cuBLAS have types of their own."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


def _first(kernels: tuple[Kernel, ...], name: str, check: Callable[..., str | None], case: Case) -> Choice:
    passed_over = []
    for kernel in kernels:
        why = unmet(kernel, case)
        if why is None:
            try:
                function = getattr(importlib.import_module(f".{kernel.module}", __package__), name)
                why = None if function is getattr(reference, name) else check(function, case)
            except Exception as error:  # a compiler of any version may fail in any way: the next kernel takes over
                if is_out_of_memory(error):
                    raise torch.OutOfMemoryError(str(error)) from error
                why = _sentence(error)
        if why is None:
            return Choice(kernel.module, function, tuple(passed_over))
        log.info("Carnator: kernel %s is not used: %s", kernel.module, why)
        passed_over.append((kernel.module, why))
    raise AssertionError("the reference meets every case")


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


# -- self-checks on ragged lengths and strided inputs ------------------------------------------------------------------


def _disagreement(attend: Callable[..., torch.Tensor], case: Case) -> str | None:
    """Compare attention with the reference, an empty and a full row among others."""
    q, k, v = _example(case, batch=2)
    random = torch.Generator().manual_seed(2)
    mask = torch.rand(2, 4, 5, generator=random) < 0.5
    mask[0, 0], mask[1, 1], mask[:, 2] = True, False, torch.tensor([False, True, False, False, True])
    lists = BlockLists.of(mask.to(case.device), case.block)
    return _compared(attend(q, k, v, lists), reference.attend(q.float(), k.float(), v.float(), lists))


def _mass_disagreement(block_mass: Callable[..., torch.Tensor], case: Case) -> str | None:
    """Compare block mass with the reference, on scores so far apart that some blocks hold much more than others."""
    q, k, _ = _example(case, batch=1)
    q = 3 * q[0]
    return _compared(block_mass(q, k[0], 2, case.block), reference.block_mass(q, k[0], 2, case.block))


def _example(case: Case, batch: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q of four blocks and k, v of five, both ragged, of two heads; k and v as one projection gives them."""
    random = torch.Generator().manual_seed(1)
    width = 2 * case.head_dim
    q = torch.randn(batch, 3 * case.block + 5, width, generator=random)
    fused = torch.randn(batch, 5 * case.block - min(12, case.block - 1), 2 * width, generator=random)
    fused = fused.to(case.device, case.dtype)
    return q.to(case.device, case.dtype), fused[..., :width], fused[..., width:]


def _compared(found: torch.Tensor, expected: torch.Tensor) -> str | None:
    error = float((found.float() - expected).norm() / expected.norm())
    return None if error <= TOLERANCE else f"its self-check is off by {error:.1e}"


# -- the operators -----------------------------------------------------------------------------------------------------


# A namespace for each import: ComfyUI imports this package as a part of the pack, and there may be two of the pack.
NAMESPACE = "carnator_" + re.sub(r"\W", "_", __package__)


def _operator(
    fake: Callable[..., torch.Tensor],
) -> Callable[[Callable[..., torch.Tensor]], Callable[..., torch.Tensor]]:
    """Register a function as a torch operator, unless an import before this one did: that one's would be freed."""

    def register(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        name = function.__name__
        if hasattr(getattr(torch.ops, NAMESPACE), name):
            return getattr(getattr(torch.ops, NAMESPACE), name)
        made = torch.library.custom_op(f"{NAMESPACE}::{name}", function, mutates_args=())
        made.register_fake(fake)
        return made

    return register


def _like_queries(q, k, v, indices, counts, order, heads, query_blocks, key_blocks, block):
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@_operator(fake=_like_queries)
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    indices: torch.Tensor, counts: torch.Tensor, order: torch.Tensor,
    heads: int, query_blocks: int, key_blocks: int, block: int,
) -> torch.Tensor:  # fmt: skip
    """The operator behind ``block_sparse_attention``: operators take tensors and numbers only."""
    lists = BlockLists(indices, counts, order, heads, query_blocks, key_blocks, block)
    return choose(Case(q.device, q.dtype, q.shape[2] // heads, block)).function(q, k, v, lists)


def block_sparse_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """Attention of q [B, Lq, H·D] over the kept blocks of k, v [B, Lk, H·D]; a torch operator, usable under compile."""
    return attention(
        q, k, v, lists.indices, lists.counts, lists.order,
        lists.heads, lists.query_blocks, lists.key_blocks, lists.block,
    )  # fmt: skip


def _by_blocks(q, k, heads, block):
    blocks = (-(-x.shape[0] // block) for x in (q, k))
    return torch.empty(heads, *blocks, dtype=torch.float32, device=q.device)


@_operator(fake=_by_blocks)
def block_mass(q: torch.Tensor, k: torch.Tensor, heads: int, block: int) -> torch.Tensor:
    """[H, query blocks, key blocks] float32 of q [Lq, H·D] and k [Lk, H·D], see ``reference.block_mass``."""
    return choose_mass(Case(q.device, q.dtype, q.shape[1] // heads, block)).function(q, k, heads, block)


# -- whether it pays ---------------------------------------------------------------------------------------------------

MARGIN = 0.1  # by which sparse attention must be faster than dense: less is lost again around the kernel
REPETITIONS, MOST_SECONDS = 7, 1.0
MOST_WORK = {"cpu": 1e9, "cuda": 4e12}  # floating-point operations of one dense repetition, some 10 ms


@dataclass(frozen=True)
class Worth:
    """Whether sparse attention is faster than torch's dense one, and how many times as fast (0 if it fails)."""

    faster: bool
    ratio: float
    sentence: str


def worthwhile(case: Case, queries: int, keys: int, heads: int, density: float) -> Worth:
    """Measure the chosen kernel against torch's dense attention on random inputs, once per process. Never raises.

    Each query block keeps ``density`` of the key blocks. Queries are cut down to what ``MOST_WORK`` allows. Where
    memory is short at that moment, the next call tries again.
    """
    try:
        return _worth(case, queries, keys, heads, density)
    except torch.OutOfMemoryError as error:
        return Worth(False, 0.0, f"sparse attention is not used this time: {_sentence(error)}")


@functools.cache
def _worth(case: Case, queries: int, keys: int, heads: int, density: float) -> Worth:
    try:
        worth = _measured(case, queries, keys, heads, density)
    except Exception as error:  # whatever a driver or a compiler does: dense attention still works
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        worth = Worth(False, 0.0, f"sparse attention is not used, it fails: {_sentence(error)}")
    log.info("Carnator: %s", worth.sentence)
    return worth


def _measured(case: Case, queries: int, keys: int, heads: int, density: float) -> Worth:
    if case.device.type not in MOST_WORK:
        return Worth(False, 0.0, f"sparse attention is not used: its speed is not measured on {case.device.type}")
    affordable = int(MOST_WORK[case.device.type] / (4 * keys * heads * case.head_dim))
    queries = min(queries, max(case.block, affordable // case.block * case.block))
    random = torch.Generator().manual_seed(1)

    def tokens(count: int) -> torch.Tensor:
        drawn = torch.randn(1, count, case.head_dim, generator=random)  # the same for every head
        return drawn.to(case.device, case.dtype).repeat(1, 1, heads)

    key_blocks = -(-keys // case.block)
    with torch.inference_mode():
        q, k, v = tokens(queries), tokens(keys), tokens(keys)
        liking = torch.rand(heads, -(-queries // case.block), key_blocks, generator=random)
        liking += torch.eye(*liking.shape[1:])  # the block itself
        count = min(key_blocks, max(1, math.ceil(density * key_blocks - 1e-9)))
        mask = torch.zeros_like(liking, dtype=torch.bool).scatter_(-1, liking.topk(count).indices, True)
        lists = BlockLists.of(mask.to(case.device), case.block)
        sparse, dense = _medians(
            lambda: block_sparse_attention(q, k, v, lists), lambda: _dense(q, k, v, heads), case.device
        )
    ratio = dense / sparse
    faster = ratio >= 1 + MARGIN
    return Worth(
        faster,
        ratio,
        f"sparse attention ({choose(case).name}) is {'used' if faster else 'not used'}: {sparse:.3g} ms against "
        f"{dense:.3g} ms for {queries} × {keys} tokens, {heads} heads, density {density:.2f}",
    )


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    out = F.scaled_dot_product_attention(*(reference.split_heads(x, heads) for x in (q, k, v)))
    return out.transpose(1, 2).flatten(2)


def _medians(first: Callable[[], object], second: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Milliseconds of each, called in turn after one warm-up, until the time is up."""
    first()
    second()
    times: list[tuple[float, float]] = []
    started = time.perf_counter()
    while len(times) < REPETITIONS and (not times or time.perf_counter() - started < MOST_SECONDS):
        times.append((_milliseconds(first, device), _milliseconds(second, device)))
    return tuple(map(statistics.median, zip(*times, strict=True)))


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)
