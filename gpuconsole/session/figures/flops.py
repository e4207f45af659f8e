"""FLOPs of a training sample by two counts of attention, and by an estimate where the workload has
counted none. A multiply-add counts as two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpuconsole.model.knobs.catalogue import Knobs

ESTIMATED = "FLOPs estimated from parameters, 6 N + 12 L d T per token"
WITHOUT_ATTENTION = (
    "FLOPs estimated from parameters, 6 N per token, without attention: the number of layers and"
    " the width are not known"
)
IN_FULL = "attention counted in full"
NOT_ALL = "operators of other libraries not counted"
MOSTLY = 0.5
"""Where the Linear layers have half of the parameters or more, they are the model, and the rest is
looked up (embeddings)."""


def training_per_token(linear: float, n_layer: float, width: float, tokens: float) -> float:
    """6 N + 12 L d T, not causal: forward 2 N + 4 L d T, backward twice that (PaLM, appendix B;
    torchtitan)."""
    return 6 * linear + 12 * n_layer * width * tokens


def training_per_token_causal(linear: float, n_layer: float, width: float, tokens: float) -> float:
    """6 N + 6 L d T, causal (ml-engineering)."""
    return 6 * linear + 6 * n_layer * width * tokens


class SampleFlops(NamedTuple):
    """Model FLOPs of a sample, forward and backward, without what the backward pass computes a
    second time (`recomputed`).

    `full`: with all scores of attention, as torch's counter and PaLM count. `causal`: without the
    half that a causal mask leaves out; None where attention is not causal, or its shape is not
    known. `source`: how the FLOPs were found where they were not counted, and which count `full` is
    where there are two. `at_least`: the FLOPs of some operators are not known, or the estimate
    leaves attention out.
    """

    full: float
    causal: float | None = None
    source: str = ""
    recomputed: float = 0.0
    at_least: bool = False


def flops_of_sample(facts: Mapping[str, float], knobs: Knobs, tokens: float) -> SampleFlops | None:
    """The count of the workload (fact `flops_per_sample`), else an estimate for a job that trains
    on tokens; None where neither is possible.

    `tokens`: tokens of a sample, 0 where samples have none. The causal count is the workload's
    (fact `causal_flops_per_sample`), or follows from the facts `layers`, `width` and `causal` (1 or
    0); our own GPT has the first two as knobs. The estimate is for transformers: a model whose
    parameters are mostly tables of embeddings gets none.
    """
    length = facts.get("tokens_per_sample") or tokens
    layers = float(facts.get("layers", knobs.get("n_layer", 0)))
    width = float(facts.get("width", knobs.get("d_model", 0)))
    full, source = facts.get("flops_per_sample"), ""
    if full is None:
        matrices = _matrices(facts, bool(layers and width))
        if not length or not matrices:
            return None
        full = training_per_token(matrices, layers, width, length) * length
        source = ESTIMATED if layers and width else WITHOUT_ATTENTION
        frozen = 1 - min(
            1.0, facts.get("trainable_parameters", matrices) / facts.get("parameters", matrices)
        )
        full -= 2 * matrices * frozen * length  # frozen weights need no weight gradient
    counted = facts.get("causal_flops_per_sample")
    masked = full - counted if counted is not None else 6 * layers * width * length * length
    causal = (
        full - masked
        if (counted is not None or facts.get("causal")) and 0 < masked < full
        else None
    )
    foreign = bool(facts.get("operators_without_formula"))
    words = "; ".join(filter(None, (source, IN_FULL if causal else "", NOT_ALL if foreign else "")))
    at_least = foreign or source == WITHOUT_ATTENTION
    return SampleFlops(full, causal, words, facts.get("recomputed_flops_per_sample", 0.0), at_least)


def _matrices(facts: Mapping[str, float], is_transformer: bool) -> float:
    """N: parameters that each token is multiplied with; of a mixture of experts those of the
    experts that one token goes through, and 0 where their number is not known. GPT-2 of Hugging
    Face has its own layers in place of Linear; then all parameters count."""
    parameters, linear = facts.get("parameters", 0.0), facts.get("linear_parameters", 0.0)
    experts, active = facts.get("experts_parameters", 0.0), facts.get("experts_active_ratio", 0.0)
    if experts and not active:
        return 0.0
    idle = experts * (1 - active)
    if linear >= MOSTLY * parameters:
        return linear - idle
    return parameters - idle if is_transformer else 0.0
