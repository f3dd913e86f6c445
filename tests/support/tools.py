"""What other people check node packs with, as programs to call."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scripts.testbed.environment import clean_environ

from .paths import ROOT


@dataclass(frozen=True)
class Tool:
    """tool(program, *arguments, folder): runs it with a home folder of its own, where it sends nothing anywhere."""

    programs: Path
    home: Path

    def __call__(self, program: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
        home = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home), "DO_NOT_TRACK": "1"}
        environ = {**clean_environ(), **home}
        environ["PATH"] = os.pathsep.join([str(self.programs), environ["PATH"]])
        command = [str(self.programs / program), *arguments]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120)
