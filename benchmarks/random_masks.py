"""Two nodes for the bench's own server: between them connectivity is chosen at random instead of by mass.

``BenchRandomMasks`` hands the MODEL on untouched, so that nothing about the request differs, and replaces the two rules
inside the pack's ``connectivity`` module. ``BenchMeasuredMasks`` takes the latent behind the sampler and restores them.
Every row keeps as many blocks as the rule would have kept, and the block itself.
"""

import importlib
import sys

import torch

ARM, DISARM = "BenchRandomMasks", "BenchMeasuredMasks"
INPUTS = {ARM: "model", DISARM: "latent"}
RULES = ("keep_by_density", "keep_by_mass")
PACKAGE = ".carnator_core"  # the host imports packs under the path of their folder


def random_like(mask, generator):
    """Random mask that keeps as many per row as ``mask`` [..., n, n] bool, the diagonal among them."""
    scores = torch.rand(mask.shape, generator=generator).to(mask.device)
    scores += 2.0 * torch.eye(*mask.shape[-2:], device=mask.device)
    ranks = scores.argsort(-1, descending=True).argsort(-1)
    return ranks < mask.sum(-1, keepdim=True)


class Replaced:
    """The rules of a module, replaced until ``restore``. Counts how often they were asked since the server started."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.originals, self.selections = {}, 0

    def replace(self, module):
        self.restore()
        self.originals = {name: (module, getattr(module, name)) for name in RULES}
        for name, (_, rule) in self.originals.items():
            setattr(module, name, self._random(rule))

    def restore(self):
        for name, (module, rule) in self.originals.items():
            setattr(module, name, rule)
        self.originals = {}

    def _random(self, rule):
        def chosen(mass, share):
            self.selections += 1
            return random_like(rule(mass, share), self.generator)

        return chosen


REPLACED = Replaced()


class RandomMasks:
    CATEGORY, FUNCTION, RETURN_TYPES = "bench", "arm", ("MODEL",)

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")  # never answered from the host's cache

    def arm(self, model):
        (package,) = [name for name in sys.modules if name.endswith(PACKAGE)]
        REPLACED.replace(importlib.import_module(f"{package}.connectivity"))
        return (model,)


class MeasuredMasks:
    CATEGORY, FUNCTION, RETURN_TYPES, OUTPUT_NODE = "bench", "disarm", ("LATENT",), True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"latent": ("LATENT",)}}

    def disarm(self, latent):
        REPLACED.restore()
        return {"ui": {"selections": [REPLACED.selections]}, "result": (latent,)}


NODE_CLASS_MAPPINGS = {ARM: RandomMasks, DISARM: MeasuredMasks}
