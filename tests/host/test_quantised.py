"""Weights that are not plain floating-point tensors: fp8, scaled fp8, and layers that dequantise on the fly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


def fp8(tiny, tmp_path: Path) -> Any:
    """As the node UNETLoader does with weight_dtype fp8_e4m3fn."""
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(tiny.checkpoint), model_options={"dtype": torch.float8_e4m3fn})


def scaled_fp8(tiny, tmp_path: Path) -> Any:
    """A checkpoint with fp8 weights and one scale per layer."""
    import comfy.sd
    from safetensors.torch import load_file, save_file

    file = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, value in load_file(tiny.checkpoint).items():
        if value.ndim == 2 and name.startswith("blocks"):
            scale = value.abs().max() / 448.0
            file[name.removesuffix("weight") + "scale_weight"] = scale
            value = (value / scale).to(torch.float8_e4m3fn)
        file[name] = value
    save_file(file, tmp_path / "scaled.safetensors")
    return comfy.sd.load_diffusion_model(str(tmp_path / "scaled.safetensors"))


class PackedTensor(torch.Tensor):
    """Eight-bit values that present the shape of the weight they stand for."""

    @property
    def shape(self):
        return torch.Size((self.size(0), self.size(1) - 4))


def packed(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] → [out, in + 4] uint8: values around 128, and each row's float32 scale behind them."""
    scale = weight.abs().amax(dim=1, keepdim=True).float() / 127
    values = ((weight / scale).round() + 128).to(torch.uint8)
    return torch.cat([values, scale.contiguous().view(torch.uint8)], dim=1)


def unpacked(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    data = data.as_subclass(torch.Tensor)
    values, scale = data[:, :-4], data[:, -4:].contiguous().view(torch.float32)
    return ((values.float() - 128) * scale).to(dtype)


def packed_operations():
    import comfy.ops

    class Operations(comfy.ops.manual_cast):
        class Linear(comfy.ops.manual_cast.Linear):
            """Keeps its weight packed, shows a stand-in in its state dict and unpacks it at every call."""

            def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
                data = packed(state_dict[f"{prefix}weight"]).as_subclass(PackedTensor)
                self.weight = torch.nn.Parameter(data, requires_grad=False)
                self.bias = torch.nn.Parameter(state_dict[f"{prefix}bias"], requires_grad=False)

            def _save_to_state_dict(self, destination, prefix, keep_vars):
                destination[f"{prefix}weight"] = torch.empty(self.weight.shape, device="meta")
                destination[f"{prefix}bias"] = torch.empty(self.bias.shape, device="meta")

            def forward_comfy_cast_weights(self, x):
                return torch.nn.functional.linear(x, unpacked(self.weight, x.dtype), self.bias.to(x))

    return Operations


def dequantised_on_the_fly(tiny, tmp_path: Path) -> Any:
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(tiny.checkpoint), model_options={"custom_operations": packed_operations()})


KINDS = {"fp8": fp8, "scaled fp8": scaled_fp8, "dequantised on the fly": dequantised_on_the_fly}


@pytest.fixture(params=KINDS)
def model(tiny, tmp_path: Path, request):
    with torch.inference_mode():  # as ComfyUI executes nodes
        return KINDS[request.param](tiny, tmp_path)


def test_its_own_weights_are_read_and_not_a_stand_in(tiny, model) -> None:
    from carnator_core.hosts.comfy_identity import base_weights

    before = base_weights(model)
    assert before != base_weights(tiny.model)
    weight = model.model.diffusion_model.blocks[2].self_attn.k.weight
    if hasattr(weight, "__tensor_flatten__"):  # newer versions wrap fp8 values and scales in one tensor class
        weight = getattr(weight, weight.__tensor_flatten__()[0][0])
    with torch.inference_mode():
        weight.as_subclass(torch.Tensor).data.view(torch.uint8)[3:].bitwise_xor_(1)
    assert base_weights(model) != before


def test_a_miss_is_stock_and_the_same_prompt_again_is_a_hit(tiny, far, tmp_path: Path, model) -> None:
    stock, miss = tiny.reuse(tmp_path, tiny.call, model)
    assert miss.report.decision.value == "miss", miss.report.status()
    assert torch.equal(stock, tiny.call(model))
    result, run = tiny.reuse(tmp_path, tiny.call, model)
    assert run.report.decision.value == "hit", run.report.status()
    assert far(result, stock) < 2e-3


def test_a_region_of_everything_is_the_dense_run(tiny, far, tmp_path: Path, model) -> None:
    tiny.reuse(tmp_path, tiny.call, model)
    other = tiny.call.but(positive=tiny.near(tiny.call.positive, 0.5))
    options = tiny.options(region_threshold=0.0, max_region_percent=100.0, guidance_interval=1)
    result, run = tiny.reuse(tmp_path, other, model, options)
    assert run.report.decision.value == "hit" and run.report.region_share == 1.0, run.report.status()
    assert far(result, other(model)) < 1e-5


def test_a_lora_on_top_is_part_of_the_key(tiny, tmp_path: Path, model) -> None:
    tiny.reuse(tmp_path, tiny.call, model)
    patched = model.clone()
    key = "diffusion_model.blocks.0.self_attn.norm_q.weight"  # in every kind a plain tensor
    assert patched.add_patches({key: ("diff", (torch.full((256,), 0.5),))}, 1.0) == [key]
    result, run = tiny.reuse(tmp_path, tiny.call, patched)
    assert run.report.reason.sentence.endswith("differs in: LoRA or weight patches"), run.report.status()
    assert torch.equal(result, tiny.call(patched))
