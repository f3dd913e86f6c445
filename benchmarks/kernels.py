"""Speed of block-sparse attention beside its peers, at the sizes of real Wan models. Each number follows its check."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.block_lists import BlockLists
from kernels.dispatch import KERNELS, Case, choose, unmet
from kernels.reference import split_heads
from scripts.testbed.console import Stop, say

BLOCK, HEAD_DIM = 128, 128
DENSITIES = (0.1, 0.2, 0.3, 0.5, 1.0)
REGION_SHARES = (0.15, 0.3)
# ‖out − float64‖ / ‖float64‖ may be this many times that of the vendor's dense attention.
ERROR_FACTOR = 1.5
CHECKED_ROWS = 12
BESIDE = ("flex_block_sparse", "reference")  # the first is measured as a peer, the second is what all are checked by


@dataclass(frozen=True)
class Size:
    """Self-attention of one model at one video size."""

    name: str
    heads: int
    tokens: int


SIZES = (Size("Wan2.2-5B, 704×1280×121", 24, 27_280), Size("Wan2.1-14B, 480×832×81", 40, 32_760))

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, BlockLists], torch.Tensor]


def cudnn_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """Every block, by cuDNN."""
    return _dense("CUDNN_ATTENTION", q, k, v, lists)


def flash_dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """Every block, by torch's FlashAttention."""
    return _dense("FLASH_ATTENTION", q, k, v, lists)


def _dense(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        out = F.scaled_dot_product_attention(*(split_heads(x, lists.heads) for x in (q, k, v)))
    return out.transpose(1, 2).flatten(2)


class Flex:
    """flex_attention, compiled, with the same lists. The block mask is made once, as a caller would."""

    def __init__(self, lists: BlockLists, queries: int, keys: int):
        from kernels import flex_block_sparse

        self._mask = flex_block_sparse.block_mask(lists, queries, keys)
        self._attend = flex_block_sparse.compiled()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
        out = self._attend(*(split_heads(x, lists.heads) for x in (q, k, v)), block_mask=self._mask)
        return out.transpose(1, 2).flatten(2)


def measure() -> dict[str, Any]:
    """All sizes and densities. Raises Stop if a kernel does not compute what it should."""
    if not torch.cuda.is_available():
        raise Stop("bench.py kernels needs a CUDA device.")
    device = torch.device("cuda")
    case = Case(device, torch.bfloat16, HEAD_DIM, BLOCK)
    usable = [k.module for k in KERNELS if k.module not in BESIDE and unmet(k, case) is None]
    chosen = choose(case)
    say(f"chosen here: {chosen.name}; passed over: {dict(chosen.passed_over)}")
    rows = []
    for size in SIZES:
        rows += _size(size, usable, device)
    return {"chosen": chosen.name, "passed_over": dict(chosen.passed_over), "rows": rows}


def _size(size: Size, usable: list[str], device: torch.device) -> list[dict[str, Any]]:
    random = torch.Generator(device).manual_seed(1)
    width = size.heads * HEAD_DIM

    def projection() -> torch.Tensor:
        return torch.randn(1, size.tokens, width, generator=random, device=device, dtype=torch.bfloat16)

    q, k, v = projection(), projection(), projection()
    blocks = math.ceil(size.tokens / BLOCK)
    full = BlockLists.of(torch.ones(size.heads, blocks, blocks, dtype=torch.bool, device=device), BLOCK)
    allowed = ERROR_FACTOR * _error(cudnn_dense(q, k, v, full), q, k, v, full)
    rows = [_row(size, "cuDNN dense", cudnn_dense, q, k, v, full, 1.0, allowed),
            _row(size, "flash dense", flash_dense, q, k, v, full, 1.0, allowed)]  # fmt: skip
    for share in (1.0, *REGION_SHARES):
        queries = math.ceil(share * size.tokens)
        query = q[:, :queries].contiguous()
        query_blocks = math.ceil(queries / BLOCK)
        for density in DENSITIES:
            mask = torch.rand(size.heads, query_blocks, blocks, generator=random, device=device) < density
            mask |= torch.eye(blocks, dtype=torch.bool, device=device)[:query_blocks]
            lists = BlockLists.of(mask, BLOCK)
            for name in usable:
                rows.append(_row(size, name, _load(name), query, k, v, lists, share, allowed))
            if share == 1.0 or density == 0.2:
                rows.append(_row(size, "flex_attention", Flex(lists, queries, size.tokens), query, k, v, lists, share,
                                 allowed))  # fmt: skip
    rows.append(_mass(size, q, k))
    return rows


def _load(name: str) -> Attention:
    return importlib.import_module(f"kernels.{name}").attend


def _row(size: Size, name: str, attend: Attention, q, k, v, lists: BlockLists, share: float, allowed: float) -> dict:
    """Check, then time. What is counted are the kept blocks only; copies that a kernel needs are in its time."""
    out = attend(q, k, v, lists)
    error = _error(out, q, k, v, lists)
    if not error <= allowed or not bool(torch.isfinite(out).all()):
        raise Stop(f"{name} is off by {error:.1e} (allowed {allowed:.1e}) at {size.name}, density {lists.density:.2f}")
    milliseconds = _time(lambda: attend(q, k, v, lists))
    rate = 4 * lists.block**2 * HEAD_DIM * float(lists.counts.sum()) / milliseconds / 1e9
    what = f"{size.name} {name:20} rows {share:4.0%} density {lists.density:.2f}"
    say(f"{what}: {milliseconds:7.3f} ms {rate:4.0f} TFLOP/s")
    return {"size": size.name, "heads": size.heads, "tokens": size.tokens, "kernel": name, "rows": share,
            "density": round(lists.density, 3), "ms": round(milliseconds, 4), "tflops": round(rate, 1),
            "error": float(f"{error:.3g}")}  # fmt: skip


def _mass(size: Size, q: torch.Tensor, k: torch.Tensor) -> dict[str, Any]:
    """Capture of exact block mass, against the share of softmax computed in float64 for a few rows."""
    from kernels.triton_block_mass import block_mass

    mass = block_mass(q[0], k[0], size.heads, BLOCK)
    worst = 0.0
    for head, block in _sample(size.heads, mass.shape[1]):
        weights = _weights(q, k, head, block, size.heads)
        padded = F.pad(weights, (0, mass.shape[2] * BLOCK - weights.shape[1]))
        expected = padded.unflatten(-1, (-1, BLOCK)).sum(-1).mean(0)
        worst = max(worst, float((mass[head, block].double() - expected).abs().max() / expected.max()))
    if not worst <= 1e-2:
        raise Stop(f"block mass is off by {worst:.1e} at {size.name}")
    milliseconds = _time(lambda: block_mass(q[0], k[0], size.heads, BLOCK))
    say(f"{size.name} block mass: {milliseconds:.3f} ms, error {worst:.1e}")
    return {"size": size.name, "heads": size.heads, "tokens": size.tokens, "kernel": "block mass",
            "ms": round(milliseconds, 4), "error": float(f"{worst:.3g}")}  # fmt: skip


def _weights(q: torch.Tensor, k: torch.Tensor, head: int, block: int, heads: int) -> torch.Tensor:
    """softmax in float64 of one query block over all keys, [rows, keys]."""
    query, key = split_heads(q, heads)[0, head], split_heads(k, heads)[0, head]
    rows = query[block * BLOCK : (block + 1) * BLOCK].double()
    return torch.softmax(rows @ key.double().T / math.sqrt(HEAD_DIM), -1)


def _error(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> float:
    """‖out − reference‖ / ‖reference‖ against float64 over a sample of rows, the ragged last block among them."""
    mask, wrong, whole = lists.mask(), 0.0, 0.0
    value = split_heads(v, lists.heads)[0]
    given = split_heads(out, lists.heads)[0]
    for head, block in _sample(lists.heads, lists.query_blocks):
        kept = mask[head, block].repeat_interleave(BLOCK)[: k.shape[1]]
        weights = _weights(q, k, head, block, lists.heads) * kept
        expected = weights / weights.sum(-1, keepdim=True) @ value[head].double()
        found = given[head, block * BLOCK : (block + 1) * BLOCK].double()
        wrong += float((found - expected).square().sum())
        whole += float(expected.square().sum())
    return math.sqrt(wrong / whole)


def _sample(heads: int, blocks: int) -> list[tuple[int, int]]:
    last = heads * blocks - 1
    rows = {round(i * last / (CHECKED_ROWS - 1)) for i in range(CHECKED_ROWS)}
    return [divmod(row, blocks) for row in sorted(rows)]


def _time(call: Callable[[], object]) -> float:
    """Median milliseconds."""
    from triton.testing import do_bench

    return float(do_bench(call, warmup=20, rep=80, return_mode="median"))
