"""A Wan transformer block evaluated for a subset of its rows.

The one place that knows the inside of the host's block. It calls the block's own submodules, so LoRA, offloading and
quantised weights keep working, and is used only for the exact class and parameter names checked by
``unsupported_block``. With all rows it equals the stock block.
"""

from __future__ import annotations

import inspect

import torch

_FORWARD_PARAMETERS = ("x", "e", "freqs", "context")


def unsupported_block(block: torch.nn.Module) -> str | None:
    """Why this block cannot be evaluated by rows, or None."""
    from comfy.ldm.wan.model import WanAttentionBlock, WanSelfAttention, WanT2VCrossAttention

    if type(block) is not WanAttentionBlock:
        return f"block class {type(block).__qualname__}"
    if type(block.self_attn) is not WanSelfAttention or type(block.cross_attn) is not WanT2VCrossAttention:
        return f"attention class {type(block.cross_attn).__qualname__}"
    return None


def changed_forward(block: torch.nn.Module) -> str | None:
    """Why this block's forward is not the one known here, or None.

    Ask when the request's model is loaded: before that another request's object patches may still be applied. A
    forward may also have been replaced on the class or on the instance, where no list of patches shows it.
    """
    from comfy.ldm.wan.model import WanAttentionBlock

    for part in (block, block.self_attn, block.cross_attn):
        if part.forward.__module__ != WanAttentionBlock.__module__:
            return f"{type(part).__qualname__}.forward of {part.forward.__module__}"
    parameters = tuple(inspect.signature(block.forward).parameters)[: len(_FORWARD_PARAMETERS)]
    return None if parameters == _FORWARD_PARAMETERS else f"block signature {parameters}"


def evaluate_rows(
    block: torch.nn.Module,
    x: torch.Tensor,
    rows: torch.Tensor,
    modulation: torch.Tensor,
    freqs: torch.Tensor,
    context: torch.Tensor,
    transformer_options: dict,
) -> torch.Tensor:
    """New hidden states of some rows; keys and values come from all rows.

    Args:
        x: [B, L, D] hidden states of all tokens.
        rows: [n] int64 token indices.
        modulation: [B, 6, D] or [B, 1, 6, D] time modulation, one set for the whole video.
        freqs: rotary table with the tokens on axis 1.
        context: [B, M, D] text tokens.
    Returns:
        [B, n, D], in the order of ``rows``.
    Source: the block of Wan 2.1 (arXiv 2503.20314): adaptive layer norm, self-attention, cross-attention, MLP.
    """
    import comfy.model_management
    from comfy.ldm.flux.math import apply_rope1
    from comfy.ldm.wan.model import optimized_attention  # what the stock block calls, replaced or not

    batch, tokens, dim = x.shape
    own = comfy.model_management.cast_to(block.modulation, dtype=x.dtype, device=x.device)
    shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (own + modulation.reshape(batch, 6, dim)).chunk(6, dim=1)
    attention = block.self_attn
    heads = (attention.num_heads, attention.head_dim)

    normed = torch.addcmul(shift_a, block.norm1(x.contiguous()), 1 + scale_a)
    q = apply_rope1(attention.norm_q(attention.q(normed[:, rows])).view(batch, -1, *heads), freqs[:, rows])
    k = apply_rope1(attention.norm_k(attention.k(normed)).view(batch, tokens, *heads), freqs)
    attended = optimized_attention(
        q.flatten(2),
        k.flatten(2),
        attention.v(normed),
        heads=attention.num_heads,
        transformer_options=transformer_options,
    )
    out = torch.addcmul(x[:, rows], attention.o(attended), gate_a)
    out = out + block.cross_attn(block.norm3(out), context, transformer_options=transformer_options)
    hidden = block.ffn(torch.addcmul(shift_f, block.norm2(out), 1 + scale_f))
    return torch.addcmul(out, hidden, gate_f)
