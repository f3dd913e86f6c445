"""Where the stores of this server live: its system user directory, which is not served over HTTP."""

from pathlib import Path


def store_root() -> Path:
    import folder_paths

    if hasattr(folder_paths, "get_system_user_directory"):  # ComfyUI 0.3.75
        return Path(folder_paths.get_system_user_directory("carnator")) / "stores"
    return Path(folder_paths.get_user_directory()) / "__carnator" / "stores"
