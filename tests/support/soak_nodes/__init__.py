"""Custom nodes of the soak test: one makes a run fail half-way, one tells what the server's process holds."""

import gc
import os
import sys
from collections import Counter

import torch

# What a run of ours makes and must not leave behind.
OURS = ("ComfyRun", "Session", "ForwardPatches", "Store", "Trajectory", "EarlySignature", "StepPlan")


class SoakFault:
    """A model whose forward with this number, counted from 0 in every run, raises."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "forward": ("INT", {"default": 0})}}

    def patch(self, model, forward):
        def failing(executor, *args, **kwargs):
            count = []

            def fail(module, inputs):
                count.append(1)
                if len(count) > forward:
                    raise RuntimeError("the soak test asked for this error")

            hook = executor.class_obj.model_patcher.model.diffusion_model.head.register_forward_pre_hook(fail)
            try:
                return executor(*args, **kwargs)
            finally:
                hook.remove()

        model = model.clone()
        model.add_wrapper_with_key("outer_sample", "soak", failing)
        return (model,)


class SoakHeld:
    """What is alive after a run, and the state of the model it ran on."""

    RETURN_TYPES = ()
    FUNCTION = "look"
    OUTPUT_NODE = True
    CATEGORY = "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "latent": ("LATENT",)}}

    @classmethod
    def IS_CHANGED(cls, **inputs):
        return float("nan")

    def look(self, model, latent):
        _finish_writes()
        gc.collect()
        alive = gc.get_objects()
        ours = Counter(type(o).__name__ for o in alive if "carnator_core" in str(type(o).__module__))
        tensors = [o for o in alive if issubclass(type(o), torch.Tensor)]
        held = {
            "ours": {name: ours[name] for name in OURS if ours[name]},
            "tensors": len(tensors),
            "bytes": sum(t.numel() * t.element_size() for t in tensors),
            "gpu_bytes": torch.cuda.memory_allocated() if torch.cuda.is_available() else 0,
            "files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None,
            "model": _state(model),
        }
        return {"ui": {"held": [held]}}


def _finish_writes():
    """What is still being written is held on purpose."""
    for name, module in list(sys.modules.items()):
        if name.endswith("carnator_core.store.registry"):
            for store in module.open_stores():
                store.wait()


def _state(model):
    modules = list(model.model.modules())
    return {
        "options": str(model.model_options),
        "wrappers": str(model.wrappers),
        "callbacks": str(model.callbacks),
        "patches": sorted(map(str, [*model.patches, *model.object_patches, *model.backup])),
        "replaced": sorted(model.object_patches_backup),
        "attributes": sum(len(vars(m)) for m in modules),
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules),
    }


NODE_CLASS_MAPPINGS = {"SoakFault": SoakFault, "SoakHeld": SoakHeld}
