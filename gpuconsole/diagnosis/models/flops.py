"""Floating point operations by closed formulas. A multiply-add counts as two; every function says whether attention is causal.

`linear` is N: the weights of all matrices that activations are multiplied with, the LM head among them, input and position
embeddings not (they are looked up). `width` is what all heads of a layer hold together, heads x head size: d_model for most.
A causal count takes attention's lower triangle only, which is what a fused causal kernel computes; the others take the square.
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
    """4 N_frozen + 6 N_adapters + 12 L d T, not causal, for our GPT with an adapter of r (in + out) beside each matrix of a block.

    Frozen matrices need no gradient of their weights. Before the first block nothing is trained, so its qkv passes no
    gradient on, and neither does the first half of the adapter beside it.
    """
    frozen = transformer_linear(d_model, n_layer, vocabulary)
    adapters = 16 * rank * d_model * n_layer
    passed_on_to_nobody = 2 * (3 * d_model**2 + rank * d_model)
    return 4 * frozen + 6 * adapters - passed_on_to_nobody + 12 * n_layer * d_model * tokens


def recomputed_per_token(d_model: int, n_layer: int, tokens: float, lora_rank: int = 0) -> float:
    """What checkpointing every block adds for our GPT, not causal: its forward pass again, but not all of it.

    torch stops a recomputation at the last tensor that the backward pass asks for: the input of the MLP's second matrix. So a
    third of the textbook's 2 * 12 d^2 per block is saved; with LoRA only the last half adapter, since it asks for what is before that.
    """
    matrices = 12 * d_model**2 + 15 * lora_rank * d_model if lora_rank else 8 * d_model**2
    return n_layer * (2 * matrices + 4 * d_model * tokens)
