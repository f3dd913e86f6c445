"""What the artist sees: ComfyUI nodes without state."""
