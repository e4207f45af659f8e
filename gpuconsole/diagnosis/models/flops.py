"""Floating point operations by closed formulas. A multiply-add counts as two. Each function states whether attention is causal.

`linear` is N: the weights of all matrix products, with the LM head and without input and position embeddings (these are lookups).
`width` is heads x head size, in most models d_model. A causal count includes only the lower triangle of attention, which is what a
fused causal kernel computes. The other counts include the full square.
"""

from __future__ import annotations


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
