"""The folder that one server run owns: its models, custom nodes, output and user settings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from .environment import ROOT

PACK_FOLDER = "ComfyUI-Carnator"
DEMO_MODELS = ROOT / "demo" / "models"
MODEL_FOLDERS = ("diffusion_models", "vae", "text_encoders")

# Without this the first visit opens a template dialog that swallows clicks.
USER_SETTINGS = {"Comfy.TutorialCompleted": True}

NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "demo_output", "tests", "scripts", "benchmarks", "*.mp4")


class BaseDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.models = self.path / "models"
        self.output = self.path / "output"
        self.temp = self.path / "temp"
        self.user = self.path / "user"
        self.log = self.path / "server.log"
        self.extra_models = self.path / "extra_model_paths.json"

    def prepare(self, with_pack: bool = True) -> None:
        for folder in ("custom_nodes", "models", "input", "output", "user/default"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        settings = self.user / "default" / "comfy.settings.json"
        if not settings.exists():
            settings.write_text(json.dumps(USER_SETTINGS))
        # ComfyUI reads this file as YAML, of which JSON is a part.
        folders = {"base_path": str(DEMO_MODELS), **{name: name for name in MODEL_FOLDERS}}
        self.extra_models.write_text(json.dumps({"carnator_demo": folders}))
        if with_pack:
            self._link_pack()

    def file(self, item: dict[str, str]) -> Path:
        """The file behind an entry of a node's output, such as {"filename", "subfolder", "type"}."""
        root = {"output": self.output, "temp": self.temp, "input": self.path / "input"}[item["type"]]
        return root / item.get("subfolder", "") / item["filename"]

    def _link_pack(self) -> None:
        link = self.path / "custom_nodes" / PACK_FOLDER
        if link.is_symlink():
            link.unlink()
        try:
            link.symlink_to(ROOT, target_is_directory=True)
        except OSError:
            if os.name != "nt":
                raise
            # Windows gives symlinks to administrators only. A copy is safer to remove than a junction.
            shutil.rmtree(link, ignore_errors=True)
            shutil.copytree(ROOT, link, ignore=NOT_COPIED)
