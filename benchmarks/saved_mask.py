"""A node for the bench's own server: saves a MASK as it is."""

import uuid
from pathlib import Path

from safetensors.torch import save_file

NODE = "BenchSavedMask"


class SavedMask:
    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_NODE = "bench", "save", (), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"mask": ("MASK",)}}

    def save(self, mask):
        import folder_paths  # the host's

        name = f"{uuid.uuid4().hex}.mask"
        save_file({"mask": mask.float().cpu().contiguous()}, Path(folder_paths.get_output_directory()) / name)
        return {"ui": {"masks": [{"filename": name, "subfolder": "", "type": "output"}]}}


NODE_CLASS_MAPPINGS = {NODE: SavedMask}
