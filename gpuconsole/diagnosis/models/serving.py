"""Analytical figures of a model server: time per token, time of a prefill, capacity of the KV
cache, and the attainable rate under its load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuconsole.diagnosis.models.inputs import NOT_STEADY
from gpuconsole.diagnosis.models.roofline import (
    CALIBRATE,
    OFFERED,
    TOO_LOW,
    Ceilings,
    Least,
    TimeLoss,
    decode_iteration,
    prefill,
    waterfall,
)
from gpuconsole.model.figures import Attainable, Figure, RatePair
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine import Device, Peaks
from gpuconsole.model.run import Run
from gpuconsole.session.figures.peak import Peak, bandwidth_peak, ceilings, flops_peak

# --- analytical figures of a model server ---------------------------------------------------------

WORDS = {
    "weight_bytes": "the bytes of its weights",
    "kv_bytes_per_token": "the bytes of a token's keys and values",
    "kv_cache_tokens": "the tokens of its KV cache",
    "layer_parameters": "the parameters of its layers",
    "d_model": "their width",
    "n_layer": "their number",
}
"""What a figure needs from the server, in words."""
NO_BANDWIDTH = "the memory bandwidth is not known"
NO_PEAK = "the FLOP/s peak of the device is not known"
FULL = 0.9


def serving_figures(
    knobs: Knobs,
    facts: Mapping[str, float],
    signals: Mapping[str, Signal],
    device_peaks: Peaks,
    is_gpu: bool,
) -> list[Figure]:
    """All serving figures; `note` gives the reason for a missing value. Empty before the client has
    measured the load."""
    if not {"client.prompt_tokens", "client.output_tokens"} <= signals.keys():
        return []
    return [
        _iteration(knobs, facts, signals, device_peaks, is_gpu),
        _prefill(knobs, facts, signals, device_peaks, is_gpu),
        _capacity(facts, signals),
    ]


def lacking(facts: Mapping[str, float], *names: str) -> str:
    """Which of these facts the server does not report; empty where it reports all."""
    missing = [WORDS[name] for name in names if name not in facts]
    return f"the server does not report {', '.join(missing)}" if missing else ""


def cards(knobs: Knobs, facts: Mapping[str, float], is_gpu: bool) -> int:
    """Return the number of GPUs that share the weights and the KV cache of a tensor parallel
    server, and read and compute their parts at the same time."""
    size = facts.get("tensor_parallel_size", knobs.get("tensor_parallel_size", 1))
    return max(1, int(size)) if is_gpu else 1


def _of_all(peak: Peak | None, count: int) -> Peak | None:
    """Return the peak of `count` cards, from that of one."""
    if peak is None or count == 1:
        return peak
    return peak[0] * count, f"{count} x {peak[1]}"


def _iteration(
    knobs: Knobs,
    facts: Mapping[str, float],
    signals: Mapping[str, Signal],
    peaks: Peaks,
    is_gpu: bool,
) -> Figure:
    """Time per token at full bandwidth: read the weights once, and the keys and values of every
    sequence."""
    bandwidth = _of_all(
        bandwidth_peak(knobs, facts, peaks, is_gpu, serves=True), cards(knobs, facts, is_gpu)
    )
    predicted, note = None, ""
    if why := lacking(facts, "weight_bytes", "kv_bytes_per_token"):
        note = f"not predicted: {why}"
    elif "server.requests_running" not in signals:
        note = "not predicted: the server does not report how many requests run"
    elif not bandwidth:
        note = f"not predicted: {NO_BANDWIDTH}"
    else:
        context = signals["client.prompt_tokens"].value + signals["client.output_tokens"].value / 2
        kv = signals["server.requests_running"].value * context * facts["kv_bytes_per_token"]
        predicted = (facts["weight_bytes"] + kv) / bandwidth[0]
        note = (
            "minimum; small weights stay in caches and are read faster" if not is_gpu else "minimum"
        )
    gap = signals.get("client.chunk_gap_p50_s")
    measured, source = (
        (gap.value, f"median gap between chunks, {gap.source}") if gap else (None, "")
    )
    formula = "(weights + sequences x context x KV bytes per token) / bandwidth"
    return Figure(
        "serving.iteration_s", "Time per token", "s", predicted, measured, formula, source, note
    )


def _prefill(
    knobs: Knobs,
    facts: Mapping[str, float],
    signals: Mapping[str, Signal],
    peaks: Peaks,
    is_gpu: bool,
) -> Figure:
    peak = _of_all(
        flops_peak(knobs, facts, peaks, is_gpu, serves=True), cards(knobs, facts, is_gpu)
    )
    predicted, note = None, "minimum"
    if why := lacking(facts, "layer_parameters", "d_model", "n_layer"):
        note = f"not predicted: {why}"
    elif not peak or knobs.get("quantization", "none") != "none":
        note = f"not predicted: {NO_PEAK}"
    else:
        n, width, depth = signals["client.prompt_tokens"].value, facts["d_model"], facts["n_layer"]
        hits = signals.get("server.prefix_hit_ratio")
        left = n * (1 - (hits.value if hits else 0.0))
        predicted = (2 * facts["layer_parameters"] * left + 2 * left * n * width * depth) / peak[0]
    reported = signals.get("server.prefill_s")
    measured, source = (reported.value, reported.source) if reported else (None, "")
    formula = (
        "(2 x layer parameters x n + 2 n^2 x width x layers, causal attention) / peak, for n tokens"
        " without prefix cache hits"
    )
    return Figure(
        "serving.prefill_s",
        "Time of a prompt's prefill",
        "s",
        predicted,
        measured,
        formula,
        source,
        note,
    )


def _capacity(facts: Mapping[str, float], signals: Mapping[str, Signal]) -> Figure:
    whole = signals["client.prompt_tokens"].value + signals["client.output_tokens"].value
    tokens, peak = facts.get("kv_cache_tokens"), signals.get("server.kv_cache_peak_ratio")
    running = signals.get("server.requests_running")
    full = running if peak is not None and peak.value >= FULL else None
    measured, source = (full.value, full.source) if full else (None, "")
    note = (
        ("" if full else "not measured: the cache was not full")
        if tokens
        else f"not predicted: {lacking(facts, 'kv_cache_tokens')}"
    )
    formula, held = "KV cache tokens / (prompt + output tokens)", tokens / whole if tokens else None
    return Figure(
        "serving.kv_sequences",
        "Sequences that the KV cache holds",
        "sequences",
        held,
        measured,
        formula,
        source,
        note,
    )


# --- the attainable rate of a model server under its load, with the parts of a token's time that
# keep the server below it ---

FORMULA = (
    "(prefill + (n - 1) iterations / sequences) / n for n output tokens; prefill: max(FLOPs / peak,"
    " weights / bandwidth); iteration: max((weights + sequences x context x KV bytes per token) /"
    " bandwidth, FLOPs / peak)"
)
USABLE = 0.9
"""The share of the memory of a GPU that weights and KV cache can use: vLLM's default of
gpu_memory_utilization."""
WAITS = {
    "client_queue": "requests wait in the client",
    "queue": "requests wait in the queue",
    "transport": "network, HTTP, event loops",
}
"""Parts of a request's time that are no work of the model."""
OVERLAPS = "a part of this wait: the model works on other requests meanwhile"
BELOW = "faster than the calculation: the peaks in use are too low, or weights stay in caches"


@dataclass(frozen=True)
class _Load:
    """Mean tokens of a request, and how many requests run at the same time: now, and at the
    attainable rate."""

    prompt: float
    output: float
    running: float
    sequences: float
    offered_per_s: float

    @property
    def context(self) -> float:
        """Mean tokens of a sequence while it decodes."""
        return self.prompt + self.output / 2


@dataclass(frozen=True)
class _Model:
    """What the model must read and compute."""

    weight_bytes: float
    kv_bytes_per_token: float
    token_flops: float
    prompt_flops: float
    sharing: float

    def iteration(self, load: _Load, sequences: float, limits: Ceilings) -> Least | None:
        return decode_iteration(
            self.weight_bytes,
            load.context * self.kv_bytes_per_token,
            self.token_flops,
            sequences,
            limits,
        )

    def prefill(self, limits: Ceilings) -> Least | None:
        return prefill(self.weight_bytes, self.prompt_flops, self.sharing, limits)


def serving_attainable(run: Run, device: Device, calibration: Mapping[str, float]) -> Attainable:
    """The attainable output tokens/s of a server with its model and its load, with the waterfall of
    an output token.

    In a closed loop all clients' requests run at the same time, as far as memory allows. In an open
    loop the load offers no more than its rate.
    """
    rate = run.summary.tokens_per_s
    needed = {"client.prompt_tokens", "client.output_tokens"}
    if rate is None or not rate.mean or not needed <= run.signals.keys():
        return Attainable(reason=NOT_STEADY)
    facts = run.server_numbers
    if why := lacking(facts, "weight_bytes", "kv_bytes_per_token"):
        return Attainable(reason=why)
    limits = _limits(run, device, calibration)
    if limits.bytes is None:
        return Attainable(reason=f"the memory bandwidth of this device is not known: {CALIBRATE}")
    load = _load(run, device, facts)
    model = _model(run, facts, load, limits)
    iteration, prompt = model.iteration(load, load.sequences, limits), model.prefill(limits)
    if iteration is None or prompt is None:
        return Attainable(reason=f"the peak of this device is not known: {CALIBRATE}")
    decoding_s = max(0.0, load.output - 1) / load.output * iteration.time_s / load.sequences
    prefill_s = prompt.time_s / load.output
    least_s = decoding_s + prefill_s
    bound = iteration.bound if decoding_s >= prefill_s else prompt.bound
    if load.offered_per_s and load.offered_per_s * load.output * least_s < 1:
        least_s, bound = 1 / (load.offered_per_s * load.output), OFFERED
    token_s = 1 / rate.mean
    notes = [*_notes(load, limits, model), *([TOO_LOW] if token_s < least_s else [])]
    return Attainable(
        rates=tuple(_rates(run, load, model, limits, least_s)),
        bound=bound,
        source="; ".join(ceiling[1] for ceiling in limits if ceiling is not None),
        formula=FORMULA,
        per="output token",
        parts=waterfall(
            1.0, least_s, _losses(run, token_s, least_s, prefill_s if bound != OFFERED else None)
        ),
        notes=tuple(notes),
    )


def _limits(run: Run, device: Device, calibration: Mapping[str, float]) -> Ceilings:
    """The ceilings of all GPUs of a tensor parallel server together. A server elsewhere has the
    datasheet only: the calibration is of this machine."""
    calibrated = {} if run.elsewhere else calibration
    flops, moved = ceilings(
        run.settings,
        run.server_numbers,
        device.peaks,
        device.is_gpu,
        serves=True,
        calibration=calibrated,
    )
    count = cards(run.settings, run.server_numbers, device.is_gpu)
    return Ceilings(_of_all(flops, count), _of_all(moved, count))


def _load(run: Run, device: Device, facts: dict[str, float]) -> _Load:
    prompt, output = (
        run.signals["client.prompt_tokens"].value,
        max(1.0, run.signals["client.output_tokens"].value),
    )
    running = run.signals.get("server.requests_running")
    offered = float(run.knobs.get("request_rate", 0.0))
    users = max(1.0, float(run.knobs.get("concurrency", 1)))
    now = max(1.0, running.value) if running is not None else users
    wanted = now if offered else users
    each = (prompt + output) * facts["kv_bytes_per_token"]
    room = (
        USABLE * device.memory_bytes * cards(run.settings, facts, device.is_gpu)
        - facts["weight_bytes"]
    )
    if device.is_gpu and device.memory_bytes and each:
        wanted = min(wanted, max(now, room / each))
    return _Load(prompt, output, now, wanted, offered)


def _model(run: Run, facts: dict[str, float], load: _Load, limits: Ceilings) -> _Model:
    """FLOPs of a token: 2 per weight of a matrix, and 4 per layer, width and position of its
    context. Without the peak only bytes count."""
    weights = (
        facts.get("matrix_parameters", facts.get("layer_parameters", 0.0))
        if limits.flops is not None
        else 0.0
    )
    width = (
        facts.get("d_model", 0.0) * facts.get("n_layer", 0.0) if limits.flops is not None else 0.0
    )
    hits = run.signals.get("server.prefix_hit_ratio")
    new = load.prompt * (1 - (hits.value if hits is not None else 0.0))
    batched = facts.get(
        "max_num_batched_tokens", float(run.settings.get("max_num_batched_tokens", 0) or 0)
    )
    return _Model(
        facts["weight_bytes"],
        facts["kv_bytes_per_token"],
        2 * weights + 4 * width * load.context,
        2 * weights * new + 2 * width * new * load.prompt,
        min(load.sequences, batched / new) if new else load.sequences,
    )


def _notes(load: _Load, limits: Ceilings, model: _Model) -> Iterator[str]:
    if limits.flops is None:
        yield f"only bytes count: the peak of this device is not known ({CALIBRATE})"
    elif not model.token_flops:
        yield "only bytes count: the server does not report the parameters of its layers"
    if load.sequences > load.running + 0.5:
        yield f"{load.sequences:.0f} requests could run together, {load.running:.1f} do"


def _rates(
    run: Run, load: _Load, model: _Model, limits: Ceilings, least_s: float
) -> Iterator[RatePair]:
    """The output of the server, and the speed of one sequence: its decoding and its prefill at the
    present number of sequences."""
    summary = run.summary
    rate = summary.tokens_per_s.mean if summary.tokens_per_s else None
    yield RatePair("tokens", "output tokens", "tokens/s", rate, 1 / least_s)
    answered = summary.requests_per_s.mean if summary.requests_per_s else None
    yield RatePair("requests", "requests", "requests/s", answered, 1 / least_s / load.output)
    iteration, prompt = model.iteration(load, load.running, limits), model.prefill(limits)
    if iteration is not None and summary.tpot_s is not None:
        yield RatePair(
            "decode",
            "decoding, one sequence",
            "tokens/s",
            1 / summary.tpot_s.mean,
            1 / iteration.time_s,
        )
    measured = run.signals.get("server.prefill_s")
    if prompt is not None and prompt.time_s and measured is not None and measured.value:
        yield RatePair(
            "prefill",
            "prefill, one prompt",
            "tokens/s",
            load.prompt / measured.value,
            load.prompt / prompt.time_s,
        )
    for name, unit, per_s in (
        ("arithmetic", "FLOP/s", summary.flops_per_s),
        ("memory", "bytes/s", summary.memory_bytes_per_s),
    ):
        if per_s and rate:
            yield RatePair(name, name, unit, per_s, per_s / rate / least_s)


def _losses(run: Run, token_s: float, least_s: float, prefill_s: float | None) -> list[TimeLoss]:
    """The parts of a token's time beyond the shortest: a request's waits, and the slowness of
    prefill and decoding.

    The time of a request in each part (the shares sum to 1), scaled to the time of an output token.
    While a request waits, the model may work on others: then only the part of the waits counts that
    the model's work leaves. `prefill_s`: the shortest prefill of a token's share; None: no split.
    """
    shares, gap = run.summary.phases_ratio, token_s - least_s
    if gap < 0:
        return [TimeLoss("model", "prefill and decoding", gap, BELOW)]
    if not shares:
        return [
            TimeLoss(
                "model",
                "not split into parts",
                gap,
                "the server does not report the times of its requests",
            )
        ]
    waits = {name: shares.get(name, 0.0) * token_s for name in WAITS}
    factor = min(1.0, gap / total) if (total := sum(waits.values())) else 0.0
    losses = [
        TimeLoss(name, WAITS[name], seconds * factor, OVERLAPS if factor < 1 else "")
        for name, seconds in waits.items()
    ]
    left = gap - sum(loss.time_s for loss in losses)
    slow = shares.get("prefill", 0.0) * token_s - (prefill_s or 0.0)
    if prefill_s is None or not 0 <= slow <= left:
        return [*losses, TimeLoss("model", "prefill, decoding below roofline", left)]
    return [
        *losses,
        TimeLoss("prefill", "prefill below the roofline", slow),
        TimeLoss("decode", "decoding below the roofline", left - slow),
    ]
