"""Reports of GuideLLM in JSON: a result for each benchmark (each rate or number of streams) of the report.

Field names: guidellm 0.3.1 `guidellm/benchmark/benchmark.py`; 0.4.0, 0.5.0, 0.6.0 `guidellm/benchmark/schemas/generative`; 0.8.1 `guidellm/benchmark/schemas`. Up to 0.3 a
request has `start_time`, `first_token_time` and `end_time`, and the load is in `args`; from 0.4 on it has `request_start_time`, and the load is in `config`.
GuideLLM's inter_token_latency is (last token - first token) / (output tokens - 1): `tpot_s` here. Its time_per_output_token contains the first token, and is left out.
Its figures are those of the requests that overlap the measured time, but a report also has the requests of the warm-up and the cool-down: they are left out.
"""

from __future__ import annotations

import math
from collections import Counter

from gpuconsole.engine.clients.fields import ClientFileError, Fields
from gpuconsole.engine.clients.result import NO_TIMES, Result, at, closed_loop, open_loop, printed
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.run import Distribution
from gpuconsole.model.serving import Request

CLIENT = "GuideLLM"
MS = 1e-3
LATENCIES = {"time_to_first_token_ms": ("ttft_s", MS), "inter_token_latency_ms": ("tpot_s", MS), "request_latency": ("e2e_s", 1.0)}
LENGTHS = {"prompt_tokens": "prompt_token_count", "output_tokens": "output_token_count"}
REQUESTS = ("max_number", "max_requests", "max_num_requests")
"""The names of the limit of requests, in the order of the versions."""
LIMITS = ("max_num", "count")
MOST_LIMIT = 1e9
SAMPLED = "the report has a sample of the requests only"


def recognises(fields: Fields) -> bool:
    try:
        benchmarks = fields.each("benchmarks")
    except ClientFileError:
        return False
    return bool(benchmarks) and all({"metrics", "requests"} <= set(benchmark) for benchmark in benchmarks)


def read(fields: Fields) -> list[Result]:
    """Raises ClientFileError."""
    version = fields.inner("metadata").text("guidellm_version")
    return [_result(benchmark, version) for benchmark in fields.each("benchmarks")]


def _result(benchmark: Fields, version: str) -> Result:
    metrics = benchmark.inner("metrics")
    totals = benchmark.inner("request_totals") if "request_totals" in benchmark else metrics.inner("request_totals")
    answered, failed = totals.count("successful") or 0, totals.count("errored") or 0
    started, ended = benchmark.number("start_time") or 0.0, benchmark.number("end_time") or 0.0
    duration_s = benchmark.number("duration") or ended - started
    if not 0 < duration_s < 1e8:
        raise ClientFileError("duration: must be the seconds of the benchmark, more than 0")
    groups = benchmark.inner("requests")
    requests = [_request(entry, started, "") for entry in groups.each("successful")]
    requests += [_request(entry, started, _error(entry)) for entry in groups.each("errored")]
    requests = [request for request in requests if request.t > 0 and request.t - (request.e2e_s or 0.0) < duration_s]
    whole = sum(not request.error for request in requests) == answered
    prompt, output = (_successful(metrics, name).number("mean") for name in LENGTHS.values())
    return Result(
        client=CLIENT,
        version=version,
        model=benchmark.inner("config").inner("backend").text("model") or benchmark.inner("worker").text("backend_model"),
        started=at(started) if started else "",
        duration_s=duration_s,
        load=_load(benchmark),
        answered=answered,
        failed=failed,
        failures=dict(Counter(request.error for request in requests if request.error)),
        tokens_per_s=_successful(metrics, "output_tokens_per_second").number("mean")
        if "config" in benchmark
        else (output or 0.0) * answered / duration_s or None,
        requests_per_s=_successful(metrics, "requests_per_second").number("mean"),
        prompt_tokens=prompt or None,
        output_tokens=output or None,
        length_errors={name: error for name in LENGTHS if (error := _length_error(metrics, name, answered)) is not None},
        latencies={
            name: known for tag, (name, scale) in LATENCIES.items() if (known := _latency(metrics, tag, scale, answered)) is not None
        },
        requests=sorted(requests, key=lambda request: request.t - (request.e2e_s or 0.0)) if whole else [],
        whole=whole,
        unavailable={} if whole else {"workload.intervals": SAMPLED if requests else NO_TIMES},
    )


def _successful(metrics: Fields, name: str) -> Fields:
    return metrics.inner(name).inner("successful")


def _latency(metrics: Fields, tag: str, scale: float, answered: int) -> Distribution | None:
    figures = _successful(metrics, tag)
    shares = figures.inner("percentiles")
    percentiles = {name: shares.seconds(name, scale) for name in ("p90", "p95", "p99")}
    median = figures.seconds("median", scale)
    return printed(
        figures.seconds("mean", scale),
        figures.seconds("std_dev", scale),
        figures.count("count") or answered,
        {"p50": median, **percentiles},
    )


def _length_error(metrics: Fields, name: str, answered: int) -> float | None:
    """The standard error of a mean length as a share of it."""
    figures = _successful(metrics, LENGTHS[name])
    mean, std = figures.number("mean"), figures.number("std_dev")
    return std / mean / math.sqrt(answered) if mean and std is not None and answered else None


def _load(benchmark: Fields) -> Knobs:
    """How requests were sent: the strategy, and the number of requests where it was the limit."""
    config = benchmark.inner("config") if "config" in benchmark else benchmark.inner("args")
    strategy = config.inner("strategy")
    kind, rate = strategy.text("type_"), strategy.number("rate")
    limits = config.inner("constraints") if "constraints" in config else config
    load: Knobs = {}
    for name in REQUESTS:
        if name in limits and (count := _limit(limits, name)) is not None:
            load["requests"] = count
    if rate and kind in ("constant", "poisson"):
        return load | open_loop(rate, kind, strategy.count("max_concurrency"))
    if kind == "synchronous":
        return load | closed_loop(1)
    if kind == "concurrent" and (streams := strategy.count("streams")):
        return load | closed_loop(streams)
    users = strategy.count("max_concurrency") if kind == "throughput" else None
    return load | ({"arrivals": kind} if kind else {}) | ({} if users is None else {"max_concurrency": users})


def _limit(limits: Fields, name: str) -> int | None:
    """A limit is a number, or an object that holds the number, in some versions among its attributes. None where it is a list: one for each benchmark."""
    limit = limits.value(name, object)
    places = [limit, limit.get("args"), limit.get("attributes")] if isinstance(limit, dict) else [{name: limit}]
    values = [place[key] for place in places if isinstance(place, dict) for key in (name, *LIMITS) if key in place]
    return next((round(value) for value in values if isinstance(value, int | float) and 0 < value < MOST_LIMIT), None)


def _request(entry: Fields, started: float, error: str) -> Request:
    ended = entry.number("request_end_time") or entry.number("end_time") or started
    return Request(
        t=ended - started,
        client_queue_s=0.0,
        ttft_s=None if error else entry.seconds("time_to_first_token_ms", MS) or None,
        e2e_s=None if error else entry.seconds("request_latency") or None,
        prompt_tokens=entry.count("prompt_tokens") or 0,
        output_tokens=entry.count("output_tokens") or 0,
        error=error,
    )


def _error(entry: Fields) -> str:
    return entry.text("error") or entry.inner("info").text("error") or "failed"
