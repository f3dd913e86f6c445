"""Where the stores of this server live: its system user directory, which is not served over HTTP."""

from pathlib import Path


def store_root() -> Path:
    import folder_paths

    return Path(folder_paths.get_system_user_directory("carnator")) / "stores"
