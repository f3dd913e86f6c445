"""Runs pip with its output in a log, and turns the usual failures into a sentence."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from .console import Stop

# Worth showing while a long installation runs.
SHOWN = ("Collecting ", "Downloading ", "Installing collected", "Building ")

NO_SPACE = ("No space left on device", "Errno 28", "Disk quota exceeded")
NO_NETWORK = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "getaddrinfo failed",
    "Network is unreachable",
    "Connection refused",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "ProxyError",
    "SSLError",
    "Could not fetch URL",
)
NO_VERSION = ("No matching distribution found", "Could not find a version")


def pip(
    python: Path, arguments: list[str], log: Path, busy_with: Callable[[str], None], environ: dict[str, str]
) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    command += ["--progress-bar", "off"]
    output: list[str] = []
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environ,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                file.write(line)
                output.append(line)
                if line.lstrip().startswith(SHOWN):
                    busy_with(line.strip())
        except BaseException:
            process.kill()  # a full disk or Ctrl-C here must not leave pip at work
            raise
    if process.wait() != 0:
        raise Stop(_sentence(output, log))


def _sentence(output: list[str], log: Path) -> str:
    def seen(signs: tuple[str, ...]) -> bool:
        return any(sign in line for line in output for sign in signs)

    if seen(NO_SPACE):
        return "the disk is full; free some space and start again."
    if seen(NO_NETWORK):
        return "the Python package index cannot be reached; check the network (or proxy) and start again."
    errors = [line.strip() for line in output if line.startswith("ERROR:")]
    reason = errors[-1] if errors else "pip failed without a reason"
    if seen(NO_VERSION):
        return f"a package is not to be had for this Python or platform ({reason}); see {log}."
    return f"{reason}; see {log}."
