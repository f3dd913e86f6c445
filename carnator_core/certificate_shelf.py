"""The certificates that a store and the pack hold: which one speaks of a request, and whether it still holds.

A run looks here once, before its first step. Files are read again only after they changed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .certificate import BROUGHT, Certificate
from .certificate_file import CertificateError, read_certificate, written
from .risk import LAPSE_AT, Components, strongest_evidence
from .signature import FAMILIES, Discrepancies
from .store.disk import Disk
from .store.verdicts import ARTIST, Verdict, VerdictLog
from .store.verdicts import FILE as VERDICTS

log = logging.getLogger("carnator")

FOLDER = "certificates"
SHIPPED = Path(__file__).parent / FOLDER
MODEL = "model weights"
MOST_FILES = 64
MOST_TOLD = 3  # of the files that are bad
NONE_YET = "not certified for these settings (there is no certificate yet)"

Stamp = tuple[int, int]


@dataclass(frozen=True)
class _Log:
    """Verdicts as they were read, and what they said of certificates, by id."""

    stamp: Stamp
    verdicts: list[Verdict]
    lapses: dict[str, str | None]


_lock = threading.Lock()
_files: dict[Path, tuple[Stamp, Certificate | str]] = {}
_logs: dict[Path, _Log] = {}


@dataclass(frozen=True)
class Standing:
    """The certificate that speaks of a request, or None, and a sentence about it in either case."""

    certificate: Certificate | None
    sentence: str


def standing(folder: Path, settings: dict[str, str]) -> Standing:
    """Look for a certificate of these settings, the store's own before the shipped ones, the newest first.

    What a certificate brings along itself (``BROUGHT``) need not be equal.

    Args:
        folder: of the store.
    """
    found, bad = _on_shelves(folder, settings.get(MODEL))
    fitting = [certificate for certificate in found if set(certificate.mismatch(settings)) <= set(BROUGHT)]
    lapses = []
    for certificate in fitting:
        lapse = _known_lapse_of(certificate, folder)
        if lapse is None:
            return Standing(certificate, certificate.sentence(settings))
        lapses.append(lapse)
    if lapses:
        why = f"not certified: {lapses[0]}"
    elif found:
        nearest = min(found, key=lambda certificate: len(certificate.mismatch(settings)))
        names = [name for name in nearest.mismatch(settings) if name not in BROUGHT]
        why = f"not certified for these settings (differs in {', '.join(names)})"
    else:
        why = NONE_YET
    others = [f"and {len(bad) - MOST_TOLD} other files"] if len(bad) > MOST_TOLD else []
    return Standing(None, "; ".join([why, *bad[:MOST_TOLD], *others]))


def _on_shelves(store: Path, model: str | None) -> tuple[list[Certificate], list[str]]:
    """All certificates that can be read, in the order in which they are tried, and what is wrong with the others.

    Of the shipped ones only those of this model: to the owner of another one they are no news.
    """
    good, bad = [], []
    for folder in (store / FOLDER, SHIPPED):
        found = []
        try:
            listed = _listed(folder)
        except OSError as error:
            bad.append(f"{folder.name}: {error.strerror}")
            continue
        for path, stamp in listed:
            read = _read(path, stamp)
            if isinstance(read, Certificate):
                if folder != SHIPPED or read.settings.get(MODEL) == model:
                    found.append(read)
            else:
                bad.append(f"{_shown(path)}: {read}")
        good += sorted(found, key=lambda certificate: (-certificate.created, certificate.id))
    return good, bad


def _listed(folder: Path) -> list[tuple[Path, Stamp]]:
    """The newest files of a folder that may be certificates. Raises OSError."""
    found = []
    try:
        items = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    for item in items:
        with suppress(OSError):  # it went away meanwhile, or is a link to itself
            if item.name.endswith(".json") and item.is_file():
                told = item.stat()
                found.append((Path(item.path), (told.st_mtime_ns, told.st_size)))
    return sorted(found, key=lambda file: (-file[1][0], file[0].name))[:MOST_FILES]


def _read(path: Path, stamp: Stamp) -> Certificate | str:
    with _lock:
        kept = _files.get(path)
    if kept is not None and kept[0] == stamp:
        return kept[1]
    try:
        read: Certificate | str = read_certificate(path)
    except (CertificateError, OSError) as error:
        read = getattr(error, "strerror", None) or str(error)
        log.warning("Carnator: %s: %s", _shown(path), read)
    with _lock:
        _files[path] = stamp, read
    return read


def _shown(path: Path) -> str:
    """Its name as text: a name on a disk need not be any, and may hold line ends."""
    return "".join(letter if letter.isprintable() else "?" for letter in path.name)


def verdicts_of(folder: Path) -> list[Verdict]:
    """The verdicts of a store, in the order in which they were given. Raises OSError."""
    return _log_of(folder).verdicts


def _log_of(folder: Path) -> _Log:
    path = folder / VERDICTS
    try:
        told = path.stat()
        stamp = told.st_mtime_ns, told.st_size
        with _lock:
            kept = _logs.get(path)
        if kept is None or kept.stamp != stamp:
            kept = _Log(stamp, VerdictLog(folder).read(), {})
            with _lock:
                _logs[path] = kept
        return kept
    except FileNotFoundError:
        return _Log((0, 0), [], {})


def _known_lapse_of(certificate: Certificate, folder: Path) -> str | None:
    """Why a certificate does not hold now, or None: whether it does must be known."""
    if certificate.created > time.time():
        return f"the certificate is of {_day(certificate.created)}, which is later than now by this computer's clock"
    try:
        kept = _log_of(folder)
    except OSError as error:
        return f"the verdicts, which may speak against its certificate, cannot be read: {error.strerror or error}"
    if certificate.id not in kept.lapses:
        kept.lapses[certificate.id] = lapse_of(certificate, kept.verdicts)
    return kept.lapses[certificate.id]


def lapse_of(certificate: Certificate, verdicts: Iterable[Verdict]) -> str | None:
    """Why a certificate does not hold any more, or None.

    Only verdicts count that were given after it on reuse that it accepts, each pair once. Of audits that share a donor
    or a request the first one counts; what people volunteer counts as it comes (see ``risk.strongest_evidence``).
    """
    seen: set[tuple[str, str]] = set()
    audited, roots = Components(), set()
    counted = []
    for verdict in verdicts:
        pair = verdict.target, verdict.donor
        if pair in seen or not _speaks_of(verdict, certificate):
            continue
        seen.add(pair)
        audit = verdict.origin != ARTIST
        if audit:
            before = {audited.root(name) for name in pair} & roots
            roots = {audited.root(name) for name in (*roots, audited.join(pair))}
            if before:
                continue
        counted.append((not verdict.safe, audit))
    evidence = strongest_evidence(counted, certificate.delta)
    if evidence < LAPSE_AT:
        return None
    unsafe = sum(bad for bad, _ in counted)
    return (
        f"the certificate of {_day(certificate.created)} has lapsed ({unsafe} of {len(counted)} later verdicts are "
        f"unsafe, evidence {min(evidence, 1e9):.0f}, from {LAPSE_AT:.0f} on it does not hold)"
    )


def _speaks_of(verdict: Verdict, certificate: Certificate) -> bool:
    found = Discrepancies(**{family: verdict.discrepancies.get(family) for family in FAMILIES})
    later = verdict.when > certificate.created
    return later and not certificate.mismatch(verdict.settings) and certificate.covers(found)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def save(disk: Disk, certificate: Certificate) -> Path:
    """Put a certificate on the shelf of a store. Raises OSError."""
    name = f"{FOLDER}/{certificate.id}.json"
    (disk.base / FOLDER).mkdir(exist_ok=True)
    with disk.staging_folder() as folder:
        file = folder / "certificate"
        with open(file, "xb") as opened:
            opened.write(written(certificate))
            opened.flush()
            os.fsync(opened.fileno())
        disk.put(file, name)
    return disk.base / name
