"""Options: validated, frozen, and the same after a round trip through JSON."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.options import (
    ATTENTION_RULES,
    ATTENTION_SOURCES,
    GATE_MODES,
    SEED_POLICIES,
    WINDOW_RESIDUALS,
    GateOptions,
    Options,
    ProbeOptions,
    ReuseOptions,
    StoreOptions,
)

percent = st.floats(0.0, 100.0)
options = st.builds(
    Options,
    store=st.builds(
        StoreOptions,
        name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", fullmatch=True),
        budget_gb=st.floats(0.001, 1e6),
        mode=st.sampled_from(["read+write", "read", "write"]),
    ),
    probe=st.builds(
        ProbeOptions,
        percent,
        st.integers(1, 100),
        st.floats(-1.0, 1.0),
        st.none() | st.text(max_size=9),
        st.sampled_from(SEED_POLICIES),
    ),
    gate=st.builds(GateOptions, *[st.floats(0.0, 1e6)] * 4, mode=st.sampled_from(GATE_MODES)),
    reuse=st.builds(
        ReuseOptions,
        st.floats(0.0, 1e3),
        percent,
        st.just(10.0),
        st.floats(10.0, 100.0),
        st.integers(1, 9),
        percent,
        st.sampled_from(ATTENTION_SOURCES),
        st.sampled_from(ATTENTION_RULES),
        st.floats(0.0, 100.0, exclude_min=True),
        st.sampled_from([0, 64, 128]),
        st.sampled_from(WINDOW_RESIDUALS),
        st.floats(0.0, 1.0),
        percent,
        st.floats(0.0, 1.0),
        st.booleans(),
    ),
)


@given(options)
def test_options_survive_a_round_trip_through_json(given_options: Options) -> None:
    text = json.dumps(given_options.to_dict())
    assert Options.from_dict(json.loads(text)) == given_options


def test_missing_groups_take_their_defaults() -> None:
    assert Options.from_dict({"version": 1}) == Options()
    assert Options.from_dict({"version": 1, "reuse": {"refine_percent": 6.0}}).reuse == ReuseOptions(refine_percent=6.0)
    assert Options.from_dict({"version": 1, "gate": {"state": 0.7}}).gate == GateOptions(state=0.7)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"version": 2},
        {"version": "1"},
        {"version": 1, "speed": {}},
        {"version": 1, "gate": {"colour": 1.0}},
        {"version": 1, "gate": 5},
        {"version": 1, "gate": {"state": "0.5"}},
        {"version": 1, "gate": {"state": -0.5}},
    ],
)
def test_foreign_data_is_a_value_error(data: dict) -> None:
    with pytest.raises(ValueError):
        Options.from_dict(data)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-",
        "__",
        "a" * 65,
        "..",
        ".",
        "a/b",
        "a\\b",
        "../a",
        "/etc",
        "C:",
        "a.b",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "²",
        "~",
    ],
)
def test_a_store_name_that_could_be_a_path_or_odd_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="store name"):
        StoreOptions(name=name)


@pytest.mark.parametrize("name", ["default", "a", "My-Project_2", "0", "a" * 64])
def test_a_plain_store_name_is_accepted(name: str) -> None:
    assert StoreOptions(name=name).name == name


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_store_budget_must_be_above_zero(budget: float) -> None:
    with pytest.raises(ValueError, match="budget"):
        StoreOptions(budget_gb=budget)


def test_an_unknown_seed_policy_is_refused_and_an_older_file_has_the_default() -> None:
    with pytest.raises(ValueError, match="seed policy"):
        ProbeOptions(seed_policy="any")
    older = Options().to_dict()
    del older["probe"]["seed_policy"]
    assert Options.from_dict(older) == Options() and not Options().probe.any_seed


def test_an_unknown_gate_mode_is_refused_and_an_older_file_has_the_default() -> None:
    with pytest.raises(ValueError, match="gate mode"):
        GateOptions(mode="certificate")
    older = Options().to_dict()
    del older["gate"]["mode"]
    assert Options.from_dict(older) == Options() and not Options().certified


def test_only_thresholds_set_by_hand_are_used_as_they_are() -> None:
    certified = Options(gate=GateOptions(mode="certified"))
    assert certified.certified and certified.by_hand is None
    assert Options().by_hand == GateOptions() and Options(gate=None).by_hand is None


def test_an_unknown_store_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        StoreOptions(mode="append")


@pytest.mark.parametrize(
    "field",
    [
        "max_region_percent",
        "window_start_percent",
        "window_end_percent",
        "refine_percent",
        "attention_percent",
        "guidance_end_percent",
    ],
)
@pytest.mark.parametrize("value", [-0.1, 100.1, math.nan, math.inf])
def test_a_percentage_outside_0_to_100_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field.replace("_", " ")):
        ReuseOptions(**{field: value})


@pytest.mark.parametrize("value", [-0.1, 100.1, math.nan])
def test_a_probe_percentage_outside_0_to_100_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="probe percent"):
        ProbeOptions(probe_percent=value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"recall_top_k": 0}, "top-k"),
        ({"min_text_similarity": 1.1}, "similarity"),
        ({"min_text_similarity": -1.1}, "similarity"),
        ({"min_text_similarity": math.nan}, "similarity"),
    ],
)
def test_probe_options_outside_their_range_are_refused(fields: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ProbeOptions(**fields)


@pytest.mark.parametrize("family", ["representation", "residual", "dynamics", "state"])
@pytest.mark.parametrize("value", [-1e-9, math.nan])
def test_a_threshold_below_zero_or_nan_is_refused(family: str, value: float) -> None:
    with pytest.raises(ValueError, match=family):
        GateOptions(**{family: value})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"region_threshold": -0.1}, "region threshold"),
        ({"region_threshold": math.nan}, "region threshold"),
        ({"guidance_interval": 0}, "guidance interval"),
        ({"window_start_percent": 50.0, "window_end_percent": 49.0}, "layer window"),
        ({"attention": "sparse"}, "attention must be one of"),
        ({"attention": ""}, "attention must be one of"),
        ({"attention_rule": "count"}, "attention rule must be one of"),
        ({"attention_percent": 0.0}, "attention percent"),
        ({"attention_block": -1}, "attention block"),
        ({"window_residual": "per_layer"}, "window residual must be one of"),
        ({"hold_threshold": -1e-9}, "hold threshold"),
        ({"hold_threshold": math.nan}, "hold threshold"),
    ],
)
def test_reuse_options_outside_their_range_are_refused(fields: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ReuseOptions(**fields)


@pytest.mark.parametrize("part", [Options(), StoreOptions(), ProbeOptions(), GateOptions(), ReuseOptions()])
def test_options_cannot_be_changed_after_they_are_made(part: object) -> None:
    name = dataclasses.fields(part)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(part, name, None)
