"""The peak memory of a run of our own workloads on one GPU, in bytes, by the settings: whether a
second process fits beside the first, and whether a scenario fits on a card."""

from __future__ import annotations

from collections.abc import Callable

from gpuconsole.diagnosis.models.inputs import VOCABULARY, ModelInputs
from gpuconsole.diagnosis.models.memory import predicted_peak, states_of
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.serving import embedded_limits
from gpuconsole.model.machine import Peaks
from gpuconsole.model.run import Summary

CONTEXT_BYTES = 1e9
"""Memory of the CUDA context (0.3 to 0.6 GB) and of the workspaces of cuBLAS and cuDNN."""
MB = 2.0**20
FP32 = 4.0
TRAINED_BYTES = 16 + 2
"""Bytes per parameter while the server trains its weights (knob weights): fp32 state of AdamW, and
activations of short sequences."""
MAX_VERSE_LENGTH = 349
"""Characters of the longest verse of the text that ships."""
MAX_BATCH_LENGTH = 320
"""Characters of the longest verse of a typical batch of some hundred verses."""


def gpt_bytes(knobs: Knobs) -> float | None:
    """The process with the most work. Compilation only lowers the memory, so the model of the
    uncompiled step is an upper bound."""
    knobs = {**knobs, "torch_compile": "off"}
    inputs = ModelInputs(
        knobs, {"vocabulary": float(VOCABULARY)}, {}, Summary(), Peaks(), {}, is_gpu=True
    )
    kept = states_of(inputs)
    return None if kept is None else predicted_peak(inputs, kept)


def vision_bytes(knobs: Knobs) -> float:
    """ResNet: nine saved tensors for each of three stages, two of the stem; images three times;
    AdamW."""
    batch, side, width = int(knobs["batch_size"]), int(knobs["image_size"]), int(knobs["width"])
    element = 2.0 if knobs["precision"] in ("bf16", "fp16") else FP32
    values = (side / 2) ** 2 * width * (2 + 9 + 9 / 2 + 9 / 4)
    return values * element * batch * 1.5 + 3 * (3 * side**2 * FP32 * batch) + 16 * 60 * width**2


def chain_bytes(knobs: Knobs) -> float:
    buffer = FP32 * int(knobs["batch_size"]) * int(knobs["d_model"])
    return buffer * (
        9 + (0 if knobs["torch_compile"] != "off" else 1.2 * int(knobs["chain_length"]))
    )


def recommender_bytes(knobs: Knobs) -> float:
    """The table, its gradient unless that is sparse, and the states of its optimizer."""
    return (
        FP32
        * int(knobs["num_embeddings"])
        * int(knobs["embedding_dim"])
        * (3.1 if knobs["sparse"] else 4.1)
    )


def ragged_bytes(knobs: Knobs) -> float:
    return (
        6
        * FP32
        * int(knobs["batch_size"])
        * min(MAX_VERSE_LENGTH, int(knobs["seq_len"]))
        * int(knobs["d_model"])
    )


def churn_bytes(knobs: Knobs) -> float:
    """MLP blocks on verses: a block keeps 15 values per byte and unit of width, and 32 batches of
    narrow features stay. The simulated device of the tests allocates 77.4 GB for a batch of 768
    with 4 blocks of width 1024; this formula gives 76.8 GB."""
    rows = int(knobs["batch_size"]) * min(MAX_BATCH_LENGTH, int(knobs["seq_len"]))
    width, depth = int(knobs["d_model"]), int(knobs["n_layer"])
    kept = FP32 * rows * width * (15 * depth + 3)
    features = 32 * FP32 * rows * width / 4 * 0.85  # most batches are shorter than the longest
    return 16.0 * (8 * width**2 * depth) + kept + features + FP32 * rows * width * 6


def exchange_bytes(knobs: Knobs) -> float:
    """Parameters, gradients, DDP's buckets, momentum."""
    return float(knobs["buffer_mb"]) * MB * 4.2


def gemm_bytes(knobs: Knobs) -> float:
    return (
        3
        * (2.0 if knobs["precision"] in ("bf16", "fp16") else FP32)
        * int(knobs["matrix_size"]) ** 2
    )


def stream_bytes(knobs: Knobs) -> float:
    return 3 * float(knobs["buffer_mb"]) * MB


def serving_bytes(knobs: Knobs) -> float:
    """The embedded server: weights, the KV cache of all slots, one prefill."""
    element = 4.0 if knobs["dtype"] == "float32" else 2.0
    width, depth = int(knobs["d_model"]), int(knobs["n_layer"])
    parameters, longest = 12.0 * width**2 * depth, int(knobs["max_model_len"])
    cache = embedded_limits(knobs)["max_num_seqs"] * longest * 2 * depth * width * element
    serves = (
        parameters * element
        + cache
        + (longest + 256) * width * element
        + 2 * parameters / depth * element
    )
    return max(serves, TRAINED_BYTES * parameters if knobs["weights"] == "trained" else 0.0)


PEAKS: dict[str, Callable[[Knobs], float | None]] = {
    "training.gpt": gpt_bytes,
    "training.vision": vision_bytes,
    "training.chain": chain_bytes,
    "training.recommender": recommender_bytes,
    "training.ragged": ragged_bytes,
    "training.churn": churn_bytes,
    "training.exchange": exchange_bytes,
    "calibration.gemm": gemm_bytes,
    "calibration.stream": stream_bytes,
    "inference.serving": serving_bytes,
}
"""The peak by the name of the workload; None where the settings give none."""
