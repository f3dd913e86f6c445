"""Sparse self-attention of one request: whether it is used, by whose connectivity, and its lists for the kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from .connectivity import Connectivity, rows_mask
from .identity import HardKey, digest
from .options import ReuseOptions
from .store.entry import EntryInfo
from .store.tensor_file import EntryError
from .tiles import ENOUGH_BLOCKS, block_for, inverse, tile_order

if TYPE_CHECKING:
    from .request import Request
    from .store.folder import Store

# In a ComfyUI both packages are parts of one custom node; elsewhere both stand on their own.
if "." in __package__:
    from ..kernels import dispatch
    from ..kernels.block_lists import BlockLists
else:
    from kernels import dispatch
    from kernels.block_lists import BlockLists

log = logging.getLogger("carnator")

MAX_PAIRS = (
    200_000_000  # of blocks over all layers and heads: 0.4 GB of masses, held several times while they are merged
)
DENSE = "dense"
USUAL_DENSITY = 0.5  # of masks that keep a share of the mass, to time a kernel before any mask is known

# What attention looks like depends on the model and the video's size, not on what is asked of it.
SHAPING_FIELDS = ("model weights", "LoRA or weight patches", "model options", "software or device", "video size")


@dataclass(frozen=True)
class AttentionSite:
    """How a host's model computes self-attention.

    Args:
        device, dtype: of queries, keys and values.
        heads, head_dim: of every layer.
    """

    device: torch.device
    dtype: torch.dtype
    heads: int
    head_dim: int


def dense_because(options: ReuseOptions, site: AttentionSite | None, depth: int, tokens: int) -> str | None:
    """Why self-attention stays dense for this request, as a part of a sentence; None if it need not."""
    if site is None:
        return "the host does not say how it attends"
    if options.attention == "dense":
        return "set to dense"
    block = block_for(tokens, options.attention_block)
    pairs = depth * site.heads * (tokens / block) ** 2
    if pairs > MAX_PAIRS:
        return f"its connectivity would take {2 * pairs / 1e9:.1f} GB"
    if options.attention == "auto":
        if site.device.type == "cpu":  # no gain worth a decision that depends on how busy the machine is
            return "sparse attention pays on GPUs"
        if tokens < ENOUGH_BLOCKS * block:  # each block would be too large a part of the video to be left out
            return f"this video is small for sparse attention (fewer than {ENOUGH_BLOCKS} blocks)"
        case = dispatch.Case(site.device, site.dtype, site.head_dim, block)
        density = options.attention_percent / 100 if options.attention_rule == "density" else USUAL_DENSITY
        worth = dispatch.worthwhile(case, tokens, tokens, site.heads, density)
        return None if worth.faster else worth.sentence
    return None


def consensus_id(key: HardKey, block: int) -> str:
    """Name of the consensus that a request of this key adds to."""
    fields = dict(key.fields)
    return digest([fields.get(name) for name in SHAPING_FIELDS], block)


@dataclass(frozen=True)
class Attending:
    """How the reuse steps of a run attend.

    Args:
        sparse: None for dense attention.
        sentence: for a person.
        used: whose connectivity, by which kernel and in which dtype; "dense" if none.
    """

    sparse: SparseAttention | None
    sentence: str
    used: str = DENSE


class AttentionChoice:
    """How self-attention of one request's reuse steps is computed.

    Args:
        dense: why it stays dense, as a part of a sentence; None if it need not.
    """

    def __init__(self, request: Request, options: ReuseOptions, store: Store):
        self._request, self._options, self._store = request, options, store
        self.block = block_for(request.shape.tokens, options.attention_block)
        self.dense = dense_because(options, request.attention, request.shape.depth, request.shape.tokens)

    def choose(self, donor: EntryInfo | None, device: torch.device) -> Attending:
        """What reuse steps attend by.

        Args:
            donor: whose own connectivity is taken if the options ask for a donor's.
        """
        if self.dense is not None:
            return Attending(None, f"dense: {self.dense}")
        store, request, options, block = self._store, self._request, self._options, self.block
        try:
            if options.attention == "donor" and donor is not None:
                found = store.connectivity(donor.id)
                if found is not None and found.rule != Connectivity.rule_of(options):
                    return Attending(None, f"dense: the donor's connectivity was kept by another rule ({found.rule})")
                mask, tensor, whose = found and found.mask, found and found.packed, "the donor"
            else:
                found = store.consensus(consensus_id(request.key, block))
                mask, tensor = found and partial(found.mask, options=options), found and found.mass
                whose = f"{found.count} earlier requests" if found else ""
        except EntryError as error:
            return Attending(None, f"dense: the stored connectivity cannot be used ({error})")
        shape = request.shape.depth, request.attention.heads, -(-request.shape.tokens // block)
        if found is None or found.block != block or tuple(tensor.shape[:3]) != shape:
            return Attending(None, "dense: no connectivity is stored for this yet")
        sparse = SparseAttention(mask, request.shape.grid, block, device)
        said = f"{Connectivity.rule_of(options)} by the connectivity of {whose}"
        return Attending(sparse, said, self._used("consensus" if donor is None else self._source))

    @property
    def expected(self) -> str:
        """What a hit is going to use if its connectivity is stored."""
        return DENSE if self.dense is not None else self._used(self._source)

    @property
    def _source(self) -> str:
        return "donor" if self._options.attention == "donor" else "consensus"

    def _used(self, source: str) -> str:
        site = self._request.attention
        kernel = dispatch.choose(dispatch.Case(site.device, site.dtype, site.head_dim, self.block))
        return f"{source} by {kernel.name} in {site.dtype}"


class AttentionFailed(Exception):
    """A sparse kernel failed; dense attention need not."""


class SparseAttention:
    """The connectivity of one request on the device of its run.

    Args:
        mask: (layer, device) -> [heads, blocks, blocks] bool in tile order.
        grid: token grid (T', h, w).
        block: tokens per block.
    """

    def __init__(
        self,
        mask: Callable[[int, torch.device], torch.Tensor],
        grid: tuple[int, int, int],
        block: int,
        device: torch.device,
    ):
        self._mask, self._block = mask, block
        self.order = tile_order(grid, block).to(device)
        self._positions = inverse(self.order)
        self._masks: dict[int, torch.Tensor] = {}
        self._lists: dict[tuple[int, bool], BlockLists] = {}
        self.rows: torch.Tensor | None = None

    def limit(self, rows: torch.Tensor) -> None:
        """Which tokens a region evaluation computes: [n] int64, row by row; kept as ascending tile positions."""
        self.rows = self._positions[rows].sort().values
        self._lists = {name: lists for name, lists in self._lists.items() if not name[1]}

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, of_rows: bool) -> torch.Tensor:
        """Attention of q [B, n, H*D] over k, v [B, tokens, H*D], all in tile order.

        Args:
            of_rows: whether q holds the limited rows only.
        """
        try:
            return dispatch.block_sparse_attention(q, k, v, self._lists_of(layer, of_rows, q.device))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a kernel may fail in any way
            raise AttentionFailed(f"{type(error).__name__}: {error}") from error

    def _lists_of(self, layer: int, of_rows: bool, device: torch.device) -> BlockLists:
        if (layer, of_rows) not in self._lists:
            if layer not in self._masks:
                self._masks[layer] = self._mask(layer, device)
            mask = self._masks[layer]
            if of_rows:
                mask = rows_mask(mask, self.rows, self._block)
            self._lists[layer, of_rows] = BlockLists.of(mask, self._block)
        return self._lists[layer, of_rows]


def measure_mass(q: torch.Tensor, k: torch.Tensor, heads: int, order: torch.Tensor, block: int) -> torch.Tensor:
    """Block mass [heads, blocks, blocks] float32 of q, k [tokens, H*D], which are in row-by-row order."""
    return dispatch.block_mass(q[order], k[order], heads, block)
