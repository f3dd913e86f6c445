"""AUC with its interval, the gate's score, and the matching of acceptance rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.separation import auc, auc_interval, gate_score, matching_similarity, overall, separation
from benchmarks.summary import auc_cells


def hit(kind: str, unsafe: bool, state: float, similarity: float, region: float = 0.3, **changes: object) -> dict:
    found = {"representation": 0.01, "residual": None, "dynamics": 1.0, "state": state}
    shown = {"shape": True, "colour": True}
    return {
        "decision": "hit", "kind": kind, "similarity": similarity, "region": region, "discrepancies": found,
        "stock_attributes": shown, "attributes": {**shown, "colour": not unsafe}, **changes,
    }  # fmt: skip


def test_auc_counts_pairs_in_the_right_order_and_half_of_the_ties() -> None:
    assert auc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert auc(np.array([0.0]), np.array([1.0, 2.0])) == 0.0
    # 3 > 1, 3 > 2, 2 > 1 and a tie of 2 with 2
    assert auc(np.array([2.0, 3.0]), np.array([1.0, 2.0])) == 3.5 / 4
    assert math.isnan(auc(np.array([]), np.array([1.0])))


def test_the_interval_surrounds_the_auc_and_narrows_with_more_data() -> None:
    random = np.random.default_rng(1)

    def widths(n: int) -> tuple[float, float, float]:
        unsafe, safe = random.normal(1.0, 1.0, n), random.normal(0.0, 1.0, n)
        return (auc(unsafe, safe), *auc_interval(unsafe, safe))

    for n in (20, 500):
        value, low, high = widths(n)
        assert low < value < high
    few, many = widths(20), widths(500)
    assert many[2] - many[1] < (few[2] - few[1]) / 2
    # Two unit normals one apart: P = Phi(1 / sqrt 2) = 0.760
    assert many[1] < 0.76 < many[2]


def test_the_interval_agrees_with_a_plain_bootstrap() -> None:
    random = np.random.default_rng(2)
    unsafe, safe = random.normal(0.8, 1.0, 40), random.normal(0.0, 1.0, 60)
    plain = [auc(random.choice(unsafe, 40), random.choice(safe, 60)) for _ in range(2000)]
    assert np.allclose(auc_interval(unsafe, safe), np.quantile(plain, (0.05, 0.95)), atol=0.01)


def test_a_perfect_separation_has_no_width_and_an_empty_class_no_interval() -> None:
    assert auc_interval(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == (1.0, 1.0)
    assert all(map(math.isnan, auc_interval(np.array([1.0]), np.array([]))))


def test_the_gates_score_is_the_largest_share_of_a_threshold() -> None:
    # state 0.12 of 0.06, representation 0.01 of 0.04, dynamics 1 of 2
    assert gate_score(hit("shape", False, state=0.12, similarity=0.9)) == pytest.approx(2.0)
    # near-empty region: representation 0.01 of 0.0005
    assert gate_score(hit("shape", False, state=0.12, similarity=0.9, region=0.01)) == pytest.approx(20.0)


def test_separation_tells_groups_apart_and_leaves_out_what_is_not_there() -> None:
    records = [
        hit("weather", True, state=0.9, similarity=0.95),
        hit("weather", False, state=0.1, similarity=0.80),
        hit("shape", False, state=0.2, similarity=0.90),
        hit("shape", False, state=0.3, similarity=0.99),
        hit("shape", True, state=0.01, similarity=0.1, decision="miss"),
    ]
    rows = {row["kind"]: row for row in separation(records)}
    assert (rows["all"]["safe"], rows["all"]["unsafe"]) == (3, 1)
    assert rows["all"]["state"] == {"auc": 1.0, "low": 1.0, "high": 1.0}
    assert rows["all"]["text"]["auc"] == pytest.approx(1 / 3, abs=1e-3)  # nearer than two of the three safe ones
    assert rows["all"]["residual"] is None  # not measured
    assert rows["shape"]["state"] is None  # nothing unsafe among them
    assert rows["weather"]["text"]["auc"] == 0.0
    assert list(rows) == ["all", "local edits", "weather", "shape"]
    assert overall(separation(records), "state") == 1.0
    assert auc_cells([rows["weather"]])[0]["state"] == "1.00 (1.00–1.00)"


def test_separation_of_no_hits_is_empty_but_whole() -> None:
    (row, _) = separation([])
    assert (row["safe"], row["unsafe"], row["gate"]) == (0, 0, None)


@pytest.mark.parametrize(
    ("similarities", "accepted", "reached"),
    [
        ([0.9, 0.5, None, 0.7], 2, 2),
        ([0.9, 0.5, None, 0.7], 3, 3),
        ([0.9, 0.5, None, 0.7], 4, 3),  # the one without a donor cannot be accepted
        ([0.9, 0.8, 0.8, 0.8, 0.1], 2, 1),  # ties: 1 is nearer to 2 than 4
        ([0.9, 0.8, 0.8, 0.8, 0.1], 3, 4),
        ([0.8, 0.8, 0.1], 1, 2),  # no threshold accepts fewer than the ties but more than none
    ],
)
def test_the_matching_threshold_accepts_as_many(similarities: list, accepted: int, reached: int) -> None:
    threshold = matching_similarity(similarities, accepted)
    assert sum(s is not None and s >= threshold for s in similarities) == reached


def test_nothing_accepted_has_no_threshold() -> None:
    assert matching_similarity([0.9, 0.8], 0) is None
    assert matching_similarity([None], 1) is None
