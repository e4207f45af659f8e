"""Model FLOPs utilisation, three ways: FLOPs over a peak, throughput over a published one, and the tensor cores' own counter."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpuconsole.diagnosis.models.flops import training_per_token
from gpuconsole.model.machine.device import Published


def mfu(flops_per_s: float, peak_flops_per_s: float) -> float:
    """Useful FLOP/s over the dense peak of the precision in use. 100 of an A100's 312 TFLOP/s are 32 %."""
    return flops_per_s / peak_flops_per_s


def mbu(bytes_per_s: float, peak_bytes_per_s: float) -> float:
    """Bytes that had to move per second over the memory's bandwidth."""
    return bytes_per_s / peak_bytes_per_s


def published_flops_per_s(anchor: Published, peak_flops_per_s: float | None) -> float | None:
    """Useful FLOP/s per device of a published run: its own MFU of the peak, else its tokens/s by 6 N + 12 L d T. None: not known.

    The publisher's MFU comes first, since it counts the very model that was trained.
    """
    if anchor.mfu_ratio is not None and peak_flops_per_s:
        return anchor.mfu_ratio * peak_flops_per_s
    if not (anchor.n_layer and anchor.d_model):
        return None
    return anchor.tokens_per_s * training_per_token(anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len)


def published_tokens_per_s(anchor: Published, flops_per_token: float, peak_flops_per_s: float | None) -> float | None:
    """What a device would reach with a model of `flops_per_token` (not causal) at the published run's FLOP/s."""
    reached = published_flops_per_s(anchor, peak_flops_per_s)
    return reached / flops_per_token if reached else None


def nearest_anchor(anchors: Iterable[Published], precision: str, flops_per_token: float) -> Published | None:
    """The published run at this precision whose model is nearest in FLOPs per token; None where there is none."""
    same = [anchor for anchor in anchors if anchor.precision == precision and anchor.n_layer and anchor.d_model]
    return min(same, key=lambda anchor: abs(math.log(flops_of(anchor) / flops_per_token)), default=None)


def flops_of(anchor: Published) -> float:
    """FLOPs per token of a published model, by 6 N + 12 L d T."""
    return training_per_token(anchor.parameters, anchor.n_layer, anchor.d_model, anchor.seq_len)
