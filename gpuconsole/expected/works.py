"""The expected memory and the expected parts of a step on a card: our GPT, the embedded server, the other training and calibration workloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from gpuconsole.diagnosis.models.collective import last_bucket_share, ring_s, sharding_s
from gpuconsole.diagnosis.models.flops import flops_per_sample
from gpuconsole.diagnosis.models.gpt import VOCABULARY
from gpuconsole.diagnosis.models.inputs import ModelInputs
from gpuconsole.diagnosis.models.memory import UPDATE_BYTES, activations, exchanged_bytes, predicted_peak, states_of
from gpuconsole.expected.card import (
    ALLREDUCE_S,
    BLUR_S,
    CONV_SHARES,
    DECODE_S,
    DISK_BYTES_PER_S,
    ITERATION_S,
    LAUNCH_S,
    MATMUL_SHARE,
    SERVED_LAYER_S,
    Card,
)
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.serving import BLOCK_TOKENS, embedded_limits
from gpuconsole.model.run import Summary
from gpuconsole.model.serving import served_precision

# --- the expected memory and the expected parts of a step ----------------------------------------------------

Limit = Literal[
    "arithmetic",
    "memory bandwidth",
    "optimizer",
    "kernel launches",
    "data loading",
    "host to device",
    "logging",
    "checkpoints",
    "communication",
    "the slow process",
]


@dataclass(frozen=True)
class Work:
    """One step of one process, or one decoding iteration of a server.

    `memory_bytes`: the peak on one card. `device_s`: what the card computes, by limit, one after the other. `launch_s`: host time of the
    launches, which runs beside the card. `waits_s`: time in which the card waits for something else, by limit. `figures`: further
    quantities that the verdict reads, in SI units.
    """

    memory_bytes: float
    device_s: dict[Limit, float] = field(default_factory=dict)
    launch_s: float = 0.0
    waits_s: dict[Limit, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def busy_s(self) -> float:
        """Seconds in which the card computes."""
        return sum(self.device_s.values())

    @property
    def compute_s(self) -> float:
        """Seconds of computation as the host sees them: of the card, or of the launches where they take longer."""
        return max(self.busy_s, self.launch_s)

    @property
    def step_s(self) -> float:
        return self.compute_s + sum(self.waits_s.values())

    @property
    def parts(self) -> dict[Limit, float]:
        """Seconds of a step by limit; they add up to `step_s`. Launches count as far as the card waits for them."""
        parts: dict[Limit, float] = {**self.device_s, **self.waits_s}
        if self.launch_s > self.busy_s:
            parts["kernel launches"] = parts.get("kernel launches", 0.0) + self.launch_s - self.busy_s
        return parts

    @property
    def limit(self) -> Limit:
        """The largest part. Where the launches take longer than the card, they decide about the whole computation."""
        parts = self.parts
        if self.launch_s > self.busy_s:
            parts = {**self.waits_s, "kernel launches": self.launch_s}
        return max(parts, key=lambda name: parts[name])

    def share(self, *limits: Limit) -> float:
        """Share of a step that these parts take."""
        return sum(self.parts.get(limit, 0.0) for limit in limits) / self.step_s

    def figure(self, name: str) -> float:
        return self.figures[name]


# --- a step of our GPT, from the models of memory and FLOPs --------------------------------------------------

BLOCK_BYTES = {"off": 320, "compiled": 170}
"""Memory traffic of one block per token and unit of width beside the matrix products, forward and backward, in 16 bits: norms, casts, GELU,
residuals. Counted operation by operation (106 bytes in the forward pass, twice that in the backward pass); compiled, neighbours are fused."""
BLOCK_KERNELS = {"off": 62, "compiled": 22}
"""Operations of one block, forward and backward."""
SCORE_BYTES = 90
"""Memory traffic of one attention score with the plain formula, forward and backward: scaling, mask, fp32 softmax, casts, two products."""
UNFUSED_UPDATE_BYTES = 80
"""Memory traffic per parameter of AdamW as one operation after another (28 bytes fused)."""
UPDATE_KERNELS = 12
"""Operations of that update for each tensor."""
BLOCK_TENSORS = 12
HISTOGRAM_READS = 7
"""Values that logging reads from the device for each parameter's gradient, one after the other."""
READ_S = 60e-6
"""Time of one such read: a kernel, a synchronisation, and Python."""


def gpt_work(knobs: Knobs, card: Card) -> Work | None:
    """A step of the process with the most work; None where the card's peak at this precision is not known."""
    inputs = inputs_of(knobs, card)
    shape, precision = inputs.shape, inputs.precision
    peak = card.flops_per_s(precision)
    kept, per_sample = states_of(inputs), flops_per_sample(inputs)
    memory = predicted_peak(inputs, kept)
    if not peak or shape is None or kept is None or per_sample is None or memory is None or inputs.trained is None:
        return None
    mode = "off" if knobs.get("torch_compile", "off") == "off" else "compiled"
    passes, split = inputs.passes, inputs.tensor_parallel
    wide = 1.0 if precision in ("bf16", "fp16") else 1.5
    again = 4 / 3 if knobs.get("gradient_checkpointing") else 1.0
    tokens = shape.rows * passes
    matmul = per_sample * shape.batch * passes / split * again / (peak * MATMUL_SHARE)
    traffic = BLOCK_BYTES[mode] * wide * again * shape.d_model * shape.n_layer * tokens / split
    scores = (
        SCORE_BYTES * shape.batch * passes * shape.heads * shape.tokens**2 * shape.n_layer / split if knobs["attention"] == "math" else 0.0
    )
    casts = 8.0 * (inputs.parameters or 0.0) / split if wide == 1.0 else 0.0
    optimizer, update_launches = _update(inputs, knobs, kept.parameters / 4)
    work = Work(
        memory_bytes=memory,
        device_s={
            "arithmetic": matmul,
            "memory bandwidth": (traffic + scores + casts) / card.bytes_per_s,
            "optimizer": optimizer / card.bytes_per_s,
        },
        launch_s=LAUNCH_S * (BLOCK_KERNELS[mode] * shape.n_layer * passes * again + update_launches),
        figures={
            "states_bytes": kept.total,
            "activations_bytes": activations_bytes(inputs),
            "flops": per_sample * shape.batch * passes / split,
            "peak_flops_per_s": peak,
            "scores_s": scores / card.bytes_per_s,
            "fused_update_s": (UPDATE_BYTES["adamw_fused"] * kept.parameters / 4) / card.bytes_per_s,
            "trained": inputs.trained,
            "compiled": float(mode == "compiled"),
        },
    )
    return replace(work, waits_s=_waits(inputs, knobs, card, work))


def inputs_of(knobs: Knobs, card: Card) -> ModelInputs:
    """The inputs of the models. Compilation only lowers the memory, so the model of the uncompiled step is an upper bound."""
    return ModelInputs({**knobs, "torch_compile": "off"}, {"vocabulary": float(VOCABULARY)}, {}, Summary(), card.peaks, {}, is_gpu=True)


def activations_bytes(inputs: ModelInputs) -> float:
    assert inputs.shape is not None
    checkpointing = bool(inputs.knobs.get("gradient_checkpointing", False))
    return activations(inputs.shape, inputs.precision, inputs.text("attention", "sdpa"), checkpointing, True, inputs.tensor_parallel).saved


def limit_bytes(knobs: Knobs, card: Card) -> float:
    """The memory limit of the run: `memory_limit_mb`, at most the card."""
    limit = int(knobs.get("memory_limit_mb", 0)) * 2.0**20
    return min(limit, card.memory_bytes) if limit else card.memory_bytes


def _update(inputs: ModelInputs, knobs: Knobs, parameters: float) -> tuple[float, float]:
    """Bytes of the optimizer's update in one process, and its launches."""
    optim, trained = str(knobs["optim"]), inputs.trained or 0.0
    share = trained / (inputs.parameters or trained)
    if optim == "adamw":
        return UNFUSED_UPDATE_BYTES * parameters * share, UPDATE_KERNELS * BLOCK_TENSORS * int(knobs["n_layer"])
    return UPDATE_BYTES.get(optim, 28.0) * parameters * share, 10.0


def _waits(inputs: ModelInputs, knobs: Knobs, card: Card, work: Work) -> dict[Limit, float]:
    """What a step waits for beside its computation."""
    waits_s: dict[Limit, float] = {}
    exchanged = communication_s(inputs, knobs, card, max(work.busy_s - work.device_s["optimizer"], work.launch_s))
    if exchanged:
        waits_s["communication"] = exchanged
    if knobs.get("straggler_ms"):
        waits_s["the slow process"] = float(knobs["straggler_ms"]) / 1000 * inputs.passes
    if knobs.get("log_gradients"):
        waits_s["logging"] = HISTOGRAM_READS * READ_S * BLOCK_TENSORS * int(knobs["n_layer"]) / max(1, int(knobs["log_every"]))
    if int(knobs.get("save_every", 0)):
        waits_s["checkpoints"] = 12 * (inputs.trained or 0.0) / DISK_BYTES_PER_S / int(knobs["save_every"])
    return waits_s


def communication_s(inputs: ModelInputs, knobs: Knobs, card: Card, passes_s: float) -> float:
    """Exposed communication of a step: what the backward pass does not hide, or the sums of split matrices.

    `passes_s`: seconds of the forward and backward passes.
    """
    shape = inputs.shape
    assert shape is not None
    rate = card.link_bytes_per_s
    exposed_s = 0.0
    if inputs.tensor_parallel > 1:
        partial = shape.rows * shape.d_model * 2.0  # a sum in 16 bits: two in the forward and two in the backward pass of each block
        each = max(ALLREDUCE_S, ring_s("all_reduce", partial, inputs.tensor_parallel, rate))
        exposed_s += 4 * shape.n_layer * inputs.passes * each
    sharding = str(knobs.get("sharding", "none"))
    if inputs.replicas > 1 and sharding != "none":
        gradients, parameters = exchanged_bytes(inputs) or (0.0, 0.0)
        seconds = sharding_s(sharding, gradients, parameters, inputs.replicas, rate)
        last = last_bucket_share(gradients, float(knobs.get("bucket_cap_mb", 25.0))) if sharding == "ddp" else 0.0
        exposed_s += max(seconds * last, seconds - passes_s / inputs.passes * 2 / 3)  # the backward pass is two thirds of a pass
    return exposed_s


# --- the embedded server on a card ---------------------------------------------------------------------------

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
    seats, longest = embedded_limits(knobs)["max_num_seqs"], int(knobs["max_model_len"])
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
    chunks = max(1, -(-prompt // embedded_limits(knobs)["max_num_batched_tokens"]))
    return max(flops / (peak * MATMUL_SHARE), chunks * (SERVED_LAYER_S * depth + ITERATION_S))


# --- a step of the other training workloads and of the calibration workloads ---------------------------------

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
        figures={"rows_touched_ratio": touched},
    )


def ragged_work(knobs: Knobs, card: Card) -> Work:
    """A bag of byte embeddings over verses: memory traffic of (batch, tokens, d_model) values in fp32."""
    values = FP32 * int(knobs["batch_size"]) * min(LONGEST_VERSE, int(knobs["seq_len"])) * int(knobs["d_model"])
    return Work(
        memory_bytes=6 * values,
        device_s={"memory bandwidth": 14 * values / card.bytes_per_s},
        launch_s=LAUNCH_S * 60,
        figures={"lengths": lengths_in_batches(int(knobs["batch_size"]))},
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
        figures={"exchange_now_s": exchange, "exchange_large_s": large},
    )


def gemm_work(knobs: Knobs, card: Card) -> Work | None:
    peak = card.flops_per_s(str(knobs["precision"]))
    if not peak:
        return None
    side, element = int(knobs["matrix_size"]), 2.0 if knobs["precision"] in ("bf16", "fp16") else FP32
    flops = 2.0 * side**3
    figures = {"flops": flops, "peak_flops_per_s": peak}
    return Work(3 * element * side**2, {"arithmetic": flops / (peak * MATMUL_SHARE)}, LAUNCH_S, figures=figures)


def stream_work(knobs: Knobs, card: Card) -> Work:
    moved = 3 * float(knobs["buffer_mb"]) * MB
    figures = {"moved_bytes": moved}
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
    return float(next((length for size, length in LENGTHS_OF.items() if size >= batch_size), min(LENGTHS_OF.values())))


WORKS: dict[str, Callable[[Knobs, Card], Work | None]] = {
    "training.gpt": gpt_work,
    "training.vision": vision_work,
    "training.chain": chain_work,
    "training.recommender": recommender_work,
    "training.ragged": ragged_work,
    "training.churn": churn_work,
    "training.exchange": exchange_work,
    "calibration.gemm": gemm_work,
    "calibration.stream": stream_work,
    "inference.serving": serving_work,
}
"""The expected work of each workload that has a model, by the name of the workload."""
