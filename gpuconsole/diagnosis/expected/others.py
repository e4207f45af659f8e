"""A step of the other training workloads and of the calibration workloads."""

from __future__ import annotations

from gpuconsole.diagnosis.expected.card import (
    ALLREDUCE_S,
    BLUR_S,
    CONV_SHARES,
    DECODE_S,
    LAUNCH_S,
    MATMUL_SHARE,
    Card,
)
from gpuconsole.diagnosis.expected.gpt import limit_bytes
from gpuconsole.diagnosis.expected.work import Limit, Work
from gpuconsole.diagnosis.models.bandwidth import UPDATE_BYTES
from gpuconsole.diagnosis.models.collective import ring_s
from gpuconsole.model.knobs.catalogue import Knobs

MB = 2.0**20
FP32 = 4.0
EPOCH_CORES = 16
"""CPU cores of the machine that the expectation assumes."""


def vision_work(knobs: Knobs, card: Card) -> Work | None:
    """ResNet: a stem and three stages of 1, 2 and 4 times `width` channels, at a half, a half, a quarter and an eighth of the image's side."""
    peak = card.flops_per_s(str(knobs["precision"]))
    if not peak:
        return None
    batch, side, width = int(knobs["batch_size"]), int(knobs["image_size"]), int(knobs["width"])
    half = (side / 2) ** 2
    flops = 2 * half * 27 * width + 2 * half * (18 + 1) * width**2  # stem; first stage: two 3x3 convolutions and the shortcut
    for stage in (1, 2):
        inside, outside, pixels = width * 2 ** (stage - 1), width * 2**stage, half / 4**stage
        flops += 2 * pixels * (9 * inside * outside + 9 * outside**2 + inside * outside)
    element = 2.0 if knobs["precision"] in ("bf16", "fp16") else FP32
    values = half * width * (2 + 9 + 9 / 2 + 9 / 4)  # of a sample: nine saved tensors for each stage, two of the stem
    image_bytes = 3 * side**2 * FP32 * batch
    loading = batch * (DECODE_S + BLUR_S * int(knobs["transform_cost"]) + float(knobs["storage_latency_ms"]) / 1000)
    workers = int(knobs["num_workers"])
    computing = batch * (DECODE_S + BLUR_S * int(knobs["transform_cost"]))
    each = max(loading / workers, computing / min(workers, EPOCH_CORES)) if workers else loading
    device: dict[Limit, float] = {
        "arithmetic": 3 * flops * batch / (peak * conv_share(width)),
        "memory bandwidth": 4 * values * element * batch / card.bytes_per_s,
    }
    compute = max(sum(device.values()), LAUNCH_S * 150)
    waits: dict[Limit, float] = {"data loading": max(0.0, each - compute) if workers else loading}
    copies = image_bytes / card.host_bytes_per_s
    if not knobs.get("h2d_stream"):
        waits["host to device"] = copies
    return Work(
        memory_bytes=values * element * batch * 1.5 + 3 * image_bytes + 16 * 60 * width**2,
        device_s=device,
        launch_s=LAUNCH_S * 150,
        waits_s=waits,
        figures={
            "flops": 3 * flops * batch,
            "peak_flops_per_s": peak,
            "copies_ratio": 0.0 if knobs.get("h2d_stream") else copies / compute,
            "one_worker_speedup": (loading + compute) / max(loading, compute),
            "loading_cpu_ratio": computing / loading,
            "shared_memory_bytes": image_bytes * workers * int(knobs["prefetch_factor"]),
            "limit_bytes": limit_bytes(knobs, card),
        },
    )


def conv_share(channels: int) -> float:
    """Share of the peak that convolutions with so many channels reach: linear between the two known points."""
    (few, low), (many, high) = CONV_SHARES
    return low + (high - low) * min(1.0, max(0.0, (channels - few) / (many - few)))


def chain_work(knobs: Knobs, card: Card) -> Work:
    """A chain of elementwise operations: a forward and a backward pass move 12 buffers for each."""
    buffer = FP32 * int(knobs["batch_size"]) * int(knobs["d_model"])
    length = int(knobs["chain_length"])
    fused = knobs["torch_compile"] != "off"
    moved = buffer * (10 if fused else 12 * length)
    return Work(
        memory_bytes=buffer * (5 + 4 + (0 if fused else 1.2 * length)),
        device_s={"memory bandwidth": moved / card.bytes_per_s},
        launch_s=LAUNCH_S * 3 * length,
        figures={"limit_bytes": limit_bytes(knobs, card)},
    )


def recommender_work(knobs: Knobs, card: Card) -> Work:
    """An embedding table: with dense gradients the backward pass writes a table, and the optimizer reads four and writes three."""
    table = FP32 * int(knobs["num_embeddings"]) * int(knobs["embedding_dim"])
    touched = min(1.0, 26 * int(knobs["batch_size"]) / int(knobs["num_embeddings"]))
    moved = (UPDATE_BYTES["adamw_fused"] + 2 * FP32) / FP32 * table * (touched * 3 if knobs["sparse"] else 1.0)
    return Work(
        memory_bytes=table * (3.1 if knobs["sparse"] else 4.1),
        device_s={"memory bandwidth": moved / card.bytes_per_s},
        launch_s=LAUNCH_S * 120,
        figures={"rows_touched_ratio": touched, "limit_bytes": limit_bytes(knobs, card)},
    )


def ragged_work(knobs: Knobs, card: Card) -> Work:
    """A bag of byte embeddings over verses: memory traffic of (batch, tokens, d_model) values in fp32."""
    values = FP32 * int(knobs["batch_size"]) * min(LONGEST_VERSE, int(knobs["seq_len"])) * int(knobs["d_model"])
    return Work(
        memory_bytes=6 * values,
        device_s={"memory bandwidth": 14 * values / card.bytes_per_s},
        launch_s=LAUNCH_S * 60,
        figures={"lengths": lengths_in_batches(int(knobs["batch_size"])), "limit_bytes": limit_bytes(knobs, card)},
    )


def churn_work(knobs: Knobs, card: Card) -> Work:
    """MLP blocks on verses: a block keeps 15 values per byte and unit of width, and 32 batches of narrow features stay.

    The simulated device of the tests allocates 77.4 GB for a batch of 768 with 4 blocks of width 1024; this formula gives 76.8 GB.
    """
    rows = int(knobs["batch_size"]) * min(LONGEST_BATCH, int(knobs["seq_len"]))
    width, depth = int(knobs["d_model"]), int(knobs["n_layer"])
    kept = FP32 * rows * width * (15 * depth + 3)
    features = 32 * FP32 * rows * width / 4 * 0.85  # most batches are shorter than the longest
    states = 16.0 * (8 * width**2 * depth)
    peak = card.flops_per_s("fp32") or 1e13
    return Work(
        memory_bytes=states + kept + features + FP32 * rows * width * 6,
        device_s={"arithmetic": 6 * 8 * width**2 * depth * rows / (peak * MATMUL_SHARE), "memory bandwidth": 3 * kept / card.bytes_per_s},
        launch_s=LAUNCH_S * 30 * depth,
        figures={"limit_bytes": limit_bytes(knobs, card)},
    )


def exchange_work(knobs: Knobs, card: Card) -> Work:
    """Gradients only: pieces of 256 KiB (workloads/training/exchange.py), each with two launches; one all-reduce for each bucket."""
    size, bucket = float(knobs["buffer_mb"]) * MB, max(EXCHANGE_PIECE, float(knobs["bucket_cap_mb"]) * MB)
    pieces, buckets, processes = size / EXCHANGE_PIECE, -(-size // bucket), int(knobs["nproc"])
    each = max(ALLREDUCE_S, ring_s("all_reduce", bucket, processes, card.link_bytes_per_s))
    exchange, launches = buckets * (each + LAUNCH_S), pieces * 2 * LAUNCH_S / 2
    large = ring_s("all_reduce", size, processes, card.link_bytes_per_s)
    return Work(
        memory_bytes=size * 4.2,  # parameters, gradients, DDP's buckets, momentum
        device_s={"memory bandwidth": 32 * size / FP32 / card.bytes_per_s},
        launch_s=launches,
        waits_s={"communication": max(each, exchange - launches)},
        figures={"exchange_now_s": exchange, "exchange_large_s": large, "limit_bytes": limit_bytes(knobs, card)},
    )


def gemm_work(knobs: Knobs, card: Card) -> Work | None:
    peak = card.flops_per_s(str(knobs["precision"]))
    if not peak:
        return None
    side, element = int(knobs["matrix_size"]), 2.0 if knobs["precision"] in ("bf16", "fp16") else FP32
    flops = 2.0 * side**3
    figures = {"flops": flops, "peak_flops_per_s": peak, "limit_bytes": limit_bytes(knobs, card)}
    return Work(3 * element * side**2, {"arithmetic": flops / (peak * MATMUL_SHARE)}, LAUNCH_S, figures=figures)


def stream_work(knobs: Knobs, card: Card) -> Work:
    moved = 3 * float(knobs["buffer_mb"]) * MB
    figures = {"moved_bytes": moved, "limit_bytes": limit_bytes(knobs, card)}
    return Work(moved, {"memory bandwidth": moved / card.bytes_per_s}, LAUNCH_S, figures=figures)


EXCHANGE_PIECE = 2.0**18
"""Bytes of one parameter of the workload training.exchange on a GPU."""
LONGEST_VERSE = 349
"""Characters of the longest verse of the text that ships."""
LONGEST_BATCH = 320
"""Characters of the longest verse of a typical batch of some hundred verses."""
LENGTHS_OF = {16: 36, 32: 34, 64: 34, 128: 32, 256: 25, 512: 18, 1024: 12, 4096: 5}
"""Different lengths among 50 batches, by batch size. Counted on the text that ships: a larger batch more often contains one of the longest
verses."""


def lengths_in_batches(batch_size: int) -> float:
    """Different lengths among 50 batches of verses, of the next larger batch size that was counted."""
    return float(next((found for size, found in LENGTHS_OF.items() if size >= batch_size), min(LENGTHS_OF.values())))
