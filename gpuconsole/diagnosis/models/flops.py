"""Floating point operations by closed formulas; model FLOPs utilisation (MFU), and comparison with published throughput.

A multiply-add counts as two. Each function states whether attention is causal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpuconsole.model.machine import Published

# --- floating point operations by closed formulas ------------------------------------------------------------


def transformer_linear(d_model: int, n_layer: int, vocabulary: int) -> int:
    """N of a GPT: per block 3 d^2 (qkv) + d^2 (output) + 8 d^2 (MLP of 4 d), and the head."""
    return 12 * n_layer * d_model**2 + vocabulary * d_model


def training_per_token(linear: float, n_layer: int, width: int, tokens: float) -> float:
    """6 N + 12 L d T, not causal: forward 2 N + 4 L d T, backward twice that (PaLM, appendix B; torchtitan)."""
    return 6 * linear + 12 * n_layer * width * tokens


def training_per_token_causal(linear: float, n_layer: int, width: int, tokens: float) -> float:
    """6 N + 6 L d T, causal (ml-engineering)."""
    return 6 * linear + 6 * n_layer * width * tokens


def lora_per_token(d_model: int, n_layer: int, vocabulary: int, rank: int, tokens: float) -> float:
    """4 N_frozen + 6 N_adapters + 12 L d T, not causal, for our GPT with an adapter of r (in + out) for each matrix of a block.

    Frozen matrices need no weight gradient. Nothing before the first block is trained, so its qkv and the first half of its adapter
    need no input gradient.
    """
    frozen = transformer_linear(d_model, n_layer, vocabulary)
    adapters = 16 * rank * d_model * n_layer
    without_input_gradient = 2 * (3 * d_model**2 + rank * d_model)
    return 4 * frozen + 6 * adapters - without_input_gradient + 12 * n_layer * d_model * tokens


def recomputed_per_token(d_model: int, n_layer: int, tokens: float, lora_rank: int = 0) -> float:
    """FLOPs that checkpointing of every block adds for our GPT, not causal: most of a second forward pass.

    torch stops the recomputation at the last tensor that the backward pass needs: the input of the MLP's second matrix. This saves a
    third of the textbook's 2 * 12 d^2 per block. With LoRA it saves only the last half of an adapter.
    """
    matrices = 12 * d_model**2 + 15 * lora_rank * d_model if lora_rank else 8 * d_model**2
    return n_layer * (2 * matrices + 4 * d_model * tokens)


# --- model FLOPs utilisation (MFU) ---------------------------------------------------------------------------


def mfu(flops_per_s: float, peak_flops_per_s: float) -> float:
    """Useful FLOP/s over the dense peak of the precision in use. 100 of an A100's 312 TFLOP/s are 32 %."""
    return flops_per_s / peak_flops_per_s


def mbu(bytes_per_s: float, peak_bytes_per_s: float) -> float:
    """Minimum bytes per second over the memory bandwidth."""
    return bytes_per_s / peak_bytes_per_s


def published_flops_per_s(anchor: Published, peak_flops_per_s: float | None) -> float | None:
    """Model FLOP/s per device of a published run: MFU times peak, otherwise tokens/s times (6 N + 12 L d T). None: not known.

    The publisher's MFU has priority, because the publisher counts the FLOPs of the trained model.
    """
    if anchor.mfu_ratio is not None and peak_flops_per_s:
        return anchor.mfu_ratio * peak_flops_per_s
    if not (anchor.n_layer and anchor.d_model):
        return None
    return anchor.tokens_per_s * training_per_token(anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len)


def published_tokens_per_s(anchor: Published, flops_per_token: float, peak_flops_per_s: float | None) -> float | None:
    """Tokens/s of a device with a model of `flops_per_token` (not causal) at the FLOP/s of the published run."""
    reached = published_flops_per_s(anchor, peak_flops_per_s)
    return reached / flops_per_token if reached else None


def nearest_anchor(anchors: Iterable[Published], precision: str, flops_per_token: float) -> Published | None:
    """The published run at this precision whose model is nearest in FLOPs per token; None where there is none."""
    same = [anchor for anchor in anchors if anchor.precision == precision and anchor.n_layer and anchor.d_model]
    return min(same, key=lambda anchor: abs(math.log(flops_of(anchor) / flops_per_token)), default=None)


def flops_of(anchor: Published) -> float:
    """FLOPs per token of a published model, by 6 N + 12 L d T."""
    return training_per_token(anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len)
