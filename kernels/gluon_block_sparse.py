"""Block-sparse attention forward for Hopper GPUs, in Gluon: specialised warps load, multiply and normalise at once.

One warp feeds tiles of keys and values through a ring in shared memory. Two groups of four warps take half of the query
block each; a group multiplies the next tile of keys while it still computes the softmax of the last one. A program goes
on with the next row of the work list while its last one is being written.
"""

from __future__ import annotations

import math

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .block_lists import BlockLists

# Renamed in Triton 3.8.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _feed(
    q_desc, k_desc, v_desc, indices, counts, order, n_rows, n_query_blocks, capacity,
    q_ring, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The loading warp: queries once per row, then its kept blocks, the last of the list first."""
    HALF: gl.constexpr = BLOCK // 2
    fed = 0
    turn = 0
    for item in range(gl.program_id(0), n_rows, gl.num_programs(0)):
        row = gl.load(order + item)
        column = (row // n_query_blocks) * HEAD_DIM
        first = (row % n_query_blocks) * BLOCK
        # An empty list still goes through one tile, of which the other side uses nothing.
        count = gl.maximum(gl.load(counts + row), 1)
        kept = indices + row.to(gl.int64) * capacity
        mbarrier.wait(q_empty, (turn & 1) ^ 1)
        mbarrier.expect(q_full, 2 * q_desc.block_type.nbytes)
        _load(q_desc, [first, column], q_full, q_ring.index(0))
        _load(q_desc, [first + HALF, column], q_full, q_ring.index(1))
        turn += 1
        for i in range(count):
            key = gl.load(kept + gl.where(i == 0, count, i) - 1) * BLOCK
            slot = fed % STAGES
            free = ((fed // STAGES) & 1) ^ 1
            mbarrier.wait(k_empty.index(slot), free)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            _load(k_desc, [key, column], k_full.index(slot), k_ring.index(slot))
            mbarrier.wait(v_empty.index(slot), free)
            mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
            _load(v_desc, [key, column], v_full.index(slot), v_ring.index(slot))
            fed += 1


@gluon.jit
def _attend(
    o_desc, indices, counts, order, n_rows, n_query_blocks, n_keys, capacity, scale,
    q_ring, o_ring, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    PART: gl.constexpr, BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """One group of four warps: the online softmax of its half of the query block."""
    HALF: gl.constexpr = BLOCK // 2
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    OUTPUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, OUTPUT, 2)
    OUT_ROWS: gl.constexpr = gl.SliceLayout(1, OUTPUT)
    q = q_ring.index(PART)
    nothing = gl.zeros([HALF, BLOCK], gl.float32, SCORES)
    taken = 0
    turn = 0
    for item in range(gl.program_id(0), n_rows, gl.num_programs(0)):
        row = gl.load(order + item)
        column = (row // n_query_blocks) * HEAD_DIM
        first = (row % n_query_blocks) * BLOCK + PART * HALF
        listed = gl.load(counts + row)
        count = gl.maximum(listed, 1)
        key = gl.load(indices + row.to(gl.int64) * capacity + count - 1) * BLOCK

        mbarrier.wait(q_full, turn & 1)
        slot = taken % STAGES
        phase = (taken // STAGES) & 1
        mbarrier.wait(k_full.index(slot), phase)
        scores = warpgroup_mma(q, k_ring.index(slot).permute((1, 0)), nothing, use_acc=False)
        mbarrier.arrive(k_empty.index(slot), count=1)
        # The first tile is the last of its list, the only one that can be ragged.
        inside = key + gl.arange(0, BLOCK, gl.SliceLayout(0, SCORES)) < gl.where(listed > 0, n_keys, 0)
        scores = gl.where(inside[None, :], scores, float("-inf"))
        peak = gl.max(scores, 1) * scale
        peak = gl.where(peak == float("-inf"), 0.0, peak)
        weights = gl.exp2(scores * scale - peak[:, None])
        total = gl.sum(weights, 1)
        accumulator = gl.zeros([HALF, HEAD_DIM], gl.float32, OUTPUT)
        for _ in range(1, count):
            part = gl.convert_layout(weights.to(v_ring.dtype), WEIGHTS)
            ahead = (taken + 1) % STAGES
            mbarrier.wait(k_full.index(ahead), ((taken + 1) // STAGES) & 1)
            running = warpgroup_mma(q, k_ring.index(ahead).permute((1, 0)), nothing, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(slot), phase)
            adding = warpgroup_mma(part, v_ring.index(slot), accumulator, is_async=True)
            scores = warpgroup_mma_wait(1, [running])
            mbarrier.arrive(k_empty.index(ahead), count=1)
            higher = gl.maximum(peak, gl.max(scores, 1) * scale)
            weights = gl.exp2(scores * scale - higher[:, None])
            fade = gl.exp2(peak - higher)
            total = total * fade + gl.sum(weights, 1)
            peak = higher
            accumulator = warpgroup_mma_wait(0, [adding])
            mbarrier.arrive(v_empty.index(slot), count=1)
            accumulator = accumulator * gl.convert_layout(fade, OUT_ROWS)[:, None]
            taken += 1
            slot = ahead
            phase = (taken // STAGES) & 1
        mbarrier.arrive(q_empty, count=1)
        part = gl.convert_layout(weights.to(v_ring.dtype), WEIGHTS)
        mbarrier.wait(v_full.index(slot), phase)
        accumulator = warpgroup_mma(part, v_ring.index(slot), accumulator)
        mbarrier.arrive(v_empty.index(slot), count=1)
        taken += 1
        turn += 1
        # A row without any key gives zeros, not NaN.
        share = 1.0 / gl.where(total > 0, total, 1.0)
        accumulator = accumulator * gl.convert_layout(share, OUT_ROWS)[:, None]
        tma.store_wait(0)
        o_ring.index(PART).store(accumulator.to(o_desc.dtype))
        fence_async_shared()
        _store(o_desc, [first, column], o_ring.index(PART))
    tma.store_wait(0)


# Of numbers that change with the region no kernel of its own is made: that would stop a run for seconds.
@gluon.jit(do_not_specialize=["n_rows", "n_query_blocks", "capacity"])
def _forward(
    q_desc, k_desc, v_desc, o_desc, indices, counts, order, n_rows, n_query_blocks, n_keys, capacity, scale,
    BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """q_desc and o_desc hold half a query block, k_desc and v_desc a whole key block."""
    HALF: gl.constexpr = BLOCK // 2
    q_ring = gl.allocate_shared_memory(q_desc.dtype, [2, HALF, HEAD_DIM], q_desc.layout)
    o_ring = gl.allocate_shared_memory(o_desc.dtype, [2, HALF, HEAD_DIM], o_desc.layout)
    k_ring = gl.allocate_shared_memory(k_desc.dtype, [STAGES, BLOCK, HEAD_DIM], k_desc.layout)
    v_ring = gl.allocate_shared_memory(v_desc.dtype, [STAGES, BLOCK, HEAD_DIM], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, 1)
    mbarrier.init(q_empty, 2)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), 1)
        mbarrier.init(k_empty.index(i), 2)
        mbarrier.init(v_full.index(i), 1)
        mbarrier.init(v_empty.index(i), 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_attend, (o_desc, indices, counts, order, n_rows, n_query_blocks, n_keys, capacity, scale,
                       q_ring, o_ring, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       0, BLOCK, HEAD_DIM, STAGES)),
            (_attend, (o_desc, indices, counts, order, n_rows, n_query_blocks, n_keys, capacity, scale,
                       q_ring, o_ring, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                       1, BLOCK, HEAD_DIM, STAGES)),
            (_feed, (q_desc, k_desc, v_desc, indices, counts, order, n_rows, n_query_blocks, capacity,
                     q_ring, k_ring, v_ring, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                     BLOCK, HEAD_DIM, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


STAGES = 2  # of keys and values; with queries and results they fill the shared memory of a multiprocessor
WARPS = 4  # of one group; the other group and the loading warp come on top
REGISTERS = 168  # per thread at the start, before the groups trade theirs: 12 warps share 65,536


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lists: BlockLists) -> torch.Tensor:
    """As ``reference.attend``, for blocks of 128 and head dim 64 or 128, on a Hopper GPU.

    q, k, v are [B, L, H·D] in bf16 or fp16, last stride 1, other strides multiples of 16 bytes.
    """
    lists.check(q, k, v)
    block, head_dim = lists.block, q.shape[2] // lists.heads
    rows = lists.order.numel()
    programs = min(rows, torch.cuda.get_device_properties(q.device).multi_processor_count)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for batch in range(q.shape[0]):
        descriptors = [
            TensorDescriptor(x[batch], list(x[batch].shape), list(x[batch].stride()), [tile, head_dim], layout)
            for x, tile in ((q, block // 2), (k, block), (v, block), (out, block // 2))
        ]
        _forward[(programs,)](
            *descriptors, lists.indices, lists.counts, lists.order, rows, lists.query_blocks, k.shape[1],
            lists.indices.shape[1], math.log2(math.e) / math.sqrt(head_dim),
            BLOCK=block, HEAD_DIM=head_dim, STAGES=STAGES, num_warps=WARPS, maxnreg=REGISTERS,
        )  # fmt: skip
    return out
