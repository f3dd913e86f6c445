"""The file of a certificate: the same after a round trip, and a sentence for every file that is none."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carnator_core.certificate import BROUGHT, TOLERATED
from carnator_core.certificate_file import MAX_BYTES, CertificateError, parsed, read_certificate, written
from carnator_core.identity import digest
from carnator_core.signature import Discrepancies
from support.certificates import a_certificate, some_settings

CERTIFICATE = a_certificate(count=600, unsafe=60)
LOOSE = a_certificate()


def refused(text: bytes) -> str:
    with pytest.raises(CertificateError) as caught:
        parsed(text)
    return str(caught.value)


def sealed(**changes) -> bytes:
    """With other contents and a seal that fits them."""
    data = {**json.loads(written(CERTIFICATE)), **changes}
    data.pop("seal")
    return json.dumps({**data, "seal": digest(data)}).encode()


@pytest.mark.parametrize("certificate", [CERTIFICATE, LOOSE], ids=["with a limit", "guards alone"])
def test_a_certificate_survives_its_file(tmp_path: Path, certificate) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(written(certificate))
    found = read_certificate(path)
    assert found == certificate and found.id == certificate.id


def test_its_file_says_in_plain_json_what_it_claims() -> None:
    data = json.loads(written(CERTIFICATE))
    assert data["bound"] == CERTIFICATE.bound and data["accepted"] == CERTIFICATE.accepted
    assert data["path"][-1][0] is None and data["limit"] == CERTIFICATE.limit, "the guards alone failed"
    assert data["estimand"].startswith("the share of unsafe reuse") and data["label_rule"].startswith("unsafe:")


@pytest.mark.parametrize(
    "changed",
    [("accepted", 9999), ("limit", 5.0), ("delta", 0.2), ("note", "better"), ("guards", {}), ("unknown", 1)],
)
def test_a_change_by_hand_is_noticed(changed: tuple) -> None:
    data = json.loads(written(CERTIFICATE))
    data[changed[0]] = changed[1]
    assert refused(json.dumps(data).encode()) == "the certificate was changed after it was made"


def test_a_certificate_without_a_seal_is_one_that_was_changed() -> None:
    data = json.loads(written(CERTIFICATE))
    del data["seal"]
    assert "was changed" in refused(json.dumps(data).encode())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no plain JSON"),
        (b"\xff\xfe", "no plain JSON"),
        (b"{", "no plain JSON"),
        (b"[" * 50_000, "no plain JSON"),
        (b'{"format": NaN}', "no plain JSON"),
        (b'{"format": Infinity}', "no plain JSON"),
        (b"[]", "no certificate of Carnator"),
        (b"null", "no certificate of Carnator"),
        (b"{}", "no certificate of Carnator"),
        (b" " * (MAX_BYTES + 1), "too large (over 64 KB)"),
    ],
)
def test_what_is_no_certificate_at_all(text: bytes, said: str) -> None:
    assert said in refused(text)


def test_a_long_schema_is_cut_short() -> None:
    assert len(refused(sealed(schema="x" * 50_000))) < 100


def test_what_lies_however_far_beyond_a_limit_is_refused() -> None:
    far = dataclasses.replace(CERTIFICATE, limit=-1e5)
    assert far.excess(Discrepancies(*[0.01] * 4)) > 1e300 and not far.covers(Discrepancies(*[0.01] * 4))


@pytest.mark.parametrize("schema", [0, 2, "1", None])
def test_another_schema_is_told(schema) -> None:
    assert "has another format (schema" in refused(sealed(schema=schema))


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": -1},
        {"accepted": 77.0},
        {"accepted": True},
        {"limit": "0.5"},
        {"weights": {"state": -0.5}},
        {"weights": None},
        {"delta": 1.5},
        {"delta": 1.0},
        {"delta": 0.0},
        {"confidence": 0.0},
        {"created": 1e20},
        {"settings": {"steps": 20}},
        {"settings": [1]},
        {"path": [[0.5, 77]]},
        {"path": "long"},
        {"by_kind": {"colour": 3}},
        {"note": 7},
        {"created": None},
        {"label_rule": "x" * 2000},
    ],
)
def test_a_field_of_another_kind_is_told_by_its_name(changes: dict) -> None:
    (name,) = changes
    assert refused(sealed(**changes)) == f"the certificate is incomplete ({name} is not as it was written)"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"guards": {"state": 0.5}}, "its families"),
        ({"weights": dict.fromkeys(CERTIFICATE.weights, 0.0)}, "its weights"),
        (
            {"weights": {**CERTIFICATE.weights, "colour": 0.1}, "guards": {**CERTIFICATE.guards, "colour": 1.0}},
            "families",
        ),
        ({"limit": 0.123}, "the limits that were tested"),
        ({"clusters": 3}, "its counts"),
        ({"unsafe": 1000, "path": [[None, CERTIFICATE.accepted, 1000]], "limit": None}, "its counts"),
        ({"delta": 0.001}, "its bound"),
        ({"plan_hash": "0" * 32}, "its plan hash"),
        ({"settings": {"steps": "20"}}, "its plan hash"),
    ],
)
def test_numbers_that_contradict_each_other_are_told(changes: dict, said: str) -> None:
    assert refused(sealed(**changes)).startswith("the certificate contradicts itself in ") and said in refused(
        sealed(**changes)
    )


@pytest.mark.parametrize("name", [*BROUGHT, "max region percent"])
@pytest.mark.parametrize("value", ["", "wide", "nan", "inf", "-1"])
def test_settings_that_are_used_as_numbers_must_be_numbers(name: str, value: str) -> None:
    settings = {**CERTIFICATE.settings, name: value}
    assert refused(sealed(settings=settings, plan_hash=digest(settings))).endswith("in its settings")


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(json.loads(written(CERTIFICATE)))), json_values)
def test_no_contents_of_a_field_crash_a_reader(name: str, value) -> None:
    try:
        assert parsed(sealed(**{name: value})).bound <= 0.05
    except CertificateError as error:
        assert str(error).startswith("the ")


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_no_damage_of_a_file_crashes_a_reader(noise: bytes, at: int) -> None:
    text = bytearray(written(CERTIFICATE))
    text[at : at + len(noise)] = noise
    try:
        assert parsed(bytes(text)) == CERTIFICATE
    except CertificateError as error:
        assert str(error).startswith("the ")


# -- what it is bound to -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(some_settings()))
def test_a_certificate_speaks_of_its_own_settings_only(name: str) -> None:
    found = CERTIFICATE.mismatch({**CERTIFICATE.settings, name: "another"})
    assert found == ([] if name in TOLERATED else [name])
    absent = {n: v for n, v in CERTIFICATE.settings.items() if n != name}
    assert CERTIFICATE.mismatch(absent) == ([] if name in TOLERATED else [name])


def test_other_software_is_told_and_no_mismatch() -> None:
    certificate = a_certificate(some_settings(software_or_device="one"))
    other = some_settings(software_or_device="two")
    assert certificate.mismatch(other) == []
    assert certificate.sentence(other).endswith(", measured on other software or another device")
    assert certificate.sentence(certificate.settings) == certificate.sentence()


def test_what_it_brings_along_are_the_thresholds_that_its_pairs_had() -> None:
    certificate = a_certificate(some_settings(effective_region_threshold="0.23"))
    assert certificate.limits.region == 0.23
    assert certificate.limits.gate.near_empty_representation == 0.0005
    assert certificate.limits.gate.state == certificate.guards["state"]
    absent = a_certificate(count=100, accepted_by=None)
    assert all(math.isfinite(guard) for guard in absent.guards.values())


def test_the_id_is_that_of_the_contents() -> None:
    assert dataclasses.replace(CERTIFICATE, note="other").id != CERTIFICATE.id
    assert CERTIFICATE.id.isalnum() and len(CERTIFICATE.id) == 16
