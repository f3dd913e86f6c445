"""Entry files: exactly what was written comes back, or an EntryError. There is no third outcome."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carnator_core.signature import FAMILIES
from carnator_core.store import entry, tensor_file
from carnator_core.store.entry import PREVIEW_FILE, SIGNATURE_FILE, TRAJECTORY_FILE, Entry, Trajectory
from carnator_core.store.tensor_file import EntryError, EntryGone, TensorFile
from support.damage import overwritten
from support.fake_host import a_donor

LATENT, STEPS, CHECKS = (2, 2, 4, 4), 4, (2,)
FILES = (SIGNATURE_FILE, TRAJECTORY_FILE)
same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, seed: int = 0) -> Entry:
    folder.mkdir()
    donor = a_donor(folder.name, seed)
    entry.write_entry(folder, donor)
    return donor


def read(folder: Path) -> Entry:
    """Everything of an entry, the way a request reads it."""
    info, embedding = entry.read_info(folder)
    signature = entry.read_signature(folder)[1]
    stored = entry.open_trajectory(folder, LATENT, STEPS, CHECKS)
    try:
        guided = {step: stored.guided(step) for step in range(STEPS)}
        conditional = {step: stored.conditional(step) for step in CHECKS}
        return Entry(info, embedding, signature, Trajectory(guided, conditional, stored.residual_norm))
    finally:
        stored.close()


def described(donor: Entry) -> dict:
    """A donor as plain values, so that two can be compared exactly."""
    tensors = {"embedding": donor.embedding, **donor.signature.tensors(), **donor.trajectory.tensors()}
    plain = {"info": donor.info}
    return plain | {name: (t.dtype, tuple(t.shape), t.tolist()) for name, t in tensors.items()}


def outcome(folder: Path, expected: dict) -> str:
    try:
        found = described(read(folder))
    except EntryError:
        return "refused"
    return "unchanged" if found == expected else "wrong value"


@given(seed=st.integers(0, 1000))
@same_folder
def test_a_donor_comes_back_exactly_as_it_was_written(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / f"entry{seed}"
    if not folder.exists():
        donor = write(folder, seed)
        assert described(read(folder)) == described(donor)


@pytest.mark.parametrize("absent", ["residual", "dynamics"])
def test_an_absent_family_stays_absent(tmp_path: Path, absent: str) -> None:
    donor = a_donor(tmp_path.name)
    entry.write_entry(tmp_path, replace(donor, signature=replace(donor.signature, **{absent: None})))
    assert getattr(entry.read_signature(tmp_path)[1], absent) is None


def test_a_prompt_with_any_characters_comes_back(tmp_path: Path) -> None:
    donor = a_donor(tmp_path.name)
    entry.write_entry(tmp_path, replace(donor, info=replace(donor.info, prompt='Fuß "quoted"\n红色 🎈')))
    assert entry.read_info(tmp_path)[0].prompt == 'Fuß "quoted"\n红色 🎈'


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_at_any_byte_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "entry"
    expected, path = described(write(folder)), folder / name
    good = path.read_bytes()
    wrong = []
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 7)
        path.write_bytes(bad)
        if outcome(folder, expected) == "wrong value":
            wrong.append(bytes(bad[max(0, at - 12) : at + 4]).decode("latin-1"))
    assert not wrong, f"{len(wrong)} of {len(good)} flips gave a wrong value, such as {wrong[:8]}"


def test_a_flipped_digit_of_the_key_is_refused(tmp_path: Path) -> None:
    """One bit turns CFG 5.0 into CFG 7.0: the donor would then serve requests it never fitted."""
    folder = tmp_path / "entry"
    write(folder)
    path = folder / SIGNATURE_FILE
    bad = path.read_bytes().replace(b"5.0", b"7.0")
    assert bad != path.read_bytes()
    path.write_bytes(bad)
    with pytest.raises(EntryError):
        entry.read_info(folder)


@given(name=st.sampled_from(FILES), where=st.floats(0, 1), value=st.binary(min_size=1, max_size=3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_overwritten_bytes_are_refused(tmp_path: Path, name: str, where: float, value: bytes) -> None:
    folder = tmp_path / "entry"
    expected = described(read(folder) if folder.exists() else write(folder))
    with overwritten(folder / name, where, value):
        assert outcome(folder, expected) != "wrong value"


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "entry"
    write(folder)
    path = folder / name
    good = path.read_bytes()
    for length in [*range(0, len(good), 5), len(good) - 1]:
        path.write_bytes(good[:length])
        with pytest.raises(EntryError):
            read(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"{}", b"\xff" * 64, b"PK\x03\x04" + b"x" * 500])
def test_a_foreign_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    folder = tmp_path / "entry"
    write(folder)
    (folder / name).write_bytes(content)
    with pytest.raises(EntryError):
        read(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path, name: str) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "entry"
    write(folder)
    for metadata in (None, {"format": "pt"}, {"carnator": "[1]"}, {"carnator": "not json"}):
        save_file({"weight": torch.zeros(3)}, folder / name, metadata)
        with pytest.raises(EntryError):
            read(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_or_a_folder_in_its_place_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "entry"
    write(folder)
    (folder / name).unlink()
    with pytest.raises(EntryError):
        read(folder)
    (folder / name).mkdir()
    with pytest.raises(EntryError):
        read(folder)


def test_the_trajectory_of_another_entry_is_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, seed=1)
    write(other, seed=2)
    (one / TRAJECTORY_FILE).write_bytes((other / TRAJECTORY_FILE).read_bytes())
    with pytest.raises(EntryError):
        read(one)


def test_an_entry_under_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "other")
    for part in (entry.read_info, entry.read_signature, read, entry.verify_entry):
        with pytest.raises(EntryError):
            part(tmp_path / "other")


@pytest.mark.parametrize("name", FILES)
def test_another_schema_version_is_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "entry"
    write(folder)
    monkeypatch.setattr(tensor_file, "SCHEMA", tensor_file.SCHEMA + 1)
    newer = tmp_path / "newer"
    write(newer)
    monkeypatch.undo()
    (folder / name).write_bytes((newer / name).read_bytes())
    with pytest.raises(EntryError, match="schema"):
        read(folder)


def rewritten(folder: Path, name: str, change) -> None:
    """Replace a file by one whose own bookkeeping is right but whose tensors are `change`d."""
    with TensorFile(folder / name) as file:
        tensors, header = {name: file.tensor(name) for name in file.names}, file.header
    (folder / name).unlink()
    change(tensors)
    kept = {k: v for k, v in header.items() if k not in ("schema", "checksums")}
    tensor_file.write_file(folder / name, tensors, kept)


TRAJECTORY_CHANGES = {
    "a step is missing": lambda t: t.pop("guided.0003"),
    "a check is missing": lambda t: t.pop("conditional.0002"),
    "a step too many": lambda t: t.update({"guided.0004": t["guided.0000"].clone()}),
    "a check too many": lambda t: t.update({"conditional.0001": t["guided.0000"].clone()}),
    "another shape": lambda t: t.update({"guided.0001": torch.zeros(2, 2, 4, 5).half()}),
    "one dimension less": lambda t: t.update({"guided.0001": torch.zeros(64).half()}),
    "another float": lambda t: t.update({"guided.0001": t["guided.0001"].float()}),
    "bfloat16": lambda t: t.update({"guided.0001": t["guided.0001"].bfloat16()}),
    "integers": lambda t: t.update({"guided.0001": t["guided.0001"].to(torch.int16)}),
    "a check of another dtype": lambda t: t.update({"conditional.0002": t["conditional.0002"].float()}),
    "NaN": lambda t: t["guided.0002"].view(-1)[5].fill_(float("nan")),
    "infinity": lambda t: t["conditional.0002"].view(-1)[5].fill_(float("inf")),
    "no residual norms": lambda t: t.pop("residual_norm"),
    "too few residual norms": lambda t: t.update({"residual_norm": torch.zeros(3)}),
    "residual norms of another dtype": lambda t: t.update({"residual_norm": torch.zeros(4, dtype=torch.int32)}),
    "NaN in the residual norms": lambda t: t["residual_norm"][1].fill_(float("nan")),
    "a step without number": lambda t: t.update({"guided.x": t["guided.0001"].clone()}),
}


@pytest.mark.parametrize("change", TRAJECTORY_CHANGES.values(), ids=TRAJECTORY_CHANGES.keys())
def test_a_trajectory_with_other_contents_is_refused(tmp_path: Path, change) -> None:
    folder = tmp_path / "entry"
    write(folder)
    rewritten(folder, TRAJECTORY_FILE, change)
    with pytest.raises(EntryError):
        read(folder)


@pytest.mark.parametrize(
    "wanted",
    [
        ((2, 2, 4, 5), STEPS, CHECKS),
        (LATENT, 3, CHECKS),
        (LATENT, 5, CHECKS),
        (LATENT, STEPS, (1,)),
        (LATENT, STEPS, ()),
    ],
)
def test_a_trajectory_of_another_request_shape_is_refused(tmp_path: Path, wanted: tuple) -> None:
    write(tmp_path / "entry")
    with pytest.raises(EntryError):
        entry.open_trajectory(tmp_path / "entry", *wanted)


def retyped(name: str, dtype: torch.dtype):
    return lambda t: t.update({name: t[name].to(dtype)})


SIGNATURE_CHANGES = {
    "no state": lambda t: t.pop("state"),
    "no representation": lambda t: t.pop("representation"),
    "NaN": lambda t: t["state"].view(-1)[3].fill_(float("nan")),
    "infinity": lambda t: t["residual"].view(-1)[3].fill_(float("inf")),
    **{f"{name} as integers": retyped(name, torch.int16) for name in FAMILIES},
}


@pytest.mark.parametrize("change", SIGNATURE_CHANGES.values(), ids=SIGNATURE_CHANGES.keys())
def test_a_signature_with_other_contents_is_refused(tmp_path: Path, change) -> None:
    folder = tmp_path / "entry"
    write(folder)
    rewritten(folder, SIGNATURE_FILE, change)
    with pytest.raises(EntryError):
        entry.read_signature(folder)


EMBEDDING_CHANGES = {
    "missing": lambda t: t.pop("embedding"),
    "NaN": lambda t: t["embedding"][0].fill_(float("nan")),
    "integers": retyped("embedding", torch.int32),
}


@pytest.mark.parametrize("change", EMBEDDING_CHANGES.values(), ids=EMBEDDING_CHANGES.keys())
def test_a_text_embedding_with_other_contents_is_refused(tmp_path: Path, change) -> None:
    folder = tmp_path / "entry"
    write(folder)
    rewritten(folder, SIGNATURE_FILE, change)
    with pytest.raises(EntryError):
        entry.read_info(folder)


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "entry")
    with pytest.raises(FileExistsError):
        entry.write_entry(tmp_path / "entry", a_donor("entry", seed=3))


def test_a_whole_entry_is_verified(tmp_path: Path) -> None:
    donor = write(tmp_path / "entry")
    assert entry.verify_entry(tmp_path / "entry") == donor.info


def test_a_deleted_entry_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(EntryGone):
        entry.read_info(tmp_path / "entry")


PATHS = ["", ".", "..", "../one", "a/b", "a\\b", "/etc", "C:x", "a\0", "one\n", "x" * 65, "é", "a.b", 7, None]


@pytest.mark.parametrize("name", PATHS)
def test_no_name_of_an_entry_leads_out_of_its_folder(name: object) -> None:
    with pytest.raises(EntryError):
        entry.checked_id(name)


def test_a_file_that_is_cut_short_while_it_is_open_is_refused(tmp_path: Path) -> None:
    large = (2, 2, 40, 40)  # than what a read fetches ahead
    (tmp_path / "entry").mkdir()
    entry.write_entry(tmp_path / "entry", a_donor("entry", latent=large))
    stored = entry.open_trajectory(tmp_path / "entry", large, STEPS, CHECKS)
    with open(tmp_path / "entry" / TRAJECTORY_FILE, "r+b") as file:
        file.truncate(100)
    with pytest.raises(EntryError, match="cut short"):
        stored.guided(1)


def test_the_end_of_a_trajectory_is_told_once(tmp_path: Path) -> None:
    write(tmp_path / "entry")
    ends = []
    stored = entry.open_trajectory(tmp_path / "entry", LATENT, STEPS, CHECKS, lambda: ends.append(1))
    stored.close()
    stored.close()
    del stored
    assert ends == [1]


@pytest.mark.parametrize(
    ("preview", "kept"),
    [(b"\xff\xd8\xffpicture", True), (b"GIF89a", False), (b"", False), (b"\xff\xd8\xff" + b"x" * 65536, False)],
)
def test_only_a_small_jpeg_is_kept_as_preview(tmp_path: Path, preview: bytes, kept: bool) -> None:
    entry.write_entry(tmp_path, replace(a_donor(tmp_path.name), preview=preview))
    assert (tmp_path / PREVIEW_FILE).exists() == kept
    assert entry.verify_entry(tmp_path)


LAYOUTS = {
    "a shape below zero": lambda t: t.update(shape=[-2, 2, 4, 4]),
    "a shape of fractions": lambda t: t.update(shape=[2.0, 2, 4, 4]),
    "a shape of truth values": lambda t: t.update(shape=[True, 4, 4, 4]),
    "a larger shape": lambda t: t.update(shape=[1 << 40, 2, 4, 4]),
    "no shape": lambda t: t.pop("shape"),
    "another dtype": lambda t: t.update(dtype="BF16"),
    "a wider dtype": lambda t: t.update(dtype="F32"),
    "a dtype that is a list": lambda t: t.update(dtype=[]),
    "offsets past the end": lambda t: t.update(data_offsets=[t["data_offsets"][0] + 999, t["data_offsets"][1] + 999]),
    "offsets of another tensor": lambda t: t.update(data_offsets=[0, t["data_offsets"][1] - t["data_offsets"][0]]),
    "one offset": lambda t: t.update(data_offsets=[0]),
    "reversed offsets": lambda t: t.update(data_offsets=t["data_offsets"][::-1]),
}


@pytest.mark.parametrize("lie", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_that_lies_is_refused(tmp_path: Path, lie) -> None:
    write(tmp_path / "entry")
    path = tmp_path / "entry" / TRAJECTORY_FILE
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    layout = json.loads(data[8:end])
    lie(layout["guided.0001"])
    text = json.dumps(layout).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    with pytest.raises(EntryError):
        read(tmp_path / "entry")


@pytest.mark.parametrize(
    ("field", "value"),
    [("created", float("nan")), ("created", float("inf")), ("seconds", -1.0), ("seconds", "1"), ("seconds", 10**30),
     ("prompt", "\ud800"), ("prompt", {}), ("output", []), ("output", "\ud800"),
     ("seed", -1), ("seed", 1 << 64), ("seed", 1.0), ("seed", True), ("seed", "3")],
)  # fmt: skip
def test_header_values_that_no_catalog_could_hold_are_refused(field: str, value: object) -> None:
    header = {"key": {"seed": "1"}, "created": 1.0, "seconds": 2.0, "prompt": None, "output": None}
    assert entry._info("one", header).created == 1.0
    with pytest.raises(EntryError, match="header"):
        entry._info("one", {**header, field: value})
