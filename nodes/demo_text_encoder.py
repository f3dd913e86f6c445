"""Node: the text encoder of the demo model, as a CLIP that the stock CLIPTextEncode uses."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from .types import CATEGORY


class CarnatorDemoTextEncoder(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorDemoTextEncoder",
            display_name="Carnator Demo Text Encoder",
            category=f"{CATEGORY}/demo",
            description="Text encoder of the small demo model that comes with this pack. It reads up to 32 words and "
            "the (word:1.3) syntax. Of no use with other models.",
            inputs=[],
            outputs=[io.Clip.Output("clip", tooltip="Connect it to CLIPTextEncode.")],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(_make_clip())


def _make_clip() -> Any:
    """A comfy.sd.CLIP over the stored word vectors; the classes live here because their bases need torch."""
    import comfy.sd
    import torch

    class WordVectors(torch.nn.Module):
        """No weights to load: the vectors are looked up on the CPU."""

        dtypes = (torch.float32,)

        def __init__(self, device: Any = None, dtype: Any = None, model_options: dict | None = None):
            super().__init__()

        def encode_token_weights(self, tokens: dict[str, list]) -> tuple[torch.Tensor, None]:
            from ..demo.words import encode_words

            pairs = tokens["words"][0]
            return encode_words([word for word, _ in pairs], [weight for _, weight in pairs])[None], None

        def set_clip_options(self, options: dict) -> None:
            """Layers and pooling do not exist here."""

        def reset_clip_options(self) -> None:
            """See set_clip_options."""

        def load_sd(self, weights: dict) -> tuple[list, list]:
            return [], list(weights)

    class Tokenizer:
        """Words with their weights, one batch."""

        def __init__(self, embedding_directory: Any = None, tokenizer_data: dict | None = None):
            pass

        def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **kwargs: Any) -> dict[str, list]:
            from comfy.sd1_clip import escape_important, token_weights, unescape_important

            from ..demo.grammar import tokenize

            pairs = [
                (word, weight)
                for part, weight in token_weights(escape_important(text), 1.0)
                for word in tokenize(unescape_important(part))
            ]
            return {"words": [pairs]}

        def state_dict(self) -> dict:
            return {}

    class Target:
        params: dict = {}
        clip = WordVectors
        tokenizer = Tokenizer

    return comfy.sd.CLIP(Target)
