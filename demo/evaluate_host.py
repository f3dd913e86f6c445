"""Confirms the accuracy through stock ComfyUI nodes on the CPU, and adds it to the results.

python3 -m demo.evaluate_host --comfyui PATH   (in an environment in which that ComfyUI runs)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .evaluate import RESULTS, accuracy, requests
from .grammar import ATTRIBUTES
from .sampling import CFG, SHIFT, STEPS
from .scorer import Scorer
from .sheet import contact_sheet

ROOT = Path(__file__).resolve().parents[1]


class StockGraph:
    """UNETLoader, VAELoader, ModelSamplingSD3, CLIPTextEncode, KSampler and VAEDecode, in this process."""

    def __init__(self, comfyui: Path) -> None:
        sys.path[:] = [str(comfyui), *(p for p in sys.path if Path(p or ".").resolve() != ROOT), str(ROOT)]
        from comfy.cli_args import args

        args.cpu = True
        import folder_paths
        from comfy_extras.nodes_model_advanced import ModelSamplingSD3

        import nodes

        for kind in ("diffusion_models", "vae"):
            folder_paths.add_model_folder_path(kind, str(ROOT / "demo" / "models" / kind))
        (model,) = nodes.UNETLoader().load_unet("carnator_demo_wan.safetensors", "default")
        (self.model,) = ModelSamplingSD3().patch(model, SHIFT)
        (self.vae,) = nodes.VAELoader().load_vae("carnator_demo_vae.safetensors")
        self.nodes, self.clip = nodes, self.text_encoder()

    @staticmethod
    def text_encoder() -> Any:
        """The CLIP of this pack's node, the pack loaded as ComfyUI loads it."""
        name = "carnator_pack"
        spec = importlib.util.spec_from_file_location(
            name, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return importlib.import_module(f"{name}.nodes.demo_text_encoder").CarnatorDemoTextEncoder.execute().args[0]

    @torch.inference_mode()
    def __call__(self, text: str, seed: int) -> tuple[Tensor, float, float]:
        """Video [17, 256, 256, 3] in [0, 1], seconds of sampling, seconds of decoding."""
        encode = self.nodes.CLIPTextEncode().encode
        empty = {"samples": torch.zeros(1, 16, 5, 32, 32)}
        began = time.monotonic()
        (latent,) = self.nodes.KSampler().sample(
            self.model,
            seed,
            STEPS,
            CFG,
            "euler",
            "simple",
            encode(self.clip, text)[0],
            encode(self.clip, "")[0],
            empty,
        )
        middle = time.monotonic()
        (video,) = self.nodes.VAEDecode().decode(self.vae, latent)
        return video, middle - began, time.monotonic() - middle


def main() -> None:
    """Run the first prompts of the evaluation and write the section "stock_comfyui_cpu"."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfyui", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--sheet", type=Path)
    args = parser.parse_args()
    graph, scorer = StockGraph(args.comfyui.resolve()), Scorer.load()
    videos, rows, seconds = [], [], []
    wanted = requests(200, args.seed)[: args.prompts]
    for i, (scene, text) in enumerate(wanted):
        video, sampling, decoding = graph(text, args.seed * 1000 + i)
        verdict = scorer.score(video, scene)
        videos.append(video)
        rows.append([verdict[name] for name in ATTRIBUTES])
        seconds.append((sampling, decoding))
        print(f"{text}: {sampling:.1f} + {decoding:.1f} s, {sum(rows[-1])} of 6 right", flush=True)
    if args.sheet:
        contact_sheet(videos, [text for _, text in wanted], args.sheet)
    sampling, decoding = torch.tensor(seconds).median(0).values.tolist()
    result = json.loads(args.out.read_text())
    result["stock_comfyui_cpu"] = {
        "command": f"python3 -m demo.evaluate_host --comfyui PATH --prompts {args.prompts} --seed {args.seed}",
        "threads": torch.get_num_threads(),
        "prompts": args.prompts,
        "attributes_right": f"{sum(map(sum, rows))} of {6 * len(rows)}",
        "accuracy": accuracy(torch.tensor(rows)),
        "median_seconds": {"ksampler_20_steps": round(sampling, 2), "vae_decode": round(decoding, 2)},
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
