"""Sparse self-attention of one request: whether it is used, by whose connectivity, and its lists for the kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from .connectivity import Connectivity, most_kept, rows_mask
from .identity import HardKey, digest
from .options import ReuseOptions
from .store.entry import EntryInfo
from .store.tensor_file import EntryError
from .tiles import ENOUGH_BLOCKS, block_for, inverse, tile_order

if TYPE_CHECKING:
    from .request import Request
    from .store.folder import Store
    from .store.read_ahead import EarlyReads

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
AFTER_A_FAILURE = "dense after a failure"  # what a hit used whose sparse attention failed in the middle
USUAL_DENSITY = 0.5  # of masks that keep a share of the mass, to time a kernel before any mask is known

# Why sparse attention is not tried again in this process.
FAILED: dict[dispatch.Case, str] = {}

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


def _case(site: AttentionSite, block: int) -> dispatch.Case:
    return dispatch.Case(site.device, site.dtype, site.head_dim, block)


def dense_because(options: ReuseOptions, site: AttentionSite | None, depth: int, tokens: int) -> str | None:
    """Why self-attention stays dense for this request, as a part of a sentence; None if it need not."""
    if site is None:
        return "the host does not say how it attends"
    if options.attention == "dense":
        return "set to dense"
    block = block_for(tokens, options.attention_block)
    case = _case(site, block)
    if case in FAILED:
        return FAILED[case]
    pairs = depth * site.heads * (tokens / block) ** 2
    if pairs > MAX_PAIRS:
        return f"its connectivity would take {2 * pairs / 1e9:.1f} GB"
    if options.attention == "auto":
        if site.device.type == "cpu":  # no gain worth a decision that depends on how busy the machine is
            return "sparse attention pays on GPUs"
        if tokens < ENOUGH_BLOCKS * block:  # each block would be too large a part of the video to be left out
            return f"this video is small for sparse attention (fewer than {ENOUGH_BLOCKS} blocks)"
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

    def __init__(self, request: Request, options: ReuseOptions, store: Store, early: EarlyReads):
        self._request, self._options, self._store, self._early = request, options, store, early
        self.block = block_for(request.shape.tokens, options.attention_block)
        self.dense = dense_because(options, request.attention, request.shape.depth, request.shape.tokens)

    def expect(self, donor: EntryInfo) -> None:
        """Begin to read what ``choose`` will ask for if this donor is accepted."""
        if self.dense is None and self._source == "donor":
            self._early.expect(self._store.connectivity, donor.id)
        elif self.dense is None:
            self._early.expect(self._store.consensus, consensus_id(self._request.key, self.block))

    def choose(self, donor: EntryInfo | None, device: torch.device) -> Attending:
        """What reuse steps attend by.

        Args:
            donor: whose own connectivity is taken if the options ask for a donor's.
        """
        if self.dense is not None:
            return Attending(None, f"dense: {self.dense}")
        request, options, block = self._request, self._options, self.block
        source = "consensus" if donor is None else self._source
        try:
            if source == "donor":
                found = self._early.answer(self._store.connectivity, donor.id)
                if found is not None and found.rule != Connectivity.rule_of(options):
                    return Attending(None, f"dense: the donor's connectivity was kept by another rule ({found.rule})")
                mask, tensor, whose = found and found.mask, found and found.packed, "the donor"
            else:
                found = self._early.answer(self._store.consensus, consensus_id(request.key, block))
                mask, tensor = found and partial(found.mask, options=options), found and found.mass
                whose = f"{found.count} earlier requests" if found else ""
        except EntryError as error:
            return Attending(None, f"dense: the stored connectivity cannot be used ({error})")
        shape = request.shape.depth, request.attention.heads, -(-request.shape.tokens // block)
        if found is None or found.block != block or tuple(tensor.shape[:3]) != shape:
            return Attending(None, "dense: no connectivity is stored for this yet")
        said = f"{Connectivity.rule_of(options)} by the connectivity of {whose}"
        try:
            sparse = SparseAttention(mask, request.shape.grid, block, device, most_kept(shape[2], options))
            return Attending(sparse, said, self._used(source))
        except torch.OutOfMemoryError:
            return Attending(None, "dense: there was too little memory to prepare sparse attention")

    def fail(self, why: str) -> Attending:
        """Sparse attention failed: this process does not try it again for such a case."""
        self.dense = FAILED[_case(self._request.attention, self.block)] = f"sparse attention failed ({why})"
        log.warning("Carnator: %s; from here on attention is dense until the server is started again", self.dense)
        return Attending(None, f"dense: {self.dense}", AFTER_A_FAILURE)

    @property
    def expected(self) -> str:
        """What a hit is going to use if its connectivity is stored."""
        try:
            return DENSE if self.dense is not None else self._used(self._source)
        except torch.OutOfMemoryError:  # then it cannot be prepared either, unless memory is freed meanwhile
            return DENSE

    @property
    def _source(self) -> str:
        return "donor" if self._options.attention == "donor" else "consensus"

    def _used(self, source: str) -> str:
        """Raises torch.OutOfMemoryError."""
        site = self._request.attention
        return f"{source} by {dispatch.choose(_case(site, self.block)).name} in {site.dtype}"


class AttentionFailed(Exception):
    """A sparse kernel failed; dense attention need not."""


class SparseAttention:
    """The connectivity of one request on the device of its run.

    Args:
        mask: (layer, device) -> [heads, blocks, blocks] bool in tile order.
        grid: token grid (T', h, w).
        block: tokens per block.
        most: how many key blocks a row of a mask keeps at most, if that is known.
    """

    def __init__(
        self,
        mask: Callable[[int, torch.device], torch.Tensor],
        grid: tuple[int, int, int],
        block: int,
        device: torch.device,
        most: int | None = None,
    ):
        self._mask, self._block, self._most = mask, block, most
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
        Raises AttentionFailed, or torch.OutOfMemoryError.
        """
        try:
            return dispatch.block_sparse_attention(q, k, v, self._lists_of(layer, of_rows, q.device))
        except Exception as error:  # a kernel may fail in any way
            if dispatch.is_out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise AttentionFailed(f"{type(error).__name__}: {error}") from error

    def _lists_of(self, layer: int, of_rows: bool, device: torch.device) -> BlockLists:
        if (layer, of_rows) not in self._lists:
            if layer not in self._masks:
                self._masks[layer] = self._mask(layer, device)
            mask = self._masks[layer]
            if of_rows:
                lists = BlockLists.of(rows_mask(mask, self.rows, self._block), self._block)
            else:
                lists = BlockLists.of(mask, self._block, self._most)
            self._lists[layer, of_rows] = lists
        return self._lists[layer, of_rows]


def measure_mass(q: torch.Tensor, k: torch.Tensor, heads: int, order: torch.Tensor, block: int) -> torch.Tensor:
    """Block mass [heads, blocks, blocks] float32 of q, k [tokens, H*D], which are in row-by-row order."""
    return dispatch.block_mass(q[order], k[order], heads, block)
