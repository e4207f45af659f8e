"""Result files of `vllm bench serve` (`--save-result`, `--append-result`, `--save-detailed`) and of its ancestor `benchmarks/benchmark_serving.py`.

Field names: vllm `vllm/benchmarks/serve.py` at 009e6d4 (2026) and `benchmarks/benchmark_serving.py` at 0049e29 (2025). Older files have no `failed`, `start_times`,
`latencies` and `queue_times`, and write `request_goodput:` with a colon. vLLM's ITL is the gap between two chunks: `chunk_gap_s` here. `date` is the end of
the run in the local time of the client.
"""

from __future__ import annotations

import datetime
from collections import Counter

import msgspec

from gpuconsole.engine.clients.fields import ClientFileError, Fields
from gpuconsole.engine.clients.result import NO_TIMES, Result, began, closed_loop, lengths_of, open_loop, printed
from gpuconsole.model.encoding import UNREADABLE
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.run import Distribution
from gpuconsole.model.serving import Request

CLIENT = "vllm bench serve"
MS = 1e-3
LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "chunk_gap_s", "e2el": "e2e_s", "client_queue_time": "client_queue_s"}
EVERY = float("inf")


def recognises(fields: Fields) -> bool:
    return {"total_token_throughput", "request_throughput", "completed", "tokenizer_id"} <= set(fields)


def read(fields: Fields) -> Result:
    """Raises ClientFileError."""
    if "output_throughput" not in fields:
        raise ClientFileError("a benchmark of embeddings has no output tokens: only results of generation are compared")
    duration_s, answered = fields.duration("duration"), fields.count("completed") or 0
    prompts = fields.count("num_prompts")
    failed = fields.count("failed")
    if failed is None and prompts is not None:
        failed = max(0, prompts - answered)
    requests, timed = _requests(fields, duration_s)
    whole = len(requests) == answered + (failed or 0)
    backend = fields.text("backend") or fields.text("endpoint_type")
    goodput = next((number for key in ("request_goodput", "request_goodput:") if (number := fields.number(key)) is not None), None)
    prompt, output = fields.number("total_input_tokens"), fields.number("total_output_tokens")
    missing = {"workload.itl_s": "vLLM's ITL is the gap between chunks: see chunk_gap_s"}
    if not requests:
        missing["workload.intervals"] = f"{NO_TIMES}: vllm bench serve writes them with --save-detailed"
    return Result(
        client=CLIENT,
        model=fields.text("model_id"),
        engine="" if backend.startswith("openai") else backend,
        engine_source="the option --backend of the client",
        started=_started(fields, duration_s),
        duration_s=duration_s,
        load=_load(fields, prompts or answered + (failed or 0)),
        answered=answered,
        failed=failed,
        failures=dict(Counter(request.error for request in requests if request.error)),
        tokens_per_s=fields.number("output_throughput"),
        requests_per_s=fields.number("request_throughput"),
        goodput_per_s=goodput,
        prompt_tokens=prompt / answered if prompt and answered else lengths_of(requests)[0],
        output_tokens=output / answered if output and answered else None,
        latencies={name: known for word, name in LATENCIES.items() if (known := latency(fields, word, answered)) is not None},
        requests=requests,
        whole=whole,
        timed=timed,
        unavailable=missing,
    )


def latency(fields: Fields, word: str, count: int) -> Distribution | None:
    """The figures `mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms` of a latency."""
    shares = {f"p{share}": fields.seconds(f"p{share}_{word}_ms", MS) for share in (90, 95, 99)}
    median = fields.seconds(f"median_{word}_ms", MS)
    return printed(fields.seconds(f"mean_{word}_ms", MS), fields.seconds(f"std_{word}_ms", MS), count, {"p50": median, **shares})


def requests_of(fields: Fields, starts: list[float], latencies: list[float], queued: list[float]) -> list[Request]:
    """The single requests of lists with an entry for each request: `ttfts`, `itls`, `input_lens`, `output_lens`, `errors`. Empty without these lists. Raises
    ClientFileError where the lists are not of one length."""
    ttfts, outputs, prompts, gaps = (
        fields.numbers("ttfts"),
        fields.numbers("output_lens"),
        fields.numbers("input_lens"),
        fields.raws("itls"),
    )
    errors = fields.value("errors", list[str | None]) or [""] * len(ttfts)
    lists = [lst for lst in (outputs, prompts, gaps, errors, starts, latencies, queued) if lst]
    if not ttfts or not outputs or not (gaps or latencies):
        return []
    if any(len(lst) != len(ttfts) for lst in lists):
        raise ClientFileError("the lists of single requests differ in length: the file is damaged")
    requests = []
    for place, ttft in enumerate(ttfts):
        e2e = latencies[place] if latencies else ttft + _total(gaps[place])
        error = str(errors[place] or "") or ("no token came" if not outputs[place] and not ttft else "")
        requests.append(
            Request(
                t=starts[place] + e2e if starts else 0.0,
                client_queue_s=queued[place] if queued else 0.0,
                ttft_s=None if error else ttft or None,
                e2e_s=None if error else e2e or None,
                prompt_tokens=round(prompts[place]) if prompts else 0,
                output_tokens=round(outputs[place]),
                error=error,
            )
        )
    return requests


def _total(gaps: msgspec.Raw) -> float:
    try:
        total = sum(msgspec.json.decode(gaps, type=list[float]))
    except UNREADABLE as error:
        raise ClientFileError(f"itls: {error}") from None
    if not 0 <= total < EVERY:
        raise ClientFileError(f"itls: {total} must be 0 or more")
    return total


def _requests(fields: Fields, duration_s: float) -> tuple[list[Request], bool]:
    """The single requests, and whether the file has the times at which they were sent."""
    starts = fields.numbers("start_times")
    if starts and (first := min(starts)) >= 0:
        starts = [start - first for start in starts]
    requests = requests_of(fields, starts, fields.numbers("latencies"), fields.numbers("queue_times"))
    return requests, bool(starts) and all(request.t <= 2 * duration_s for request in requests)


def _load(fields: Fields, count: int) -> Knobs:
    """How the requests were sent: at a rate, or by a number of users at a time. Without a limit, all requests were sent at the start."""
    users = fields.count("max_concurrency")
    rate = fields.number_or_word("request_rate")
    load: Knobs = {"requests": count}
    if strategy := fields.text("ramp_up_strategy"):
        ends = [fields.number(f"ramp_up_{end}_rps") or 0.0 for end in ("start", "end")]
        return load | open_loop(ends[1], f"{strategy} ramp from {ends[0]:g}/s", users)
    if isinstance(rate, float | int) and 0 < rate < EVERY:
        burstiness = fields.number("burstiness")
        return load | open_loop(float(rate), "gamma", users) | {"burstiness": 1.0 if burstiness is None else burstiness}
    return load | closed_loop(users or count)


def _started(fields: Fields, duration_s: float) -> str:
    try:
        return began(datetime.datetime.strptime(fields.text("date"), "%Y%m%d-%H%M%S"), duration_s)
    except (ValueError, OverflowError):
        return ""
