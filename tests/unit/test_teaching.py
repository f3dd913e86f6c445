"""Short probes and the scale files that they leave: what is written, what is believed, and what comes first."""

import itertools
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.identity import HardKey, digest
from carnator_core.options import GateOptions, Options, ProbeOptions, StoreOptions
from carnator_core.reasons import Code, Decision, Reason
from carnator_core.scale import (
    FREE_FIELDS,
    MAX_PAIRS,
    PAIRS_NEEDED,
    TAUGHT_SHARE,
    Scale,
    Thresholds,
    distance,
    medians,
    on_own_scale,
    pairs_known,
    setting_of,
)
from carnator_core.session import DenseSession, Session
from carnator_core.store import scales as files
from carnator_core.store.folder import Store
from carnator_core.teaching import PROMPTS, is_wanted, learn, seeds
from support.damage import overwritten
from support.fake_host import FakeHost
from support.processes import end_at, in_another_process

LEARNING = Options(gate=None, probe=ProbeOptions(min_text_similarity=0.5))
PROMPT = torch.tensor([1.0, -0.5, 0.8, 0.3, -1.0, 0.6, -0.2, 0.9])
LIMITS = Thresholds(GateOptions(), 0.15)
SETTING = digest("a setting")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="plays other processes with fork")
per_test = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

positive = st.floats(1e-6, 1e6, allow_nan=False)


@st.composite
def distances(draw) -> list[Scale]:
    families = draw(st.tuples(st.booleans(), st.booleans()))
    some = st.builds(
        Scale,
        positive,
        positive if families[0] else st.none(),
        positive if families[1] else st.none(),
        positive,
        positive,
    )
    return draw(st.lists(some, min_size=PAIRS_NEEDED, max_size=MAX_PAIRS))


def some_distances(size: float = 1.0, count: int = 10) -> list[Scale]:
    return [Scale(0.1 * size, 0.5 * size, None, 0.3 * size + 0.01 * i, 0.2 * size) for i in range(count)]


def prompt(index: int) -> torch.Tensor:
    return torch.randn(8, generator=torch.Generator().manual_seed(100 + index))


def run(host: FakeHost, root: Path, text: torch.Tensor, chosen: Options = LEARNING, **key: str) -> Session:
    """A run that is stored."""
    store = Store(root, chosen.store)
    one = Session(host.request(text, **key), chosen, store)
    host.run(one, text)
    store.wait()
    return one


def probes(store: Store, host: FakeHost, texts: list[torch.Tensor], chosen: Options = LEARNING) -> list[DenseSession]:
    """One probe for each text, each with a seed of its own; they run on beyond their end without a commit."""
    found = []
    for number, text in enumerate(texts):
        other = replace(host, seed=1000 + number)
        found.append(DenseSession(other.request(text), chosen, store))
        other.run(found[-1], text, seconds=None)
    return found


# -- files ---------------------------------------------------------------------------------------------------------


def path_of(root: Path, setting: str = SETTING) -> Path:
    return root / "default" / "scales" / f"{setting}.json"


def aside(root: Path) -> list[Path]:
    return list((root / "default" / "quarantine").glob("scales-*/*.json"))


@given(distances())
@per_test
def test_what_is_written_is_read_again_exactly(tmp_path: Path, found: list[Scale]) -> None:
    store = Store(tmp_path, StoreOptions())
    store.scales.write(SETTING, found)
    assert store.scales.read(SETTING) == found
    assert path_of(tmp_path).stat().st_size < files.MAX_BYTES
    store.close()


@given(where=st.floats(0, 1), value=st.binary(min_size=1, max_size=4))
@per_test
def test_a_file_with_other_bytes_never_says_anything_else(tmp_path: Path, where: float, value: bytes) -> None:
    store, good = Store(tmp_path, StoreOptions()), some_distances()
    if not path_of(tmp_path).exists():
        store.scales.write(SETTING, good)
    with overwritten(path_of(tmp_path), where, value):
        assert store.scales.read(SETTING) in (None, good)
    assert store.scales.read(SETTING) == good
    store.close()


def sealed(**changes: object) -> bytes:
    """A file with other contents and a seal that fits them."""
    data = {"schema": 1, "setting": SETTING, "distances": [asdict(one) for one in some_distances()], **changes}
    return json.dumps({**data, "seal": digest(data)}).encode()


def with_first(**changes: object) -> bytes:
    listed = [asdict(one) for one in some_distances()]
    return sealed(distances=[{**listed[0], **changes}, *listed[1:]])


DAMAGED = {
    "empty": b"",
    "no JSON": b"{",
    "deep": b"[" * 10_000,
    "a list": b"[]",
    "no seal": b'{"schema": 1}',
    "cut short": sealed()[:-5],
    "another schema": sealed(schema=2),
    "of another setting": sealed(setting=digest("another")),
    "changed without its seal": sealed().replace(b"0.5", b"0.6"),
    "too large": sealed(note="x" * files.MAX_BYTES),
    "no distances": sealed(distances=None),
    "too few": sealed(distances=[asdict(one) for one in some_distances(count=PAIRS_NEEDED - 1)]),
    "too many": sealed(distances=[asdict(one) for one in some_distances(count=MAX_PAIRS + 1)]),
    "not finite": with_first(state=float("inf")),
    "NaN": with_first(state=float("nan")),
    "zero": with_first(region=0.0),
    "below zero": with_first(representation=-0.1),
    "a text": with_first(state="0.5"),
    "a switch": with_first(state=True),
    "a family that must be there is absent": with_first(state=None),
    "one pair has another family": with_first(dynamics=1.0),
    "an unknown family": with_first(colour=1.0),
    "a distance that is none": sealed(distances=[[1.0]] * 10),
}


@pytest.mark.parametrize("contents", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_set_aside_and_the_model_learned_anew(tmp_path: Path, contents: bytes, caplog) -> None:
    store = Store(tmp_path, StoreOptions())
    store.scales.write(SETTING, some_distances(2.0))
    path_of(tmp_path).write_bytes(contents)
    assert store.scales.read(SETTING) is None
    assert not path_of(tmp_path).exists() and [file.read_bytes() for file in aside(tmp_path)] == [contents]
    assert f"scale {SETTING} set aside: " in caplog.text
    store.scales.write(SETTING, some_distances())
    assert store.scales.read(SETTING) == some_distances()


@pytest.mark.parametrize(
    "found",
    [
        some_distances(count=PAIRS_NEEDED - 1),
        some_distances(count=MAX_PAIRS + 1),
        [*some_distances(), Scale(float("nan"), 1.0, None, 1.0, 1.0)],
        [*some_distances(), Scale(1.0, 1.0, None, 0.0, 1.0)],
        [*some_distances(), Scale(1.0, None, None, 1.0, 1.0)],
    ],
    ids=["too few", "too many", "NaN", "zero", "other families"],
)
def test_what_no_scale_can_be_made_of_is_not_written(tmp_path: Path, found: list[Scale]) -> None:
    store = Store(tmp_path, StoreOptions())
    store.scales.write(SETTING, some_distances())
    with pytest.raises(ValueError):
        store.scales.write(SETTING, found)
    assert store.scales.read(SETTING) == some_distances()


def test_what_cannot_be_read_is_unknown_and_stays(tmp_path: Path, caplog) -> None:
    store = Store(tmp_path, StoreOptions())
    path_of(tmp_path).mkdir(parents=True)
    assert store.scales.read(SETTING) is None and path_of(tmp_path).is_dir()
    assert "was not read" in caplog.text


def test_of_many_files_those_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "KEPT", 3)
    store, names = Store(tmp_path, StoreOptions()), [digest(number) for number in range(5)]
    for age, name in enumerate(names[:3]):
        store.scales.write(name, some_distances())
        os.utime(path_of(tmp_path, name), (1000 + age, 1000 + age))
    store.scales.read(names[0])
    for name in names[3:]:
        store.scales.write(name, some_distances())
        kept = [other for other in names if path_of(tmp_path, other).exists()]
        assert len(kept) == 3 and {names[0], name} <= set(kept)


def test_a_purge_deletes_those_that_were_not_used(tmp_path: Path) -> None:
    store, old = Store(tmp_path, StoreOptions()), digest("old")
    for name in (SETTING, old):
        store.scales.write(name, some_distances())
    os.utime(path_of(tmp_path, old), (1000, 1000))
    store.purge(86400.0, dry=True)
    assert path_of(tmp_path, old).exists()
    store.purge(86400.0)
    assert not path_of(tmp_path, old).exists() and path_of(tmp_path).exists()
    store.purge(0.0)
    assert not path_of(tmp_path).exists()


@needs_fork
@pytest.mark.parametrize("call", ["fsync 0", "replace 0", "fsync 1", "never"])
def test_a_crash_at_any_instant_leaves_the_old_file_or_the_new_one(tmp_path: Path, call: str) -> None:
    store = Store(tmp_path, StoreOptions())
    store.scales.write(SETTING, some_distances(1.0))
    store.close()

    def work() -> None:
        other = Store(tmp_path, StoreOptions())
        end_at(call)
        other.scales.write(SETTING, some_distances(2.0))

    os.waitpid(in_another_process(work), 0)
    expected = some_distances(2.0 if call in ("fsync 1", "never") else 1.0)
    assert Store(tmp_path, StoreOptions()).scales.read(SETTING) == expected and aside(tmp_path) == []


# -- which setting -------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from(["CFG", "steps", "seed", "negative prompt", "input latent"]), st.text(max_size=3))
)
def test_a_setting_is_all_of_a_key_but_what_may_differ_between_unrelated_requests(fields: dict[str, str]) -> None:
    key = HardKey.of(fields)
    for name in FREE_FIELDS:
        assert setting_of(HardKey.of({**fields, name: "another"})) == setting_of(HardKey.of({**fields, name: "one"}))
    assert setting_of(HardKey.of({**fields, "CFG": "another one"})) != setting_of(key)


def test_seeds_are_those_of_the_setting_and_differ(tmp_path: Path) -> None:
    key = HardKey.of({"CFG": "5", "seed": "1"})
    assert seeds(key) == seeds(HardKey.of({"CFG": "5", "seed": "2", "negative prompt": "x"}))
    assert len({*seeds(key), *seeds(HardKey.of({"CFG": "6", "seed": "1"}))}) == 2 * len(PROMPTS)
    assert all(0 <= seed < 1 << 63 for seed in seeds(key))


def test_the_prompts_are_short_plain_and_share_hardly_a_word() -> None:
    small = {"a", "an", "the", "of", "in", "on", "at"}
    for one, other in itertools.combinations(PROMPTS, 2):
        assert not (set(one.split()) & set(other.split())) - small, (one, other)
    assert all(5 < len(text.split()) < 16 and text.isascii() for text in PROMPTS) and len(PROMPTS) == 5


# -- learning ------------------------------------------------------------------------------------------------------


def test_a_run_and_five_probes_teach_and_the_next_run_is_judged(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    own = run(host, tmp_path, PROMPT)
    taught = probes(store, host, [prompt(i) for i in range(5)])
    assert learn(store, own, taught) == 15
    assert [info.id for info in store.entries()] == [own.report.entry_id], "a probe is no donor"
    pairs = itertools.combinations([own.signature, *(one.signature for one in taught)], 2)
    expected = LIMITS.times(medians([distance(*pair, own.request.shape.patch) for pair in pairs]), TAUGHT_SHARE)
    assert on_own_scale(LIMITS, store, own.request.key, own.request.shape.patch, 0.5) == (expected, None)
    again = run(host, tmp_path, PROMPT * 1.0001)
    assert again.report.reason.code is Code.REUSED and again.report.learned_pairs == PAIRS_NEEDED
    assert again.report.thresholds.state == expected.gate.state


def test_a_probe_reads_no_donor_and_decides_nothing(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    by_hand = Options(gate=GateOptions(1e3, 1e3, 1e3, 1e3, 1e3))
    run(host, tmp_path, PROMPT, by_hand)
    probe = DenseSession(host.request(PROMPT), by_hand, store)
    assert torch.equal(host.run(probe, PROMPT, seconds=None), host.dense(PROMPT))
    assert probe.report.decision is Decision.MISS and probe.signature is not None


def test_a_failed_write_of_the_run_before_is_left_for_the_next_run(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    store._writer._failed("not stored: the disk broke")
    probes(store, host, [PROMPT])
    one = Session(host.request(PROMPT), LEARNING, store)
    assert one.report.store_note == "the run before was not stored: the disk broke"


def test_stored_pairs_come_first_once_there_are_enough(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    own = run(host, tmp_path, PROMPT)
    key, patch = own.request.key, own.request.shape.patch
    found = some_distances(7.0)
    store.scales.write(setting_of(key), found)
    taught = LIMITS.times(medians(found), TAUGHT_SHARE)
    for number in range(4):
        assert pairs_known(store, key, 0.5) == len(found)
        assert on_own_scale(LIMITS, store, key, patch, 0.5) == (taught, None)
        run(FakeHost(seed=10 + number), tmp_path, prompt(number))
    assert PAIRS_NEEDED <= pairs_known(store, key, 0.5) <= MAX_PAIRS
    limits, why = on_own_scale(LIMITS, store, key, patch, 0.5)
    assert why is None and limits.gate.state != taught.gate.state


def test_another_setting_is_not_taught(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    own = run(host, tmp_path, PROMPT)
    store.scales.write(setting_of(own.request.key), some_distances())
    other = FakeHost(cfg=4.0).request(PROMPT).key
    assert on_own_scale(LIMITS, store, other, (1, 2, 2), 0.5)[1].code is Code.LEARNING
    assert pairs_known(store, other, 0.5) == 0


@pytest.mark.parametrize("same", ["texts", "own text", "shapes"])
def test_probes_that_say_too_little_are_refused_with_a_sentence(tmp_path: Path, same: str) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    own = run(host, tmp_path, PROMPT)
    if same == "texts":
        with pytest.raises(ValueError, match="does not tell unlike prompts apart"):
            learn(store, own, probes(store, host, [prompt(0) * size for size in (1.0, 1.0001, 1.0002, 1.0003, 1.0004)]))
    elif same == "shapes":
        with pytest.raises(ValueError, match="other families or shapes|different families or shapes"):
            learn(store, own, probes(store, FakeHost(latent=(4, 3, 16, 16)), [prompt(i) for i in range(5)]))
    else:  # one prompt of ours is the artist's own: the others are enough
        assert learn(store, own, probes(store, host, [PROMPT, *(prompt(i) for i in range(4))])) == 14
    assert (store.scales.read(setting_of(own.request.key)) is None) == (same != "own text")


# -- when ----------------------------------------------------------------------------------------------------------


def test_a_miss_with_an_unknown_scale_wants_to_be_taught(tmp_path: Path) -> None:
    own = run(FakeHost(), tmp_path, PROMPT)
    assert is_wanted(own)
    Store(tmp_path, StoreOptions()).scales.write(setting_of(own.request.key), some_distances())
    assert not is_wanted(run(FakeHost(seed=5), tmp_path, PROMPT))
    assert is_wanted(run(FakeHost(cfg=4.0), tmp_path, PROMPT))


@pytest.mark.parametrize(
    "chosen",
    [replace(LEARNING, gate=GateOptions()), replace(LEARNING, store=StoreOptions(mode="read"))],
    ids=["by hand", "read only"],
)
def test_it_is_not_wanted_where_nothing_would_come_of_it(tmp_path: Path, chosen: Options) -> None:
    assert not is_wanted(run(FakeHost(), tmp_path, PROMPT, chosen))


def test_a_run_that_was_broken_off_or_came_from_a_reused_one_teaches_nothing(tmp_path: Path) -> None:
    host, store = FakeHost(), Store(tmp_path, StoreOptions())
    one = Session(host.request(PROMPT), LEARNING, store)
    one.go_dense(Reason.of(Code.OUT_OF_MEMORY))
    host.run(one, PROMPT)
    assert not is_wanted(one)
    assert not is_wanted(Session(host.request(PROMPT), LEARNING, store)), "no probe yet"
    later = Session(replace(host.request(PROMPT), reused_input=True), LEARNING, store)
    host.run(later, PROMPT)
    assert not is_wanted(later)
