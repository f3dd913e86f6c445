"""Helpers for tests. Imported as `support`: the name `tests` belongs to ComfyUI's tree."""
