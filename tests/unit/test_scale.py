"""The scale of a model: which pairs count, what its medians do to thresholds, and learning in a session."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.identity import HardKey
from carnator_core.options import GateOptions, Options, ProbeOptions, StoreOptions
from carnator_core.reasons import Code, Decision
from carnator_core.report import TEACHING
from carnator_core.scale import (
    MAX_PAIRS,
    PAIRS_NEEDED,
    PAIRS_PER_ENTRY,
    REFERENCE,
    Scale,
    Thresholds,
    distance,
    medians,
    seen_distances,
    unrelated_pairs,
)
from carnator_core.session import Session
from carnator_core.store.entry import EntryInfo
from carnator_core.store.folder import Store
from carnator_core.store.tensor_file import EntryError
from support.fake_host import FakeHost, a_donor


def request(name: str, text: list[float], seed: str = "1", **fields: str) -> tuple[EntryInfo, torch.Tensor]:
    key = HardKey.of({"seed": seed, "negative prompt": "n", "CFG": "5", **fields})
    return EntryInfo(name, key, 0.0, 1.0, None), F.normalize(torch.tensor(text), dim=0)


HERE = request("x", [1.0, 0.0])[0].key
NEAR, FAR = [1.0, 0.1], [0.0, 1.0]


def test_far_texts_are_unrelated_and_near_ones_are_with_another_seed() -> None:
    one, near, far = request("a", [1.0, 0.0]), request("b", NEAR), request("c", FAR)
    assert unrelated_pairs([one, near], HERE, 0.5) == []
    assert unrelated_pairs([one, far], HERE, 0.5) == [("a", "c")]
    assert unrelated_pairs([one, request("b", NEAR, seed="2")], HERE, 0.5) == [("a", "b")]


def test_one_text_with_two_seeds_does_not_count() -> None:
    assert unrelated_pairs([request("a", NEAR), request("b", NEAR, seed="2")], HERE, 0.5) == []


def test_requests_of_another_setting_do_not_count() -> None:
    texts = [request("a", NEAR), request("b", FAR, CFG="6"), request("c", FAR, **{"model weights": "other"})]
    assert unrelated_pairs(texts, HERE, 0.5) == []
    assert unrelated_pairs([request("a", NEAR), request("b", FAR, **{"negative prompt": "m"})], HERE, 0.5)


@given(st.permutations(range(9)))
def test_the_pairs_depend_on_the_entries_and_not_on_their_order(order: list[int]) -> None:
    texts = [request(f"e{i}", [1.0, 0.0], seed=str(i)) for i in range(4)]
    texts += [request(f"f{i}", FAR, seed=str(i)) for i in range(5)]
    pairs = unrelated_pairs([texts[i] for i in order], HERE, 0.5)
    assert pairs == unrelated_pairs(texts, HERE, 0.5)
    assert PAIRS_NEEDED <= len(pairs) <= MAX_PAIRS and len(set(pairs)) == len(pairs)


def test_no_entry_is_in_most_pairs() -> None:
    """One odd prompt among variations of another must not set the scale alone."""
    texts = [request(f"e{i}", NEAR) for i in range(8)] + [request("odd", FAR)]
    assert len(unrelated_pairs(texts, HERE, 0.5)) == PAIRS_PER_ENTRY < PAIRS_NEEDED


def test_in_a_later_stage_another_input_latent_is_another_composition() -> None:
    texts = [request(f"e{i}", [1.0, 0.05 * i], **{"input latent": str(i)}) for i in range(5)]
    assert len(unrelated_pairs(texts, HERE, 0.5)) >= PAIRS_NEEDED


def test_texts_of_other_encoders_and_volumes_of_other_shapes_are_left_out(tmp_path: Path) -> None:
    assert unrelated_pairs([request("a", NEAR), request("b", [0.0, 1.0, 0.0])], HERE, 0.5) == []
    one, other = a_donor("a", seed=1).signature, a_donor("b", seed=2, latent=(2, 2, 8, 8)).signature
    with pytest.raises(EntryError, match="shapes"):
        distance(one, other, (1, 2, 2))


def test_on_the_reference_model_thresholds_stay_as_they_are() -> None:
    limits = Thresholds(GateOptions(), 0.15)
    assert limits.times(REFERENCE) == limits


def test_each_threshold_follows_its_own_median() -> None:
    model = Scale(2 * REFERENCE.representation, None, 3 * REFERENCE.dynamics, REFERENCE.state / 2, 4 * REFERENCE.region)
    before = Thresholds(GateOptions(), 0.15)
    after = before.times(model)
    assert after.region == pytest.approx(0.6)
    ratios = {"representation": 2, "residual": 1, "dynamics": 3, "state": 0.5, "near_empty_representation": 2}
    for name, ratio in ratios.items():
        assert getattr(after.gate, name) == pytest.approx(ratio * getattr(before.gate, name))


def test_medians_leave_out_families_that_are_absent() -> None:
    some = [Scale(1.0, None, 1.0, 1.0, 1.0), Scale(3.0, 2.0, None, 1.0, 5.0), Scale(2.0, None, None, 1.0, 3.0)]
    assert medians(some) == Scale(2.0, 2.0, 1.0, 1.0, 3.0)
    assert medians(some[:1]).residual is None


# -- in a session --------------------------------------------------------------------------------------------------

LEARNING = Options(gate=None, probe=ProbeOptions(min_text_similarity=0.5))
PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])


def run(host: FakeHost, root: Path, prompt: torch.Tensor, chosen: Options = LEARNING) -> tuple[Session, torch.Tensor]:
    store = Store(root, StoreOptions())
    one = Session(host.request(prompt), chosen, store)
    result = host.run(one, prompt)
    store.wait()
    return one, result


def unrelated(index: int) -> torch.Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(100 + index))


def test_a_model_that_is_not_known_learns_first_and_runs_densely(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    one, result = run(host, tmp_path, PROMPT * 1.01)
    assert one.report.decision is Decision.MISS and one.report.reason.code is Code.LEARNING
    assert one.report.reason.sentence == "learning this model: 0 of 8 comparisons" and one.report.thresholds is None
    assert one.report.status() == f"miss: {one.report.reason.sentence}; {TEACHING}"
    assert one.report.discrepancies is not None, "what was measured is shown while learning"
    assert torch.equal(result, host.dense(PROMPT * 1.01))


def test_a_store_that_is_only_read_promises_no_learning(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    one, _ = run(host, tmp_path, PROMPT * 1.01, replace(LEARNING, store=StoreOptions(mode="read")))
    sentence = one.report.reason.sentence
    assert one.report.status() == f"miss: {sentence} (nothing is learned in a store that is only read)"


def test_after_enough_unrelated_pairs_the_gate_opens_on_the_models_own_scale(tmp_path: Path) -> None:
    """Eight pairs need five seeds: another seed is another composition."""
    for seed in range(5):
        run(FakeHost(seed=seed), tmp_path, unrelated(seed))
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    store = Store(tmp_path, StoreOptions())
    found = seen_distances(store, host.request(PROMPT).key, host.request(PROMPT).shape.patch, 0.5)
    assert len(found) >= PAIRS_NEEDED
    one, _ = run(host, tmp_path, PROMPT * 1.001)
    assert one.report.reason.code is Code.REUSED
    expected = Thresholds(GateOptions(), 0.15).times(medians(found)).gate
    near_empty = min(expected.representation, expected.near_empty_representation)
    assert one.report.thresholds == replace(expected, representation=near_empty)


def test_every_miss_tells_how_far_learning_is(tmp_path: Path) -> None:
    for seed in range(3):
        one, _ = run(FakeHost(seed=seed), tmp_path, unrelated(seed))
    assert one.report.reason.code is Code.KEY_DIFFERS
    assert "learning this model: 1 of 8" in one.report.status()


def test_a_store_that_goes_away_in_mid_run_costs_only_the_reuse(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)

    def harm(session: Session, step: int) -> None:
        if step == 1:
            shutil.rmtree(tmp_path / "default" / "entries")
            (tmp_path / "default" / "entries").write_text("no folder")

    one, result = run(FakeHost(before_step=harm), tmp_path, PROMPT * 1.01)
    assert one.report.decision is not Decision.HIT and torch.equal(result, host.dense(PROMPT * 1.01))


def test_thresholds_set_by_hand_need_no_learning(tmp_path: Path) -> None:
    host = FakeHost()
    run(host, tmp_path, PROMPT)
    by_hand = replace(LEARNING, gate=GateOptions())
    one, _ = run(host, tmp_path, PROMPT * 1.001, by_hand)
    assert one.report.reason.code is Code.REUSED


def test_a_broken_entry_is_left_out_of_the_scale(tmp_path: Path) -> None:
    for seed in range(5):
        run(FakeHost(seed=seed), tmp_path, unrelated(seed))
    store = Store(tmp_path, StoreOptions())
    request = FakeHost().request(PROMPT)
    whole = len(seen_distances(store, request.key, request.shape.patch, 0.5))
    gone = store.entries()[0].id
    (tmp_path / "default" / "entries" / gone / "signature.safetensors").write_bytes(b"no")
    again = Store(tmp_path, StoreOptions())
    assert 0 < len(seen_distances(again, request.key, request.shape.patch, 0.5)) < whole
