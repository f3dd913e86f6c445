"""What is read before it is asked for: the same answers, the same errors, and nothing is left behind."""

import threading
from pathlib import Path

import pytest
import torch

from carnator_core.options import StoreOptions
from carnator_core.store import read_ahead
from carnator_core.store.folder import Store
from carnator_core.store.read_ahead import EarlyReads, LikelyDonor, ReadAhead
from carnator_core.store.tensor_file import EntryError
from support.attention import a_connected_donor, a_mass
from support.damage import overwritten
from support.fake_host import a_donor

WANTED = (2, 2, 4, 4), 4, (2,)
STEP_BYTES = 2 * 2 * 2 * 4 * 4
CONSENSUS = "c0"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = Store(tmp_path, StoreOptions())
    opened.commit(a_connected_donor("one"), a_mass(), CONSENSUS)
    opened.commit(a_donor("two", seed=2))
    opened.wait()
    return opened


def early(store: Store) -> EarlyReads:
    return EarlyReads(lambda name: store.trajectory(name, *WANTED), range(1, 4))


@pytest.mark.parametrize("expected", [True, False])
def test_answers_are_those_of_the_store_whether_they_were_expected_or_not(store: Store, expected: bool) -> None:
    reads = early(store)
    if expected:
        reads.expect(store.signature, "one")
        reads.expect(store.connectivity, "one")
        reads.expect(store.consensus, CONSENSUS)
        reads.expect(store.consensus, "c1")
    assert torch.equal(reads.answer(store.signature, "one").state, store.signature("one").state)
    assert torch.equal(reads.answer(store.connectivity, "one").packed, store.connectivity("one").packed)
    assert torch.equal(reads.answer(store.consensus, CONSENSUS).mass, store.consensus(CONSENSUS).mass)
    assert reads.answer(store.consensus, "c1") is None
    reads.close()
    assert torch.equal(reads.answer(store.signature, "two").state, store.signature("two").state), "closed it answers"


def test_what_is_expected_is_looked_up_once_and_not_by_whoever_asks(store: Store) -> None:
    threads = []

    def signature(name: str) -> torch.Tensor:
        threads.append(threading.current_thread().name)
        return store.signature(name).state

    reads = early(store)
    reads.expect(signature, "one")
    reads.expect(signature, "one")
    assert torch.equal(reads.answer(signature, "one"), reads.answer(signature, "one"))
    assert len(threads) == 1 and threads[0].startswith("carnator-early")
    reads.close()


def test_an_error_reaches_whoever_asks(store: Store) -> None:
    reads = early(store)
    with overwritten(store.disk.folder("one") / "signature.safetensors", 1.0, b"\xff\xff"):
        reads.expect(store.signature, "one")
        for _ in range(2):
            with pytest.raises(EntryError):
                reads.answer(store.signature, "one")
    reads.close()


def test_closing_ends_the_lease_on_a_donor_that_nobody_took(store: Store) -> None:
    reads = early(store)
    reads.likely.guess("one")
    assert not store.delete("one")
    reads.close()
    assert store.delete("one")


@pytest.mark.parametrize("kept_steps", [0, 2, 100])
def test_each_step_is_given_out_once_and_read_again_only_where_it_was_not_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch, kept_steps: int
) -> None:
    monkeypatch.setattr(read_ahead, "KEPT_BYTES", kept_steps * STEP_BYTES)
    donor = a_connected_donor("one").trajectory
    trajectory = store.trajectory("one", *WANTED)
    again, read = [], trajectory.read
    monkeypatch.setattr(trajectory, "read", lambda name: (again.append(name), read(name))[1])
    ahead = ReadAhead(trajectory, range(1, 4))
    ahead.check()
    for step in range(1, 4):
        ahead.expect(step, conditional=step == 2)
        assert torch.equal(ahead.guided(step), donor.guided[step])
    assert torch.equal(ahead.conditional(2), donor.conditional[2])
    ahead.close()  # all that was begun has ended
    assert len(again) == max(0, 4 - kept_steps)


def test_tensors_are_sent_to_the_device_that_was_named(store: Store) -> None:
    likely = LikelyDonor(lambda name: store.trajectory(name, *WANTED), range(1, 4))
    ahead = likely.open("one")
    ahead.send_to(torch.device("meta"))
    assert ahead.guided(1).device.type == "meta" and ahead.conditional(2).dtype == torch.float16
    likely.close()
