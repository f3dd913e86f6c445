"""Every variant and control is what its name says, as far as that can be told without a server."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import controls, variants
from benchmarks.jobs import methods_of
from benchmarks.random_masks import RULES, Replaced, random_like
from carnator_core import connectivity
from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions, StoreOptions


def options_of(variant: variants.Ours) -> Options:
    store, gate = StoreOptions(**variant.store), GateOptions(**{**asdict(GateOptions()), **variant.gate})
    return Options(store, ProbeOptions(**variant.probe), gate, ReuseOptions(**variant.reuse))


@pytest.mark.parametrize("variant", variants.ABLATION, ids=lambda variant: variant.name)
def test_a_variant_is_a_possible_setting_that_differs_from_the_default(variant: variants.Ours) -> None:
    options, default = options_of(variant), Options()
    changed = {name: value for name, value in asdict(options.reuse).items() if value != getattr(default.reuse, name)}
    assert (variant.name == variants.DEFAULT) == ((options.reuse, options.gate, options.probe) == (
        default.reuse, default.gate, default.probe
    ))  # fmt: skip
    assert set(changed) <= set(variant.reuse)


@pytest.mark.parametrize("what", ["ablation", "controls"])
def test_names_and_stores_are_each_ones_own(what: str) -> None:
    methods = methods_of(what)
    names = [method.name for method in methods]
    stores = [method.store["name"].lower() for method in methods if isinstance(method, variants.Ours)]
    assert len(set(names)) == len(names) and len(set(stores)) == len(stores)
    assert variants.DEFAULT in names and controls.NOISE_FLOOR in names
    quick = variants.QUICK if what == "ablation" else controls.QUICK
    assert len(quick) == 5 and set(quick) <= set(names)


def test_variants_with_equal_settings_differ_in_how_masks_are_drawn() -> None:
    found: dict[tuple, list[variants.Ours]] = {}
    for variant in variants.ABLATION:
        options = options_of(variant)
        found.setdefault((options.reuse, options.gate, options.probe), []).append(variant)
    for same in found.values():
        assert len({type(variant) for variant in same}) == len(same)


@given(
    st.integers(1, 3), st.integers(2, 20), st.floats(0.01, 1.0), st.sampled_from(RULES), st.integers(0, 2**32)
)  # fmt: skip
def test_random_masks_keep_as_many_blocks_per_row_and_the_block_itself(
    heads: int, blocks: int, share: float, rule: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mass = torch.rand(heads, blocks, blocks, generator=generator).softmax(-1)
    mask = getattr(connectivity, rule)(mass, share)
    drawn = random_like(mask, generator)
    assert torch.equal(drawn.sum(-1), mask.sum(-1))
    assert drawn.diagonal(dim1=-2, dim2=-1).all()


def test_the_rules_are_random_only_between_replace_and_restore() -> None:
    mass = torch.rand(4, 40, 40, generator=torch.Generator().manual_seed(1)).softmax(-1)
    options = ReuseOptions(attention_percent=25.0)
    measured, rules = connectivity.keep(mass, options), [getattr(connectivity, name) for name in RULES]
    replaced = Replaced()
    replaced.replace(connectivity)
    try:
        first, second = connectivity.keep(mass, options), connectivity.keep(mass, options)
    finally:
        replaced.restore()
    assert not torch.equal(first, measured) and not torch.equal(first, second)
    assert torch.equal(first.sum(-1), measured.sum(-1)) and replaced.selections == 2
    assert [getattr(connectivity, name) for name in RULES] == rules
    assert torch.equal(connectivity.keep(mass, options), measured) and replaced.selections == 2
