"""Analytical figures of a model server: time per token, time of a prefill, and capacity of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping

from gpuconsole.model.figure import Figure
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.machine.device import Peaks
from gpuconsole.session.figures.peak import bandwidth_peak, flops_peak

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
    knobs: Knobs, facts: Mapping[str, float], signals: Mapping[str, Signal], device_peaks: Peaks, is_gpu: bool
) -> list[Figure]:
    """All serving figures; `note` gives the reason for a missing value. Empty before the client has measured the load."""
    if not {"client.prompt_tokens", "client.output_tokens"} <= signals.keys():
        return []
    return [
        _iteration(knobs, facts, signals, device_peaks, is_gpu),
        _prefill(knobs, facts, signals, device_peaks, is_gpu),
        _capacity(facts, signals),
    ]


def lacking(facts: Mapping[str, float], *names: str) -> str:
    """Which of these facts the server does not report; empty where it reports all."""
    words = [WORDS[name] for name in names if name not in facts]
    return f"the server does not report {', '.join(words)}" if words else ""


def _iteration(knobs: Knobs, facts: Mapping[str, float], signals: Mapping[str, Signal], peaks: Peaks, is_gpu: bool) -> Figure:
    """Time per token at full bandwidth: read the weights once, and the keys and values of every sequence."""
    bandwidth = bandwidth_peak(knobs, facts, peaks, is_gpu, serves=True)
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
        note = "minimum; small weights stay in caches and are read faster" if not is_gpu else "minimum"
    gap = signals.get("client.chunk_gap_p50_s")
    return Figure(
        "serving.iteration_s",
        "Time per token",
        "s",
        predicted,
        gap.value if gap else None,
        "(weights + sequences x context x KV bytes per token) / bandwidth",
        f"median gap between chunks, {gap.source}" if gap else "",
        note,
    )


def _prefill(knobs: Knobs, facts: Mapping[str, float], signals: Mapping[str, Signal], peaks: Peaks, is_gpu: bool) -> Figure:
    peak = flops_peak(knobs, facts, peaks, is_gpu, serves=True)
    predicted, note = None, "minimum"
    if why := lacking(facts, "layer_parameters", "d_model", "n_layer"):
        note = f"not predicted: {why}"
    elif not peak or knobs.get("quantization", "none") != "none":
        note = f"not predicted: {NO_PEAK}"
    else:
        n, width, depth = signals["client.prompt_tokens"].value, facts["d_model"], facts["n_layer"]
        found = signals.get("server.prefix_hit_ratio")
        left = n * (1 - (found.value if found else 0.0))
        predicted = (2 * facts["layer_parameters"] * left + 2 * left * n * width * depth) / peak[0]
    measured = signals.get("server.prefill_s")
    return Figure(
        "serving.prefill_s",
        "Time of a prompt's prefill",
        "s",
        predicted,
        measured.value if measured else None,
        "(2 x layer parameters x n + 2 n^2 x width x layers, causal attention) / peak, for n tokens without prefix cache hits",
        measured.source if measured else "",
        note,
    )


def _capacity(facts: Mapping[str, float], signals: Mapping[str, Signal]) -> Figure:
    whole = signals["client.prompt_tokens"].value + signals["client.output_tokens"].value
    tokens, peak = facts.get("kv_cache_tokens"), signals.get("server.kv_cache_peak_ratio")
    running = signals.get("server.requests_running")
    full = peak is not None and peak.value >= FULL and running is not None
    return Figure(
        "serving.kv_sequences",
        "Sequences that the KV cache holds",
        "sequences",
        tokens / whole if tokens else None,
        running.value if full and running else None,
        "KV cache tokens / (prompt + output tokens)",
        running.source if full and running else "",
        ("" if full else "not measured: the cache was not full") if tokens else f"not predicted: {lacking(facts, 'kv_cache_tokens')}",
    )
