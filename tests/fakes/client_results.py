"""Result files of other clients, made from the field names of the programs that write them; and a
simulated server whose requests fill them.

Sources: vllm `vllm/benchmarks/serve.py` at 009e6d4 and `benchmarks/benchmark_serving.py` at
0049e29; sglang 0.5.23 `sglang/benchmark/serving.py`; aiperf 0.13.0 and 0.4.0
`aiperf/common/models/export_models.py`, `record_models.py`; guidellm 0.8.1
`guidellm/benchmark/schemas` and 0.3.1 `guidellm/benchmark/benchmark.py`.
"""

from __future__ import annotations

import datetime
import heapq
import json
import math
import random
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

MODEL = "Qwen/Qwen3-8B"
BEGUN = 1_780_000_000.0


class Sent(NamedTuple):
    """A request: seconds after the start of the run, and what came back."""

    start: float
    ttft: float
    gaps: tuple[float, ...]
    prompt: int
    error: str = ""

    @property
    def output(self) -> int:
        return 0 if self.error else len(self.gaps) + 1

    @property
    def e2e(self) -> float:
        return self.ttft + sum(self.gaps)

    @property
    def end(self) -> float:
        return self.start + self.e2e


def serve(
    seed: int,
    *,
    count: int = 200,
    users: int = 8,
    rate: float = 0.0,
    slower: float = 1.0,
    token_s: float = 0.02,
    output: int = 40,
    prompt: int = 128,
    seats: int = 8,
    failing: float = 0.0,
    spread: float = 0.0,
) -> list[Sent]:
    """The requests of a run on a server with `seats` sequences. `rate`: an open loop with Poisson
    arrivals; 0: a closed loop of `users`. `slower`: the times of the server are longer by this
    factor. `spread`: standard deviation of the log speed between runs."""
    chance = random.Random(seed)
    slower *= math.exp(chance.gauss(0, spread)) if spread else 1.0
    free = [0.0] * seats
    heapq.heapify(free)
    ready = [0.0] * users
    heapq.heapify(ready)
    due, sent = 0.0, []
    for _ in range(count):
        if rate:
            due += chance.expovariate(rate)
        else:
            due = heapq.heappop(ready)
        begun = max(due, heapq.heappop(free))
        drift = math.exp(0.1 * math.sin(begun / 7))  # the load of a server varies slowly
        first = begun - due + slower * drift * chance.gammavariate(4, 0.05 / 4)
        tokens = max(2, round(output * chance.uniform(0.8, 1.2)))
        gaps = tuple(slower * drift * token_s * chance.uniform(0.8, 1.2) for _ in range(tokens - 1))
        one = Sent(
            due,
            first,
            gaps,
            round(prompt * chance.uniform(0.9, 1.1)),
            "ServerDisconnectedError" if chance.random() < failing else "",
        )
        sent.append(one)
        heapq.heappush(free, one.end)
        if not rate:
            heapq.heappush(ready, one.end)
    return sorted(sent)


def answered(sent: Sequence[Sent]) -> list[Sent]:
    return [one for one in sent if not one.error]


def duration(sent: Sequence[Sent]) -> float:
    return max(one.end for one in sent)


def _percentiles(name: str, values: Sequence[float], shares: Sequence[int]) -> dict[str, float]:
    """The figures of a latency in milliseconds, as numpy computes them."""
    ordered = sorted(values)

    def at(share: float) -> float:
        place = (len(ordered) - 1) * share / 100
        low = math.floor(place)
        return ordered[low] + (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]) * (
            place - low
        )

    mean = statistics.fmean(ordered)
    deviation = math.sqrt(statistics.fmean((value - mean) ** 2 for value in ordered))
    figures = {"mean": mean, "median": at(50), "std": deviation} | {
        f"p{share}": at(share) for share in shares
    }
    return {f"{word}_{name}_ms": value * 1000 for word, value in figures.items()}


def _latencies(sent: Sequence[Sent]) -> dict[str, list[float]]:
    good = answered(sent)
    return {
        "ttft": [one.ttft for one in good],
        "tpot": [(one.e2e - one.ttft) / (one.output - 1) for one in good],
        "itl": [gap for one in good for gap in one.gaps],
        "e2e": [one.e2e for one in good],
    }


def _load(rate: float, users: int | None) -> dict[str, Any]:
    return {"request_rate": rate or "inf", "burstiness": 1.0, "max_concurrency": users}


def _lists(sent: Sequence[Sent]) -> dict[str, Any]:
    return {
        "input_lens": [one.prompt for one in sent],
        "output_lens": [one.output for one in sent],
        "ttfts": [0.0 if one.error else one.ttft for one in sent],
        "itls": [[] if one.error else list(one.gaps) for one in sent],
        "generated_texts": ["" if one.error else 'said "hello"\n' for one in sent],
        "errors": [one.error for one in sent],
    }


def vllm(
    sent: Sequence[Sent],
    *,
    detailed: bool = True,
    rate: float = 0.0,
    users: int | None = 8,
    begun: float = BEGUN,
    model: str = MODEL,
    old: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A result of `vllm bench serve`. `old`: of benchmark_serving.py, without failures and the
    times of sending."""
    good, seconds, latencies = answered(sent), duration(sent), _latencies(sent)
    ended = datetime.datetime.fromtimestamp(begun + seconds)
    result = {
        "date": ended.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "vllm",
        "backend": "vllm",
        "label": None,
        "model_id": model,
        "tokenizer_id": model,
        "num_prompts": len(sent),
        **_load(rate, None if rate else users),
        "duration": seconds,
        "completed": len(good),
        "failed": len(sent) - len(good),
        "total_input_tokens": sum(one.prompt for one in good),
        "total_output_tokens": sum(one.output for one in good),
        "request_throughput": len(good) / seconds,
        "request_goodput": None,
        "output_throughput": sum(one.output for one in good) / seconds,
        "total_token_throughput": sum(one.output + one.prompt for one in good) / seconds,
        **_lists(sent),
        "start_times": [7000.25 + one.start for one in sent],
        "latencies": [one.e2e for one in sent],
        "queue_times": [0.0 for one in sent],
        "max_output_tokens_per_s": 500.0,
        "max_concurrent_requests": 9,
        "rtfx": 0.0,
    }
    for name in ("ttft", "tpot", "itl"):
        result |= _percentiles(name, latencies[name], (99,))
    if old:
        for name in (
            "failed",
            "start_times",
            "latencies",
            "queue_times",
            "label",
            "endpoint_type",
            "max_output_tokens_per_s",
            "rtfx",
        ):
            del result[name]
        result["request_goodput:"] = result.pop("request_goodput")
    if not detailed:
        for name in (
            "input_lens",
            "output_lens",
            "start_times",
            "ttfts",
            "itls",
            "generated_texts",
            "errors",
            "latencies",
            "queue_times",
        ):
            result.pop(name, None)
    return result | more


def sglang(
    sent: Sequence[Sent],
    *,
    detailed: bool = True,
    rate: float = 0.0,
    users: int | None = 8,
    backend: str = "sglang",
    **more: Any,
) -> dict[str, Any]:
    """A result of SGLang's bench_serving. It has no time; a rate without a limit is Infinity, which
    Python writes."""
    good, seconds, latencies = answered(sent), duration(sent), _latencies(sent)
    result = {
        "tag": None,
        "backend": backend,
        "dataset_name": "random",
        "request_rate": rate or math.inf,
        "max_concurrency": None if rate else users,
        "sharegpt_output_len": None,
        "random_input_len": 128,
        "random_output_len": 40,
        "random_range_ratio": 0.9,
        "server_info": {"model_path": MODEL, "served_model_name": MODEL, "version": "0.5.23"},
        "duration": seconds,
        "completed": len(good),
        "total_input_tokens": sum(one.prompt for one in good),
        "total_output_tokens": sum(one.output for one in good),
        "total_output_tokens_retokenized": sum(one.output for one in good),
        "request_throughput": len(good) / seconds,
        "output_throughput": sum(one.output for one in good) / seconds,
        "total_throughput": sum(one.output + one.prompt for one in good) / seconds,
        "concurrency": sum(one.e2e for one in good) / seconds,
        "accept_length": None,
    }
    for word, name in (("e2e_latency", "e2e"), ("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl")):
        result |= _percentiles(word, latencies[name], (90, 95, 99))
    return result | (_lists(sent) if detailed else {}) | more


def _metric(values: Sequence[float], unit: str) -> dict[str, Any]:
    figures = _percentiles("x", values, (1, 5, 10, 25, 75, 90, 95, 99))
    named = {key.removesuffix("_x_ms"): value / 1000 for key, value in figures.items()}
    named["avg"], named["p50"] = named.pop("mean"), named.pop("median")
    return {"unit": unit, **named, "min": min(values), "max": max(values), "count": len(values)}


def aiperf(
    sent: Sequence[Sent],
    *,
    rate: float = 0.0,
    users: int | None = 8,
    begun: float = BEGUN,
    old: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A summary of AIPerf 0.13; `old`: of 0.4."""
    good, seconds, latencies = answered(sent), duration(answered(sent)), _latencies(sent)
    phase = (
        {"type": "poisson", "rate": rate} if rate else {"type": "concurrency", "concurrency": users}
    )
    if old:
        loadgen = (
            {"request_rate": rate, "request_rate_mode": "poisson"}
            if rate
            else {"concurrency": users}
        )
        config: dict[str, Any] = {
            "endpoint": {"model_names": [MODEL], "streaming": True},
            "loadgen": {"request_count": len(sent), **loadgen},
        }
    else:
        config = {
            "models": {"items": [{"name": MODEL}]},
            "phases": [{"name": "warmup", "type": "concurrency", "concurrency": 1, "requests": 5}],
        }
        config["phases"].append(
            {"name": "profiling", "kind": "profiling", "requests": len(sent), **phase}
        )
    local = [datetime.datetime.fromtimestamp(begun + offset).isoformat() for offset in (0, seconds)]
    return {
        "schema_version": "1.0" if old else "1.4",
        "aiperf_version": "0.4.0" if old else "0.13.0",
        "request_throughput": {"unit": "requests/sec", "avg": len(good) / seconds},
        "request_latency": _metric([value * 1000 for value in latencies["e2e"]], "ms"),
        "request_count": {"unit": "requests", "avg": float(len(good))},
        "time_to_first_token": _metric([value * 1000 for value in latencies["ttft"]], "ms"),
        "inter_token_latency": _metric([value * 1000 for value in latencies["tpot"]], "ms"),
        "output_token_throughput": {
            "unit": "tokens/sec",
            "avg": sum(one.output for one in good) / seconds,
        },
        "output_sequence_length": _metric([one.output for one in good], "tokens"),
        "input_sequence_length": _metric([one.prompt for one in good], "tokens"),
        "benchmark_duration": {"unit": "sec", "avg": seconds},
        **(
            {"error_request_count": {"unit": "requests", "avg": float(len(sent) - len(good))}}
            if len(good) < len(sent)
            else {}
        ),
        "input_config": config,
        "was_cancelled": False,
        "error_summary": [
            {
                "error_details": {"code": 503, "type": "ServerError", "message": "busy"},
                "count": len(sent) - len(good),
            }
        ]
        if len(good) < len(sent)
        else [],
        "start_time": local[0],
        "end_time": local[1],
        **more,
    }


def aiperf_records(sent: Sequence[Sent], *, begun: float = BEGUN, warmup: int = 2) -> str:
    """The lines of `profile_export.jsonl`."""
    lines = []
    for number, one in enumerate([*[sent[0]] * warmup, *sent]):
        phase = "warmup" if number < warmup else "profiling"
        start = begun + one.start - (60 if number < warmup else 0)
        metrics: dict[str, Any] = (
            {}
            if one.error
            else {
                "time_to_first_token": {"value": one.ttft * 1000, "unit": "ms"},
                "inter_token_latency": {
                    "value": (one.e2e - one.ttft) / (one.output - 1) * 1000,
                    "unit": "ms",
                },
                "inter_chunk_latency": {"value": [gap * 1000 for gap in one.gaps], "unit": "ms"},
                "request_latency": {"value": one.e2e * 1000, "unit": "ms"},
                "output_sequence_length": {"value": one.output, "unit": "tokens"},
                "input_sequence_length": {"value": one.prompt, "unit": "tokens"},
            }
        )
        metadata = {
            "session_num": number,
            "x_request_id": f"id-{number}",
            "request_start_ns": round(start * 1e9),
            "request_end_ns": round((start + one.e2e) * 1e9),
            "worker_id": "worker_1",
            "record_processor_id": "record_processor_1",
            "benchmark_phase": phase,
            "was_cancelled": False,
        }
        error = {"code": 503, "type": "ServerError", "message": one.error} if one.error else None
        lines.append(
            json.dumps(
                {"metadata": metadata, "metrics": metrics, **({"error": error} if error else {})}
            )
        )
    return "\n".join(lines) + "\n"


def _distribution(values: Sequence[float], scale: float = 1.0) -> dict[str, Any]:
    named = {
        key.removesuffix("_x_ms"): value / 1000 * scale
        for key, value in _percentiles("x", values, (1, 5, 10, 25, 75, 90, 95, 99)).items()
    }
    percentiles = {
        f"p{int(key[1:]):02d}": value for key, value in named.items() if key[1:].isdigit()
    } | {"p50": named["median"]}
    summary = {
        "mean": named["mean"],
        "median": named["median"],
        "std_dev": named["std"],
        "count": len(values),
        "percentiles": percentiles,
    }
    return {"successful": summary, "incomplete": {}, "errored": {}, "total": summary}


def guidellm(
    runs: Sequence[Sequence[Sent]],
    *,
    rates: Sequence[float] = (),
    users: int = 8,
    begun: float = BEGUN,
    old: bool = False,
    sampled: bool = False,
    warmup_s: float = 0.0,
    **more: Any,
) -> dict[str, Any]:
    """A report of GuideLLM 0.8.1 with a benchmark for each run; `old`: of 0.3.1. `sampled`: with
    only a few of the requests. `warmup_s`: the measured time begins later; the figures are those of
    the requests that overlap it, and all requests are in the report."""
    benchmarks = []
    for place, sent in enumerate(runs):
        counted = [one for one in sent if one.end > warmup_s]
        good, seconds, latencies = answered(counted), duration(sent) - warmup_s, _latencies(counted)
        started = begun + 1000.0 * place
        rate = rates[place] if rates else 0.0
        strategy = (
            {"type_": "poisson", "rate": rate, "random_seed": 42}
            if rate
            else {"type_": "concurrent", "streams": users}
        )
        totals = {
            "successful": len(good),
            "errored": len(counted) - len(good),
            "incomplete": 0,
            "total": len(counted),
        }
        requests: dict[str, list[dict[str, Any]]] = {
            "successful": [],
            "errored": [],
            "incomplete": [],
        }
        for number, one in enumerate(sent[:10] if sampled else sent):
            times = {
                "request_latency": one.e2e,
                "time_to_first_token_ms": one.ttft * 1000,
                "prompt_tokens": one.prompt,
                "output_tokens": one.output,
            }
            if old:
                entry = {
                    "request_id": str(number),
                    "start_time": started + one.start,
                    "end_time": started + one.end,
                    **times,
                }
                entry |= {"first_token_time": started + one.start + one.ttft} | (
                    {"error": one.error} if one.error else {}
                )
            else:
                entry = {
                    "request_id": str(number),
                    "request_start_time": started + one.start,
                    "request_end_time": started + one.end,
                    **times,
                }
                entry |= {
                    "info": {
                        "status": "errored" if one.error else "completed",
                        "error": one.error or None,
                    }
                }
            requests["errored" if one.error else "successful"].append(entry)
        metrics: dict[str, Any] = {
            "requests_per_second": _distribution([len(good) / seconds] * 2),
            "output_tokens_per_second": _distribution(
                [sum(one.output for one in good) / seconds] * 2
            ),
            "request_latency": _distribution(latencies["e2e"]),
            "prompt_token_count": _distribution([one.prompt for one in good]),
            "output_token_count": _distribution([one.output for one in good]),
            "time_to_first_token_ms": _distribution(latencies["ttft"], 1000),
            "inter_token_latency_ms": _distribution(latencies["tpot"], 1000),
            "time_per_output_token_ms": _distribution([one.e2e / one.output for one in good], 1000),
        }
        if old:
            where = {
                "args": {"strategy": strategy, "max_number": len(sent)},
                "worker": {"backend_model": MODEL},
                "request_totals": totals,
            }
        else:
            limit = {
                "max_requests": {
                    "type_": "max_requests",
                    "args": {"kind": "max_requests", "count": len(sent)},
                    "current_index": 0,
                }
            }
            where = {
                "config": {
                    "strategy": strategy,
                    "constraints": limit,
                    "backend": {"model": MODEL, "target": "http://localhost:8000"},
                }
            }
            metrics["request_totals"] = totals
        benchmarks.append(
            {
                "type_": "generative_benchmark",
                "start_time": started + warmup_s,
                "end_time": started + warmup_s + seconds,
                "duration": seconds,
                "metrics": metrics,
                "requests": requests,
            }
            | where
        )
    metadata = (
        {}
        if old
        else {
            "metadata": {
                "version": 2,
                "guidellm_version": "0.8.1",
                "python_version": "3.12.3",
                "platform": "Linux",
            }
        }
    )
    return metadata | {"benchmarks": benchmarks} | more
