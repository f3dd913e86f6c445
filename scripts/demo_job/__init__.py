"""The main job of the demo: a series of prompts in one server, each with Carnator and with KSampler."""
