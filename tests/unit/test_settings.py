"""Settings: every option that can change a hit's pixels counts, and a session always tells its own."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from carnator_core.options import GateOptions, Options, ProbeOptions, ReuseOptions
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.scale import FREE_FIELDS, Thresholds
from carnator_core.session import Session
from carnator_core.settings import (
    LEAST_WORK,
    LEAST_WORK_ACCEPTED,
    LEFT_OUT,
    PINNED,
    differing,
    plan_hash,
    settings_of,
    size_class,
)
from carnator_core.store.entry import TRAJECTORY_FILE
from carnator_core.store.registry import open_store
from support.fake_host import FakeHost

PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LOCAL = PROMPT + torch.tensor([0.0, 0, 0, 0, 0, 1.5, 0, 0])
GLOBAL = PROMPT + 1.5
OPEN = GateOptions(*[10.0] * 5)

# Another valid value for every option; a new option has to be entered here.
CHANGED = {
    ReuseOptions: {
        "region_threshold": 0.16,
        "max_region_percent": 60.0,
        "window_start_percent": 20.0,
        "window_end_percent": 80.0,
        "guidance_interval": 3,
        "refine_percent": 6.0,
        "attention": "dense",
        "attention_rule": "mass",
        "attention_percent": 40.0,
        "attention_block": 64,
        "window_residual": "none",
        "guidance_fresh_sigma": 0.8,
        "guidance_end_percent": 90.0,
        "hold_threshold": 0.4,
        "assist": True,
    },
    ProbeOptions: {
        "probe_percent": 11.0,
        "recall_top_k": 5,
        "min_text_similarity": 0.6,
        "donor": "abc",
        "seed_policy": "any seed",
    },
}
ALL = [(group, f.name) for group in CHANGED for f in dataclasses.fields(group)]


def settings(reuse: ReuseOptions | None = None, probe: ProbeOptions | None = None, **others) -> dict[str, str]:
    options = Options(probe=probe or ProbeOptions(), reuse=reuse or ReuseOptions())
    limits = Thresholds(options.gate, options.reuse.region_threshold)
    given = {"limits": limits, "attention": "dense", "choice": LEAST_WORK, "donors": 1, **others}
    return settings_of(FakeHost().request(PROMPT), options, **given)


@pytest.mark.parametrize(("group", "name"), ALL, ids=lambda item: getattr(item, "__name__", item))
def test_every_option_that_can_change_a_hits_pixels_changes_the_plan_hash(group: type, name: str) -> None:
    changed = dataclasses.replace(group(), **{name: CHANGED[group][name]})
    assert getattr(changed, name) != getattr(group(), name)
    kind = "reuse" if group is ReuseOptions else "probe"
    other = settings(**{kind: changed})
    same = plan_hash(other) == plan_hash(settings())
    assert same == (name in LEFT_OUT)
    assert same or name.replace("_", " ") in differing(settings(), other)


def test_only_what_has_a_reason_is_left_out() -> None:
    assert {"assist", "donor"} == set(LEFT_OUT), "each one more needs a reason that holds"
    assert all(LEFT_OUT.values())


@pytest.mark.parametrize("name", ["CFG", "steps", "model weights", "video size", *FREE_FIELDS])
def test_of_the_hard_key_all_but_the_composition_and_the_negative_prompt_counts(name: str) -> None:
    options, limits = Options(), Thresholds(GateOptions(), 0.15)
    one, other = (
        settings_of(FakeHost().request(PROMPT, **{name: value}), options, limits, "dense", LEAST_WORK, 1)
        for value in ("a", "b")
    )
    assert differing(one, other) == ([] if name in FREE_FIELDS else [name])


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"attention": "consensus by reference in torch.float32"}, ["attention used"]),
        ({"choice": PINNED}, ["donor choice"]),
        ({"donors": 10}, ["store size"]),
        ({"limits": Thresholds(GateOptions(), 0.156)}, ["effective region threshold"]),
        ({"limits": Thresholds(GateOptions(), 0.1501)}, []),
        ({"limits": Thresholds(GateOptions(near_empty_representation=0.0006), 0.15)}, ["near-empty threshold"]),
        ({"limits": Thresholds(GateOptions(state=0.7), 0.15)}, []),
    ],
)
def test_what_was_found_out_about_the_request_counts_too(changed: dict, named: list[str]) -> None:
    assert differing(settings(), settings(**changed)) == named


def test_a_field_that_only_one_side_has_is_a_difference() -> None:
    assert differing({"a": "1"}, {"a": "1", "b": "2"}) == ["b"] == differing({"a": "1", "b": "2"}, {"a": "1"})


@pytest.mark.parametrize(
    ("donors", "said"), [(0, "0"), (1, "1 to 9"), (9, "1 to 9"), (10, "10 to 99"), (4096, "1000 to 9999")]
)
def test_store_sizes_are_told_by_powers_of_ten(donors: int, said: str) -> None:
    assert size_class(donors) == said


# -- in a session --------------------------------------------------------------------------------------------------


def run(
    root: Path, prompt: torch.Tensor, gate: GateOptions | None = OPEN, probe=None, before_step=None, **reuse
) -> Session:
    host = FakeHost(**({} if before_step is None else {"before_step": before_step}))
    probe = probe or ProbeOptions(min_text_similarity=-1.0)
    chosen = Options(probe=probe, gate=gate, reuse=ReuseOptions(region_threshold=0.05, hold_threshold=0.0, **reuse))
    one = Session(host.request(prompt), chosen, open_store(root, chosen.store))
    host.run(one, prompt)
    return one


def test_miss_hit_and_assist_tell_their_request_and_its_settings(tmp_path: Path) -> None:
    miss, hit = run(tmp_path, PROMPT).report, run(tmp_path, LOCAL).report
    assist = run(tmp_path, GLOBAL, GateOptions(*[0.0] * 5), assist=True).report
    assert [r.decision for r in (miss, hit, assist)] == [Decision.MISS, Decision.HIT, Decision.ASSIST]
    assert miss.request_id == miss.entry_id and hit.entry_id is None
    assert hit.request_id == FakeHost().request(LOCAL).entry_id
    assert differing(hit.settings, miss.settings) == ["store size"]
    assert differing(hit.settings, assist.settings) == ["near-empty threshold"]
    for report in (miss, hit, assist):
        told = json.loads(json.dumps(report.to_dict()))
        assert told["settings"] == report.settings and told["request_id"] and told["certificate"] is None
        assert all(isinstance(value, str) and len(value) <= 64 for value in told["settings"].values())


def test_a_hit_that_ended_early_is_no_example_of_its_settings(tmp_path: Path) -> None:
    run(tmp_path, PROMPT)
    whole = run(tmp_path, LOCAL).report

    def fail(session: Session, step: int) -> None:
        if step == 10:
            session.go_dense(Reason.of(Code.OUT_OF_MEMORY))

    early = run(tmp_path, LOCAL, before_step=fail).report
    assert early.decision is Decision.HIT and early.reason.code is Code.OUT_OF_MEMORY
    assert differing(early.settings, whole.settings) == ["attention used"]


def test_how_the_donor_was_chosen_is_told(tmp_path: Path) -> None:
    far, near = run(tmp_path, GLOBAL), run(tmp_path, PROMPT, GateOptions(*[0.0] * 5))
    assert far.report.entry_id and near.report.entry_id
    first = run(tmp_path, LOCAL).report
    assert (first.donor_id, first.settings["donor choice"]) == (near.report.entry_id, LEAST_WORK)
    chosen = ProbeOptions(min_text_similarity=-1.0, donor=near.report.entry_id)
    assert run(tmp_path, LOCAL, probe=chosen).report.settings["donor choice"] == PINNED


def test_a_donor_that_comes_through_because_the_cheapest_did_not_is_another_choice(tmp_path: Path) -> None:
    far, near = run(tmp_path, GLOBAL), run(tmp_path, PROMPT, GateOptions(*[0.0] * 5))
    open_store(tmp_path, Options().store).wait()
    path = tmp_path / "default" / "entries" / near.report.entry_id / TRAJECTORY_FILE
    path.write_bytes(path.read_bytes()[:-9])
    one = run(tmp_path, LOCAL, max_region_percent=100.0).report
    assert (one.donor_id, one.settings["donor choice"]) == (far.report.entry_id, LEAST_WORK_ACCEPTED)
