"""The file of a certificate: JSON with a seal, a digest over all else, so that a change by hand is noticed.

The seal is no signature: whoever can write the file can seal it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .certificate import BROUGHT, Certificate
from .identity import digest
from .risk import Limit
from .settings import plan_hash
from .signature import FAMILIES
from .store.checks import Check, is_number, is_text, is_time, made, map_of, optional

FORMAT, SCHEMA = "carnator certificate", 1
MAX_BYTES = 64 << 10


class CertificateError(Exception):
    """A file that cannot be used as a certificate; its text is a sentence."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_share(value: Any) -> bool:
    return is_number(value) and 0.0 <= value <= 1.0


def _is_inner_share(value: Any) -> bool:
    return is_number(value) and 0.0 < value < 1.0


def _is_positive(value: Any) -> bool:
    return is_number(value) and value >= 0.0


def _row(*checks: Check) -> Check:
    """A list of as many values as there are checks."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _is_path(value: Any) -> bool:
    step = _row(optional(is_number), _is_count, _is_count)
    return isinstance(value, list) and all(map(step, value))


_CHECKS = {
    "created": is_time,
    "settings": map_of(is_text),
    "weights": map_of(_is_positive),
    "guards": map_of(_is_positive),
    "limit": optional(is_number),
    "path": _is_path,
    "accepted": _is_count,
    "unsafe": _is_count,
    "delta": _is_inner_share,
    "confidence": _is_inner_share,
    "clusters": _is_count,
    "development": _is_count,
    "coverage": _is_share,
    "by_kind": map_of(_row(_is_count, _is_count)),
    "estimand": is_text,
    "label_rule": is_text,
    "note": is_text,
}


def written(certificate: Certificate) -> bytes:
    """The contents of its file."""
    data = {"format": FORMAT, "schema": SCHEMA, **asdict(certificate), "bound": certificate.bound}
    data["path"] = [[_finite(step.limit), step.accepted, step.unsafe] for step in certificate.path]
    data["plan_hash"] = plan_hash(certificate.settings)
    return json.dumps({**data, "seal": digest(data)}, indent=2, allow_nan=False).encode()


def _finite(limit: float) -> float | None:
    return limit if math.isfinite(limit) else None


def read_certificate(path: Path) -> Certificate:
    """Raises CertificateError for everything that is no certificate as it was written, and OSError."""
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    return parsed(data)


def parsed(text: bytes) -> Certificate:
    """The certificate in the contents of a file. Raises CertificateError."""
    if len(text) > MAX_BYTES:
        raise CertificateError(f"the file is too large (over {MAX_BYTES >> 10} KB)")
    try:
        data = json.loads(text.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CertificateError("the file is no plain JSON") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CertificateError("the file is no certificate of Carnator")
    if data.get("schema") != SCHEMA:
        raise CertificateError(f"the certificate has another format (schema {data.get('schema')!r:.20}, not {SCHEMA})")
    if data.pop("seal", None) != digest(data):
        raise CertificateError("the certificate was changed after it was made")
    try:
        found = made(Certificate, data, _CHECKS)
        path = tuple(Limit(math.inf if limit is None else limit, *counts) for limit, *counts in data["path"])
        found = replace(found, path=path, by_kind={kind: tuple(counts) for kind, counts in found.by_kind.items()})
    except (ValueError, TypeError) as error:
        raise CertificateError(f"the certificate is incomplete ({error})") from error
    _check_sense(found, data)
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _check_sense(found: Certificate, data: dict[str, Any]) -> None:
    """What a seal cannot tell: whether the numbers fit each other."""
    loosest = Limit(math.inf if found.limit is None else found.limit, found.accepted, found.unsafe)
    for good, what in (
        (found.weights.keys() == found.guards.keys() and found.weights.keys() <= set(FAMILIES), "its families"),
        (sum(found.weights.values()) > 0, "its weights"),
        (loosest in found.path, "the limits that were tested"),
        (found.unsafe <= found.accepted <= found.clusters, "its counts"),
        (found.unsafe <= found.accepted and found.bound <= found.delta, "its bound"),
        (data.get("plan_hash") == plan_hash(found.settings), "its plan hash"),
        (all(_is_setting(found.settings.get(name)) for name in (*BROUGHT, "max region percent")), "its settings"),
    ):
        if not good:
            raise CertificateError(f"the certificate contradicts itself in {what}")


def _is_setting(text: str | None) -> bool:
    """Whether a setting is a number that can be used."""
    try:
        return text is not None and 0.0 <= float(text) < math.inf
    except ValueError:
        return False
