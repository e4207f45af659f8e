"""What a client measured, in the words of this program; and the run that reports and comparisons read.

The rates, means and percentiles that the client printed are not computed again: the user knows these figures. If a file has the times of single requests,
two things are computed from these times: the figures that the client did not print, and the series for intervals.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from gpuconsole.engine.clients.fields import ClientFileError
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import CLIENT_WORKLOAD, Distribution, Run, SeriesData, Summary, Validity
from gpuconsole.model.serving import Fact, Request, ServerFacts
from gpuconsole.model.text import cut, visible
from gpuconsole.session.figures.account import REQUEST_TIMES, request_times
from gpuconsole.session.figures.distributions import distribution
from gpuconsole.session.figures.rate import Block, rate_distribution
from gpuconsole.session.figures.summary import FAILED, MOST_FAILED

DEVICE = "server"
BLOCKS = 40
"""Blocks of a series. The correlation of blocks is taken from the blocks (see `session.figures.rate.estimate`)."""
LEAST_BLOCKS = 4
"""Fewer blocks have no interval (see `experiments.statistics.MIN_BLOCKS`)."""
FEW_REQUESTS = 20
"""Fewer requests have no series."""
CUT = 80
NO_TIMES = "the file has no times of single requests"


class Result(msgspec.Struct, kw_only=True):
    """One run of a client.

    - `load`: how requests were sent; every entry must be equal in runs that are compared. `answered`, `failed`: numbers of requests; `failed` is None where
      the file does not tell. `prompt_tokens`, `output_tokens`: the means of an answered request; `length_errors`: their standard
      errors as shares of them, where the client has printed them.
    - `latencies`: what the client has printed, by the field of `Summary`. `requests`: single requests in the order in which they were sent. `whole`: they are all
      that were answered. `timed`: their times `t` are seconds after the start of the run; otherwise `t` is 0.
    """

    client: str
    version: str = ""
    model: str = ""
    engine: str = ""
    engine_source: str = ""
    started: str = ""
    duration_s: float
    load: Knobs
    answered: int
    failed: int | None = None
    failures: dict[str, int] = {}
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    goodput_per_s: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    length_errors: dict[str, float] = {}
    latencies: dict[str, Distribution] = {}
    requests: list[Request] = []
    whole: bool = True
    timed: bool = True
    doubts: list[str] = []
    unavailable: dict[str, str] = {}


def run_of(result: Result, number: str) -> Run:
    """The run of a result. Raises ClientFileError for a result that measured nothing."""
    answered = [request for request in result.requests if not request.error]
    summary = Summary(
        requests=result.answered,
        failed_requests=result.failed or 0,
        failures={cut(visible(cause), CUT): count for cause, count in Counter(result.failures).most_common(5)},
        goodput_per_s=result.goodput_per_s,
    )
    for field in (*REQUEST_TIMES, "client_queue_s"):
        own = distribution(request_times(answered, field)) if result.whole else None
        setattr(summary, field, _completed(result.latencies.get(field), own if own is not None and own.mean > 0 else None))
    for field in ("itl_s", "chunk_gap_s"):
        setattr(summary, field, result.latencies.get(field))
    series = _series(answered, result) if result.whole else {}
    for field, mean in (("tokens_per_s", result.tokens_per_s), ("requests_per_s", result.requests_per_s)):
        setattr(summary, field, _rate(mean, series.get(_key(field)), summary, result.answered))
    summary.samples_per_s = summary.requests_per_s
    facts = {"prompt_tokens_mean": result.prompt_tokens, "output_tokens_mean": result.output_tokens, **_length_errors(answered, result)}
    unavailable = dict(result.unavailable)
    if result.failed is None:
        unavailable["workload.failed_requests"] = "the file has no number of failed requests"
    if not series:
        unavailable.setdefault("workload.intervals", _why_no_series(result))
    return Run(
        id=number,
        scenario=result.client,
        workload=CLIENT_WORKLOAD,
        knobs=result.load,
        device=DEVICE,
        state="finished",
        started=result.started,
        duration_s=result.duration_s,
        steady_from_s=0.0,
        summary=summary,
        series=series,
        unavailable=unavailable,
        facts={name: mean for name, mean in facts.items() if mean is not None},
        server=_server(result),
        elsewhere=True,
        validity=_validity(result),
        client=f"{result.client} {result.version}".strip(),
    )


def lengths_of(requests: Sequence[Request]) -> tuple[float | None, float | None]:
    """The mean tokens of prompt and answer over the answered requests; None without them."""
    answered = [request for request in requests if not request.error]
    if not answered:
        return None, None
    prompt, output = (statistics.fmean(getattr(request, name) for request in answered) for name in ("prompt_tokens", "output_tokens"))
    return prompt or None, output or None


def began(ended: datetime.datetime, duration_s: float) -> str:
    """When a run of this duration began, as in a snapshot."""
    return (ended - datetime.timedelta(seconds=duration_s)).isoformat()


def at(unix: float) -> str:
    """A time in Unix seconds, as in a snapshot. Raises ClientFileError for what is no time."""
    try:
        return datetime.datetime.fromtimestamp(unix, datetime.UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        raise ClientFileError(f"{unix} is no time") from None


def closed_loop(concurrency: int) -> Knobs:
    return {"concurrency": concurrency, "request_rate": 0.0}


def open_loop(per_s: float, arrivals: str, max_concurrency: int | None) -> Knobs:
    """Requests at a rate, whatever the answers. `arrivals`: how the intervals are distributed."""
    load: Knobs = {"request_rate": per_s, "arrivals": arrivals}
    return load if max_concurrency is None else {**load, "max_concurrency": max_concurrency}


def printed(mean: float | None, std: float | None, count: int, percentiles: Mapping[str, float | None]) -> Distribution | None:
    """The figures of a latency that a client has printed, in seconds; None where it has no mean or no median, and where it measured none (0)."""
    median = percentiles.get("p50")
    if not mean or median is None:
        return None
    return Distribution(mean, std or 0.0, count, median, percentiles.get("p90"), percentiles.get("p95"), percentiles.get("p99"))


# --- the parts of a run --------------------------------------------------------------------------------------


def _completed(said: Distribution | None, own: Distribution | None) -> Distribution | None:
    """What the client has printed, with the percentiles that only its requests tell."""
    if said is None or own is None:
        return said or own
    missing = {name: getattr(own, name) for name in ("p90", "p95", "p99") if getattr(said, name) is None}
    return msgspec.structs.replace(said, **missing)


def _length_errors(answered: Sequence[Request], result: Result) -> dict[str, float]:
    """The standard errors of the mean lengths as shares of them: from single requests, or as the client has printed them."""
    errors = dict(result.length_errors)
    for name in ("prompt_tokens", "output_tokens"):
        values = [getattr(request, name) for request in answered]
        if len(values) > 1 and (mean := statistics.fmean(values)) > 0:
            errors[name] = statistics.stdev(values) / math.sqrt(len(values)) / mean
    return {f"{name}_error": error for name, error in errors.items()}


def _server(result: Result) -> ServerFacts | None:
    model = Fact(result.model, "the client's file") if result.model else None
    engine = Fact(result.engine, result.engine_source) if result.engine else None
    return ServerFacts(model=model, engine=engine) if model or engine else None


def _validity(result: Result) -> Validity:
    """Whether the figures can be trusted, by the limits of runs of our own (see `session.figures.summary`)."""
    failed, sent = result.failed or 0, result.answered + (result.failed or 0)
    cause = Counter(result.failures).most_common(1)
    words = f"; the commonest cause: {cut(visible(cause[0][0]), CUT)}" if cause else ""
    if not result.answered:
        return Validity("invalid", [f"no request was answered{words}"])
    if failed > MOST_FAILED * sent:
        return Validity("invalid", [f"{failed} of {sent} requests failed{words}", *result.doubts])
    doubts = [f"{failed / sent * 100:.2g} % of the requests failed{words}"] if failed > FAILED * sent else []
    doubts += result.doubts
    return Validity("degraded" if doubts else "valid", doubts)


def _why_no_series(result: Result) -> str:
    if not result.requests:
        return NO_TIMES
    return (
        "fewer than 20 requests have no interval"
        if result.whole
        else "the single requests in the file are not those that its figures count"
    )


def _key(field: str) -> str:
    return series_key(f"workload.{field}", DEVICE)


def _rate(mean: float | None, series: SeriesData | None, summary: Summary, answered: int) -> Distribution | None:
    """A rate that the client has printed, with the spread of its blocks. Without blocks: one value, whose error is at least that of the mean of the most even
    latency: a rate over few requests varies as they do."""
    if mean is None or mean <= 0:
        return None
    blocks = [Block(value, weight) for value, weight in zip(series.v, series.weights, strict=True)] if series is not None else []
    if (spread := rate_distribution(blocks)) is not None:
        return Distribution(mean, spread.std, spread.n, mean)
    known = [latency.std / latency.mean for latency in (summary.e2e_s, summary.tpot_s) if latency is not None and latency.mean > 0]
    error = min(known) / math.sqrt(answered) if known and answered else 0.0
    return Distribution(mean, mean * error, 1, mean)


def _series(answered: Sequence[Request], result: Result) -> dict[str, SeriesData]:
    """The rates and the mean latencies of successive parts of the run, without the time in which the first requests start and the last ones end.

    The tokens of a request are spread evenly from its first token to its end: within blocks of seconds, the difference to single tokens is small.
    """
    if len(answered) < FEW_REQUESTS:
        return {}
    series: dict[str, SeriesData] = {}
    source = f"{result.client}, single requests" if result.timed else f"{result.client}, single requests in the order of sending"
    if result.timed:
        low, high = _steady(answered, result.duration_s)
        edges = [low + (high - low) * place / BLOCKS for place in range(BLOCKS + 1)]
        width = (high - low) / BLOCKS
        tokens, ends = [0.0] * BLOCKS, [0] * BLOCKS
        for request in answered:
            if low <= request.t < high:
                ends[min(BLOCKS - 1, int((request.t - low) / width))] += 1
            _spread(request, low, width, tokens)
        times = edges[1:]
        if any(tokens):
            series[_key("tokens_per_s")] = SeriesData(times, [amount / width for amount in tokens], source, [width] * BLOCKS)
        series[_key("requests_per_s")] = SeriesData(times, [count / width for count in ends], source, [width] * BLOCKS)
        ordered = sorted((request for request in answered if request.t >= low), key=lambda request: request.t)
    else:
        ordered = list(answered)
    for field in REQUEST_TIMES:
        if data := _of_latency(ordered, field, source, result):
            series[_key(field)] = data
    return series


def _steady(answered: Sequence[Request], duration_s: float) -> tuple[float, float]:
    """The seconds from the first answer to the last request that was sent; the whole run where that is a small part of it."""
    first = min(request.t for request in answered)
    last = max(request.t - (request.e2e_s or 0.0) for request in answered)
    end = max(duration_s, max(request.t for request in answered))
    return (first, last) if last - first > end / 3 else (0.0, end)


def _spread(request: Request, low: float, width: float, tokens: list[float]) -> None:
    """Add the output tokens of a request to the blocks in which they came."""
    begun = request.t - (request.e2e_s or 0.0) + (request.ttft_s or 0.0)
    seconds = request.t - begun
    if seconds <= 0:
        place = math.floor((request.t - low) / width)
        if 0 <= place < len(tokens):
            tokens[place] += request.output_tokens
        return
    first, last = math.floor((begun - low) / width), math.floor((request.t - low) / width)
    for place in range(max(0, first), min(len(tokens) - 1, last) + 1):
        edge = low + place * width
        inside = min(request.t, edge + width) - max(begun, edge)
        tokens[place] += request.output_tokens * max(0.0, inside) / seconds


def _of_latency(ordered: Sequence[Request], field: str, source: str, result: Result) -> SeriesData | None:
    """The mean latency of successive requests, as many in each block."""
    known = [(request.t, value) for request in ordered if (value := getattr(request, field)) is not None and value > 0]
    count = min(BLOCKS, len(known) // 5)
    if count < LEAST_BLOCKS:
        return None
    parts = [known[len(known) * place // count : len(known) * (place + 1) // count] for place in range(count)]
    times = [part[-1][0] if result.timed else result.duration_s * (place + 1) / count for place, part in enumerate(parts)]
    return SeriesData(times, [statistics.fmean(value for _, value in part) for part in parts], source, [float(len(part)) for part in parts])
