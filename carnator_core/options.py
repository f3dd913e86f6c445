"""What the artist can set, as frozen, validated, versioned data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPTIONS_VERSION = 1
STORE_MODES = ("read+write", "read", "write")
ATTENTION_SOURCES = ("auto", "consensus", "donor", "dense")
ATTENTION_RULES = ("density", "mass")
WINDOW_RESIDUALS = ("shared", "per layer", "none")
SEED_POLICIES = ("same seed", "any seed")
GATE_MODES = THRESHOLDS, CERTIFIED = "thresholds", "certified"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_percent(name: str, value: float) -> None:
    _require(0.0 <= value <= 100.0, f"{name} must lie between 0 and 100 percent, got {value}")


def is_store_name(name: str) -> bool:
    plain = name.replace("-", "").replace("_", "")
    return name.isascii() and plain.isalnum() and len(name) <= 64


@dataclass(frozen=True)
class StoreOptions:
    """Where donors are kept. ``name`` is a plain label, never a path; ``budget_gb`` is in 10^9 bytes."""

    name: str = "default"
    budget_gb: float = 8.0
    mode: str = "read+write"

    def __post_init__(self) -> None:
        _require(
            is_store_name(self.name),
            f"a store name is 1 to 64 ASCII letters, digits, '-' and '_', got {self.name!r}",
        )
        _require(self.budget_gb > 0, f"the store budget must be above 0 GB, got {self.budget_gb}")
        _require(self.mode in STORE_MODES, f"store mode must be one of {STORE_MODES}, got {self.mode!r}")


@dataclass(frozen=True)
class ProbeOptions:
    """The early probe and the recall that feeds it.

    Args:
        donor: pins recall to one entry by its id; empty means a pinned report that names none.
        seed_policy: whether only donors with the request's own noise serve, or, where there is none, a donor lends the
            request its noise.
    """

    probe_percent: float = 10.0
    recall_top_k: int = 4
    min_text_similarity: float = 0.5
    donor: str | None = None
    seed_policy: str = SEED_POLICIES[0]

    def __post_init__(self) -> None:
        _require_percent("probe percent", self.probe_percent)
        _require(self.recall_top_k >= 1, f"recall top-k must be at least 1, got {self.recall_top_k}")
        _require(
            -1.0 <= self.min_text_similarity <= 1.0,
            f"minimum text similarity is a cosine between -1 and 1, got {self.min_text_similarity}",
        )
        known = self.seed_policy in SEED_POLICIES
        _require(known, f"seed policy must be one of {SEED_POLICIES}, got {self.seed_policy!r}")

    @property
    def any_seed(self) -> bool:
        return self.seed_policy == "any seed"


@dataclass(frozen=True)
class GateOptions:
    """Thresholds tau of the four discrepancies; a donor is accepted only if each one is at or below its own.

    A near-empty region means that the early predictions agree, which is also what a change that shows late looks
    like. It is trusted only if the representation agrees as closely as it does between two wordings of one scene.

    The defaults were read off the stream *tune* of the demo world; other models need their own.

    Args:
        mode: thresholds, or certified: a certificate decides that matches the request's settings, and where there is
            none, strict thresholds on the model's own scale (``gate.STRICT``); those set here are not used then.
    """

    representation: float = 0.04
    residual: float = 0.5
    dynamics: float = 2.0
    state: float = 0.06
    near_empty_representation: float = 0.0005
    mode: str = THRESHOLDS

    def __post_init__(self) -> None:
        _require(self.mode in GATE_MODES, f"gate mode must be one of {GATE_MODES}, got {self.mode!r}")
        for name, value in self.numbers.items():
            _require(value >= 0.0, f"threshold {name} must be 0 or more, got {value}")

    @property
    def numbers(self) -> dict[str, float]:
        """The thresholds by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "mode"}

    def scaled(self, factors: Mapping[str, float]) -> GateOptions:
        """Each threshold times the factor of its family."""
        numbers = {name: value * factors[name.removeprefix("near_empty_")] for name, value in self.numbers.items()}
        return dataclasses.replace(self, **numbers)


@dataclass(frozen=True)
class ReuseOptions:
    """What a hit computes.

    Args:
        region_threshold: tau of the evidence region at the end of the probe, RMS difference of conditional x0 per
            token, in latent units (the model's own normalised latents, about unit variance); see
            ``evidence.threshold_at`` for later steps.
        max_region_percent: share of tokens above which a donor is refused.
        window_start_percent, window_end_percent: span of DiT blocks, in percent of the depth, in which only region
            tokens are updated; equal values switch the window off.
        guidance_interval: the unconditional branch runs every this many reuse steps.
        refine_percent: share of the steps at the end that is dense again.
        attention: whose connectivity reuse steps attend by: consensus of earlier requests, donor, or dense (all);
            auto is the consensus where the video is large and sparse attention faster than dense on this device.
        attention_rule: what a query block keeps: this share of the key blocks (density), or the fewest blocks that
            hold this share of its attention (mass).
        attention_percent: that share.
        attention_block: tokens per block; 0 chooses by the size of the video.
        window_residual: how tokens outside the region change inside the layer window: by an equal share of what the
            whole window added to them in the last forward over all tokens, by what each layer added, or not at all.
        guidance_fresh_sigma: at and above this noise level the unconditional branch always runs.
        guidance_end_percent: after this share of the steps, reuse steps go without guidance.
        hold_threshold: evaluations are left out, and the last x0 is held, while the donor's own x0 changed by less
            than this since the last evaluated step, relative to its size; 0 leaves out none.
        assist: whether a request that resembles a stored one, but fits none, may save what needs no donor.
    """

    region_threshold: float = 0.15
    max_region_percent: float = 65.0
    window_start_percent: float = 10.0
    window_end_percent: float = 90.0
    guidance_interval: int = 2
    refine_percent: float = 5.0
    attention: str = "auto"
    attention_rule: str = "density"
    attention_percent: float = 50.0
    attention_block: int = 0
    window_residual: str = "shared"
    guidance_fresh_sigma: float = 0.9
    guidance_end_percent: float = 100.0
    hold_threshold: float = 0.5
    assist: bool = False

    def __post_init__(self) -> None:
        _require(self.region_threshold >= 0.0, f"region threshold must be 0 or more, got {self.region_threshold}")
        for f in dataclasses.fields(self):
            if f.name.endswith("_percent"):
                _require_percent(f.name.replace("_", " "), getattr(self, f.name))
        for name, allowed in (
            ("attention", ATTENTION_SOURCES),
            ("attention_rule", ATTENTION_RULES),
            ("window_residual", WINDOW_RESIDUALS),
        ):
            value = getattr(self, name)
            _require(value in allowed, f"{name.replace('_', ' ')} must be one of {allowed}, got {value!r}")
        _require(self.attention_percent > 0.0, "attention percent must be above 0: every token attends to something")
        block = self.attention_block
        _require(block >= 0 and block & (block - 1) == 0, f"attention block must be 0 or a power of two, got {block}")
        _require(
            0.0 <= self.guidance_fresh_sigma <= 1.0,
            f"guidance fresh sigma must lie between 0 and 1, got {self.guidance_fresh_sigma}",
        )
        _require(self.hold_threshold >= 0.0, f"hold threshold must be 0 or more, got {self.hold_threshold}")
        _require(
            self.window_start_percent <= self.window_end_percent,
            f"the layer window ends ({self.window_end_percent} %) before it starts ({self.window_start_percent} %)",
        )
        _require(self.guidance_interval >= 1, f"guidance interval must be at least 1, got {self.guidance_interval}")


@dataclass(frozen=True)
class Options:
    """Everything one request is run with.

    Args:
        gate: thresholds set by hand, or a certificate; None: the defaults on the model's own learned scale.
    """

    store: StoreOptions = field(default_factory=StoreOptions)
    probe: ProbeOptions = field(default_factory=ProbeOptions)
    gate: GateOptions | None = field(default_factory=GateOptions)
    reuse: ReuseOptions = field(default_factory=ReuseOptions)

    @property
    def certified(self) -> bool:
        """Whether a certificate is asked for."""
        return self.gate is not None and self.gate.mode == CERTIFIED

    @property
    def by_hand(self) -> GateOptions | None:
        """The thresholds to use as they are; None if others take their place."""
        return None if self.certified else self.gate

    def to_dict(self) -> dict[str, Any]:
        return {"version": OPTIONS_VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Options:
        """Inverse of ``to_dict``. Raises ValueError for another version or an unknown field."""
        data = dict(data)
        version = data.pop("version", None)
        _require(version == OPTIONS_VERSION, f"options version {version} is not {OPTIONS_VERSION}")
        parts = {f.name: f.default_factory for f in dataclasses.fields(cls)}
        _require(set(data) <= set(parts), f"unknown option groups: {sorted(set(data) - set(parts))}")
        _require(all(data.get(name, {}) is not None for name in set(parts) - {"gate"}), "an option group is empty")
        try:
            return cls(**{name: values if values is None else parts[name](**values) for name, values in data.items()})
        except TypeError as error:
            raise ValueError(f"unknown option: {error}") from error
