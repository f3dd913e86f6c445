"""A real ComfyUI server as a child process, with the pack linked into its custom nodes."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
from pathlib import Path

from .base_directory import PACK_FOLDER, BaseDirectory
from .bootstrap import Install
from .client import ComfyClient
from .environment import clean_environ

START_SECONDS = 180.0
STOP_SECONDS = 10.0


class ServerFailed(Exception):
    """The server did not start, or died. The message ends with the last lines of its log."""


class ComfyServer(ComfyClient):
    """Use as a context manager, or call start() and stop(). `base` is kept; who made it removes it."""

    def __init__(
        self,
        install: Install,
        base: Path,
        *,
        cpu: bool = True,
        with_pack: bool = True,
        arguments: tuple[str, ...] = (),
        environ: dict[str, str] | None = None,
    ) -> None:
        self.install = install
        self.base = BaseDirectory(base)
        self.cpu = cpu
        self.with_pack = with_pack
        self.arguments = arguments
        self.environ = environ or {}
        self.process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        super().__init__("")

    def __enter__(self) -> ComfyServer:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> ComfyServer:
        self.base.prepare(self.with_pack)
        port = self._port = self._port or _free_port()  # the same one after a restart
        self.address = f"127.0.0.1:{port}"
        with self.base.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command(port),
                cwd=self.install.comfyui,
                env={**clean_environ(), **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait_until_ready()
            self._check_pack()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def log_text(self) -> str:
        return self.base.log.read_text(encoding="utf-8", errors="replace")

    def _command(self, port: int) -> list[str]:
        command = [str(self.install.python), "main.py", "--listen", "127.0.0.1", "--port", str(port)]
        command += ["--base-directory", str(self.base.path), "--database-url", "sqlite:///:memory:"]
        command += ["--extra-model-paths-config", str(self.base.extra_models)]
        command += ["--disable-auto-launch", "--disable-api-nodes", "--preview-method", "latent2rgb"]
        if self.cpu:
            command += ["--cpu", "--use-pytorch-cross-attention"]
        return [*command, *self.arguments]

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerFailed(f"ComfyUI ended while starting:\n{self._log_tail()}")
            try:
                self.get("/system_stats")
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise ServerFailed(f"ComfyUI did not answer within {START_SECONDS:.0f} s:\n{self._log_tail()}")

    def _check_pack(self) -> None:
        """ComfyUI starts without a custom node that fails to import; for us that is a failure."""
        lines = self.log_text().splitlines()
        if any("IMPORT FAILED" in line and PACK_FOLDER in line for line in lines):
            cause = [line for line in lines if PACK_FOLDER in line and ("Cannot import" in line or "Error" in line)]
            raise ServerFailed("\n".join(["ComfyUI could not import the pack:", *cause]))

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-15:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def has_accelerator() -> bool:
    """Whether ComfyUI can start without --cpu on this machine."""
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
