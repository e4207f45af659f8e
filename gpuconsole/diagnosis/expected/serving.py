"""The embedded server on a card: its memory, an iteration of decoding, and the prefill of a prompt."""

from __future__ import annotations

from gpuconsole.diagnosis.expected.card import ITERATION_S, MATMUL_SHARE, SERVED_LAYER_S, Card
from gpuconsole.diagnosis.expected.work import Work
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.serving import BLOCK_TOKENS
from gpuconsole.model.serving import served_precision

TRAINED_BYTES = 16 + 2
"""Bytes per parameter while the server trains its weights (knob weights): fp32 state of AdamW, and activations of short sequences."""


def serving_work(knobs: Knobs, card: Card) -> Work | None:
    """One iteration of decoding at the load of the knobs."""
    peak = card.flops_per_s(served_precision(knobs))
    if not peak:
        return None
    element = 4.0 if knobs["dtype"] == "float32" else 2.0
    width, depth = int(knobs["d_model"]), int(knobs["n_layer"])
    parameters = 12.0 * width**2 * depth
    weights = parameters * (1.0 if knobs["quantization"] == "int8" else element)
    seats, longest = int(knobs["max_num_seqs"]), int(knobs["max_model_len"])
    per_token = 2 * depth * width * element
    prompt, output = int(knobs["prompt_tokens"]), int(knobs["output_tokens"])
    cache_tokens = (int(knobs["num_gpu_blocks_override"]) or seats * -(-longest // BLOCK_TOKENS)) * BLOCK_TOKENS
    wanted = (float(knobs["request_rate"]) and seats) or int(knobs["concurrency"])
    running = max(1.0, min(wanted, seats, cache_tokens / (prompt + output / 2)))
    kv = running * (prompt + output / 2) * per_token
    rate = float(knobs["request_rate"])
    prefill = prefill_s(knobs, card, peak, parameters)
    work = Work(
        memory_bytes=max(
            parameters * element + seats * longest * per_token + (longest + 256) * width * element + 2 * parameters / depth * element,
            TRAINED_BYTES * parameters if knobs["weights"] == "trained" else 0.0,
        ),
        device_s={
            "memory bandwidth": (weights + kv) / card.bytes_per_s,
            "arithmetic": 2 * parameters * running / (peak * MATMUL_SHARE),
        },
        launch_s=SERVED_LAYER_S * depth,
        waits_s={"kernel launches": ITERATION_S},
    )
    work.figures.update(
        weight_bytes=weights,
        kv_bytes=kv,
        running=running,
        wanted=float(wanted),
        cache_tokens=float(cache_tokens),
        needed_tokens=wanted * (prompt + output),
        prefill_s=prefill,
        decode_s=output * work.step_s + (running - 1) * prefill,
        reached=(weights + kv) / (work.step_s * (card.peaks.memory_bytes_per_s or 1.0)),
        capacity=running / (output * work.step_s + running * prefill),
        request_rate=rate,
        busy=work.busy_s / work.step_s,
    )
    return work


def prefill_s(knobs: Knobs, card: Card, peak: float, parameters: float) -> float:
    """Seconds of one prompt alone: products and causal attention, or launches where they take longer."""
    prompt, width, depth = int(knobs["prompt_tokens"]), int(knobs["d_model"]), int(knobs["n_layer"])
    if knobs["enable_prefix_caching"]:
        prompt = max(1, round(prompt * (1 - float(knobs["shared_prefix_ratio"]))))
    flops = 2 * parameters * prompt + 2.0 * prompt**2 * width * depth
    chunks = max(1, -(-prompt // int(knobs["max_num_batched_tokens"])))
    return max(flops / (peak * MATMUL_SHARE), chunks * (SERVED_LAYER_S * depth + ITERATION_S))
