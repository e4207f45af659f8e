"""Result files of AIPerf: the summary `profile_export_aiperf.json`, and the single requests of `profile_export.jsonl`.

Field names: aiperf 0.2.0, 0.4.0, 0.8.0 and 0.13.0, `aiperf/common/models/export_models.py` and `record_models.py`. The configuration (`input_config`) has `endpoint`
and `loadgen` up to 0.8 or later, and `models` and `phases` in 0.13. AIPerf's ITL is (E2E - TTFT) / (output tokens - 1): `tpot_s` here; its
inter-chunk latency is `chunk_gap_s`. The single requests stand without the load and the model.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from gpuconsole.engine.clients.fields import ClientFileError, Fields
from gpuconsole.engine.clients.result import NO_TIMES, Result, at, closed_loop, lengths_of, open_loop, printed
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.run import Distribution
from gpuconsole.model.serving import Request
from gpuconsole.session.figures.distributions import distribution

CLIENT = "AIPerf"
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}
LATENCIES = {
    "time_to_first_token": "ttft_s",
    "inter_token_latency": "tpot_s",
    "inter_chunk_latency": "chunk_gap_s",
    "request_latency": "e2e_s",
}
LENGTHS = {"input_sequence_length": "prompt_tokens", "output_sequence_length": "output_tokens"}
NS = 1e-9
MOST_NAMES = 3
SAME = 1e-3
"""The summary and the single requests of one run agree on its rates: the end of a run may be counted a little differently."""


def recognises(fields: Fields) -> bool:
    """Whether this is a summary: metrics with a unit, as AIPerf and GenAI-Perf write them."""
    return _is_metric(fields, "request_throughput") and _is_metric(fields, "request_latency")


def is_record(fields: Fields) -> bool:
    """Whether this is a single request."""
    if not {"metadata", "metrics"} <= set(fields):
        return False
    try:
        return {"request_start_ns", "request_end_ns"} <= set(fields.inner("metadata"))
    except ClientFileError:
        return False


def read(fields: Fields) -> Result:
    """The result of a summary. Raises ClientFileError."""
    answered = round(_mean(fields, "request_count") or 0)
    rate = _mean(fields, "request_throughput")
    duration_s = _seconds(fields, "benchmark_duration") or (answered / rate if rate else 0.0)
    if not duration_s:
        raise ClientFileError("the summary has no benchmark_duration and no request_throughput")
    config = fields.inner("input_config")
    load = _load(config)
    doubts = ["the run was cancelled before its end"] if fields.value("was_cancelled", bool) else []
    if fields.value("is_complete", bool) is False:
        doubts.append(f"AIPerf did not complete the run: {fields.text('incomplete_reason') or 'no reason is given'}")
    failures = {
        entry.inner("error_details").text("type") or entry.inner("error_details").text("message") or "no cause is given": entry.count(
            "count"
        )
        or 0
        for entry in fields.each("error_summary")
    }
    missing = {"workload.intervals": f"{NO_TIMES}: profile_export.jsonl beside it has them"}
    if not load:
        missing["workload.load"] = "the file has no configuration of the load"
    return Result(
        client=CLIENT,
        version=fields.text("aiperf_version"),
        model=_model(config),
        started=_started(fields),
        duration_s=duration_s,
        load=load,
        answered=answered,
        failed=round(_mean(fields, "error_request_count") or 0),
        failures=failures,
        tokens_per_s=_mean(fields, "output_token_throughput"),
        requests_per_s=rate,
        goodput_per_s=_mean(fields, "goodput"),
        prompt_tokens=_mean(fields, "input_sequence_length"),
        output_tokens=_mean(fields, "output_sequence_length"),
        length_errors={name: error for tag, name in LENGTHS.items() if (error := _length_error(fields.inner(tag), answered)) is not None},
        latencies={name: known for tag, name in LATENCIES.items() if (known := _latency(fields, tag, answered)) is not None},
        whole=False,
        doubts=doubts,
        unavailable=missing,
    )


def read_records(records: Sequence[Fields]) -> Result:
    """Return the result of single requests. Requests of the warm-up do not count. Raises ClientFileError."""
    metas = [record.inner("metadata") for record in records]
    counted = [(record, meta) for record, meta in zip(records, metas, strict=True) if meta.text("benchmark_phase") in ("profiling", "")]
    if not counted:
        raise ClientFileError("all requests belong to the warm-up: none counts")
    begun = min(_ns(meta, "request_start_ns") for _, meta in counted)
    requests = [_request(record, meta, begun) for record, meta in counted]
    answered = [request for request in requests if not request.error]
    duration_s = max((request.t for request in answered), default=max(_ns(meta, "request_end_ns") - begun for _, meta in counted) * NS)
    if duration_s <= 0:
        raise ClientFileError("the requests took no time: the file is damaged")
    output = [request.output_tokens for request in answered]
    prompt_mean, output_mean = lengths_of(requests)
    chunks = [gap for record, _ in counted for gap in _gaps(record)]
    return Result(
        client=CLIENT,
        started=at(begun * NS),
        duration_s=duration_s,
        load={},
        answered=len(answered),
        failed=len(requests) - len(answered),
        failures=dict(Counter(request.error for request in requests if request.error)),
        tokens_per_s=sum(output) / duration_s or None,
        requests_per_s=len(answered) / duration_s or None,
        prompt_tokens=prompt_mean,
        output_tokens=output_mean,
        latencies={"chunk_gap_s": gaps} if (gaps := distribution(chunks)) is not None else {},
        requests=sorted(requests, key=lambda request: request.t - (request.e2e_s or 0.0)),
        unavailable={"workload.load": "profile_export.jsonl has no model and no load: profile_export_aiperf.json beside it has them"},
    )


def may_be(start: bytes) -> bool:
    """Whether a file with this beginning may be a result of AIPerf: the others of a folder need not be read."""
    return b'"request_start_ns"' in start or b'"request_throughput"' in start or b'"aiperf_version"' in start


def joined(result: Result, others: Callable[[], Iterable[Result]]) -> Result:
    """The summary and the single requests of one run together. `others`: the results of the other files of the folder. `result` where none of them is its other half."""
    if result.load and result.requests:
        return result
    for other in others():
        if other.client != CLIENT or bool(other.requests) == bool(result.requests) or not _one_run(result, other):
            continue
        summary, single = (other, result) if result.requests else (result, other)
        missing = {name: why for name, why in summary.unavailable.items() if name != "workload.intervals"}
        return msgspec.structs.replace(summary, requests=single.requests, started=single.started, whole=True, unavailable=missing)
    return result


def _one_run(one: Result, other: Result) -> bool:
    """Whether two results have the same numbers of requests and the same rates."""
    rates = ((one.tokens_per_s, other.tokens_per_s), (one.requests_per_s, other.requests_per_s))
    return (one.answered, one.failed) == (other.answered, other.failed) and all(
        a is not None and b is not None and abs(a - b) <= SAME * max(a, b) for a, b in rates
    )


# --- the summary ---------------------------------------------------------------------------------------------


def _is_metric(fields: Fields, tag: str) -> bool:
    try:
        return {"unit", "avg"} <= set(fields.inner(tag))
    except ClientFileError:
        return False


def _mean(fields: Fields, tag: str) -> float | None:
    return fields.inner(tag).number("avg")


def _scale(metric: Fields) -> float:
    """Seconds in the unit of a time. Raises ClientFileError for an unknown unit."""
    unit = metric.text("unit")
    if unit not in UNITS:
        raise ClientFileError(f"{unit!r} is no unit of time; known: {', '.join(UNITS)}")
    return UNITS[unit]


def _seconds(fields: Fields, tag: str) -> float | None:
    return fields.inner(tag).seconds("avg", _scale(fields.inner(tag))) if tag in fields else None


def _latency(fields: Fields, tag: str, answered: int) -> Distribution | None:
    metric = fields.inner(tag)
    if "avg" not in metric:
        return None
    scale = _scale(metric)
    values = {name: metric.seconds(name, scale) for name in ("avg", "std", "p50", "p90", "p95", "p99")}
    return printed(values.pop("avg"), values.pop("std"), metric.count("count") or answered, values)


def _length_error(metric: Fields, answered: int) -> float | None:
    """The standard error of a mean length as a share of it."""
    mean, std = metric.number("avg"), metric.number("std")
    return std / mean / math.sqrt(answered) if mean and std is not None and answered else None


def _model(config: Fields) -> str:
    """The model, or the models, of the configuration; empty where it has none."""
    models: Any = _plain(config, "models") or _plain(config.inner("endpoint"), "model_names")
    if isinstance(models, dict):
        models = [item.get("name") if isinstance(item, dict) else item for item in models.get("items") or []]
    names = [name for name in models if isinstance(name, str)] if isinstance(models, list) else [models] if isinstance(models, str) else []
    return ", ".join(names[:MOST_NAMES])


def _plain(fields: Fields, key: str) -> Any:
    try:
        return fields.value(key, object)
    except ClientFileError:
        return None


def _load(config: Fields) -> Knobs:
    """How requests were sent; empty where the configuration does not tell."""
    phases = (
        [phase for phase in config.each("phases") if (phase.text("kind") or phase.text("name")) != "warmup"] if "phases" in config else []
    )
    if phases:
        return _of_phase(phases[-1]) | ({"phases": len(phases)} if len(phases) > 1 else {})
    old = config.inner("loadgen")
    rate, users = old.number("request_rate"), old.value("concurrency", object)
    load: Knobs = {} if (count := old.count("request_count")) is None else {"requests": count}
    if rate:
        arrivals = old.text("arrival_pattern") or old.text("request_rate_mode") or "poisson"
        return load | open_loop(rate, arrivals, users if isinstance(users, int) else None)
    return load | closed_loop(users) if isinstance(users, int) else load


def _of_phase(phase: Fields) -> Knobs:
    load: Knobs = {} if (count := phase.count("requests")) is None else {"requests": count}
    users, rate, kind = phase.count("concurrency"), phase.number("rate"), phase.text("type")
    if rate:
        smoothness = phase.number("smoothness")
        return load | open_loop(rate, kind, users) | ({} if smoothness is None else {"burstiness": smoothness})
    if users:
        return load | closed_loop(users)
    return load | ({"arrivals": kind} if kind else {})


def _started(fields: Fields) -> str:
    try:
        return datetime.datetime.fromisoformat(fields.text("start_time")).isoformat()
    except ValueError:
        return ""


# --- single requests -----------------------------------------------------------------------------------------


def _ns(meta: Fields, key: str) -> int:
    value = meta.value(key, int)
    if value is None or value < 0:
        raise ClientFileError(f"metadata.{key}: must be a time in nanoseconds")
    return value


def _request(record: Fields, meta: Fields, begun: int) -> Request:
    sent, ended = _ns(meta, "request_start_ns"), _ns(meta, "request_end_ns")
    metrics, issued = record.inner("metrics"), meta.value("credit_issued_ns", int)
    failed = record.inner("error")
    error = failed.text("type") or failed.text("message") or "failed" if set(failed) else ""
    if not error and meta.value("was_cancelled", bool):
        error = "cancelled"
    values = {name: _of(metrics, tag) for tag, name in LATENCIES.items() if name != "chunk_gap_s"}
    return Request(
        t=max(0, ended - begun) * NS,
        client_queue_s=max(0, sent - issued) * NS if issued else 0.0,
        ttft_s=None if error else values["ttft_s"],
        e2e_s=None if error else values["e2e_s"] or max(0, ended - sent) * NS,
        prompt_tokens=round(_value(metrics, "input_sequence_length") or 0),
        output_tokens=round(_value(metrics, "output_sequence_length") or 0),
        error=error,
    )


def _value(metrics: Fields, tag: str) -> float | None:
    return metrics.inner(tag).number("value")


def _of(metrics: Fields, tag: str) -> float | None:
    """The seconds of a latency of one request."""
    metric = metrics.inner(tag)
    return metric.seconds("value", _scale(metric)) if "value" in metric else None


def _gaps(record: Fields) -> list[float]:
    """The seconds between chunks of one request, where it has them."""
    metric = record.inner("metrics").inner("inter_chunk_latency")
    if "value" not in metric:
        return []
    scale = _scale(metric)
    return [gap * scale for gap in metric.numbers("value")]
