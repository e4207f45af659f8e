"""Model FLOPs utilisation (MFU): FLOPs over a peak, and comparison with published throughput."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpuconsole.diagnosis.models.flops import training_per_token
from gpuconsole.model.machine.device import Published


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
