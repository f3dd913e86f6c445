"""A real ComfyUI for the demo and the tests: its environment, its server and a client."""
