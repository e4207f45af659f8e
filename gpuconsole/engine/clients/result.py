"""Hold the figures that a client measured, and convert them to the run that reports and comparisons
read.

The rates, means and percentiles that the client printed are not computed again: the user knows
these figures. If a file has the times of single requests, two things are computed from these times:
the figures that the client did not print, and the series for intervals.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec

from gpuconsole.engine.clients.fields import ClientFileError
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.metrics import series_key
from gpuconsole.model.run import CLIENT_WORKLOAD, Distribution, Run, SeriesData, Summary, Validity
from gpuconsole.model.serving import Fact, Request, ServerFacts
from gpuconsole.model.text import cut, visible
from gpuconsole.session.figures.breakdown import REQUEST_TIMES, request_times
from gpuconsole.session.figures.distributions import distribution
from gpuconsole.session.figures.rate import RateBlock, rate_distribution
from gpuconsole.session.figures.summary import FAILED, MAX_FAILED_SHARE

DEVICE = "server"
BLOCKS = 40
"""Blocks of a series. The correlation of blocks is taken from the blocks (see
`session.figures.rate.estimate`)."""
MIN_BLOCKS = 4
"""Fewer blocks have no interval (see `experiments.statistics.MIN_BLOCKS`)."""
MIN_ANSWERED_REQUESTS = 20
"""Fewer requests have no series."""
CUT = 80
NO_TIMES = "the file has no times of single requests"


class Result(msgspec.Struct, kw_only=True):
    """One run of a client.

    - `load`: how the client sent requests. Two runs can be compared only if all entries are equal.
    - `failed`: None if the file does not hold this number.
    - `prompt_tokens`, `output_tokens`: the means over the answered requests. `length_errors`: the
      relative standard errors of these means, if the client has printed them.
    - `latencies`: the distributions that the client has printed, by the field of `Summary`.
    - `requests`: all answered and failed requests, in the order of sending; empty if the file holds
      only a part of the requests. `t` is in seconds after the start of the run, or 0 in all
      requests.
    """

    client: str
    version: str = ""
    model: str = ""
    engine: str = ""
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
    doubts: list[str] = []
    unavailable: dict[str, str] = {}


def run_of(result: Result, number: str) -> Run:
    """Convert a result to a run. Raises ClientFileError for a result that measured nothing."""
    answered = [request for request in result.requests if not request.error]
    summary = Summary(
        requests=result.answered,
        failed_requests=result.failed or 0,
        failures={
            cut(visible(cause), CUT): count
            for cause, count in Counter(result.failures).most_common(5)
        },
        goodput_per_s=result.goodput_per_s,
    )
    for field in (*REQUEST_TIMES, "client_queue_s", "itl_s", "chunk_gap_s"):
        own = (
            distribution(request_times(answered, field))
            if field not in ("itl_s", "chunk_gap_s")
            else None
        )
        setattr(
            summary,
            field,
            _completed(
                result.latencies.get(field), own if own is not None and own.mean > 0 else None
            ),
        )
    series = _series(answered, result)
    for field, mean in (
        ("tokens_per_s", result.tokens_per_s),
        ("requests_per_s", result.requests_per_s),
    ):
        setattr(summary, field, _rate(mean, series.get(_key(field)), summary, result.answered))
    summary.samples_per_s = summary.requests_per_s
    facts = {"prompt_tokens_mean": result.prompt_tokens, "output_tokens_mean": result.output_tokens}
    facts |= {f"{name}_error": error for name, error in result.length_errors.items()}
    for name in ("prompt_tokens", "output_tokens"):
        values = [getattr(request, name) for request in answered]
        if len(values) > 1 and (mean := statistics.fmean(values)) > 0:
            facts[f"{name}_error"] = statistics.stdev(values) / math.sqrt(len(values)) / mean
    unavailable = dict(result.unavailable)
    if result.failed is None:
        unavailable["workload.failed_requests"] = "the file has no number of failed requests"
    if not series:
        unavailable.setdefault(
            "workload.intervals",
            "fewer than 20 requests have no interval" if result.requests else NO_TIMES,
        )
    model = Fact(result.model, "the client's file") if result.model else None
    engine = Fact(result.engine, "the option --backend of the client") if result.engine else None
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
        server=ServerFacts(model=model, engine=engine) if model or engine else None,
        elsewhere=True,
        validity=_validity(result),
        client=f"{result.client} {result.version}".strip(),
    )


def lengths_of(requests: Sequence[Request]) -> tuple[float | None, float | None]:
    """Return the mean number of prompt tokens and of output tokens per answered request; None
    without answered requests."""
    answered = [request for request in requests if not request.error]
    prompt, output = (
        [getattr(request, name) for request in answered]
        for name in ("prompt_tokens", "output_tokens")
    )
    return (
        (statistics.fmean(prompt) or None, statistics.fmean(output) or None)
        if answered
        else (None, None)
    )


def start_of(time: float | str | None, duration_s: float) -> str:
    """Return the start of a run in the format of a snapshot. `time`: the Unix seconds or the ISO
    time of the start, or the time of the end in vLLM's format. The answer for other texts is
    empty."""
    if not isinstance(time, str):
        return unix(time) if time else ""
    with contextlib.suppress(ValueError, OverflowError):
        if "T" in time:
            return datetime.datetime.fromisoformat(time).isoformat()
        return (
            datetime.datetime.strptime(time, "%Y%m%d-%H%M%S")
            - datetime.timedelta(seconds=duration_s)
        ).isoformat()
    return ""


def unix(seconds: float) -> str:
    """Convert Unix seconds to the format of a snapshot. Raises ClientFileError for a number that is
    not a time."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
    except (OverflowError, OSError, ValueError):
        raise ClientFileError(f"{seconds} is no time") from None


# --- the parts of a run ---------------------------------------------------------------------------


def _completed(said: Distribution | None, own: Distribution | None) -> Distribution | None:
    """Return the figures `said`, which the client has printed. Percentiles that the client did not
    print come from `own`, which is computed from the single requests."""
    if said is None or own is None:
        return said or own
    return msgspec.structs.replace(
        said,
        **{
            name: getattr(own, name)
            for name in ("p90", "p95", "p99")
            if getattr(said, name) is None
        },
    )


def _validity(result: Result) -> Validity:
    """Judge whether the figures can be trusted. The limits are those of gpuconsole's own runs (see
    `session.figures.summary`)."""
    failed, sent = result.failed or 0, result.answered + (result.failed or 0)
    cause = Counter(result.failures).most_common(1)
    words = f"; the commonest cause: {cut(visible(cause[0][0]), CUT)}" if cause else ""
    if not result.answered:
        return Validity("invalid", [f"no request was answered{words}"])
    if failed > MAX_FAILED_SHARE * sent:
        return Validity("invalid", [f"{failed} of {sent} requests failed{words}", *result.doubts])
    doubts = (
        [f"{failed / sent * 100:.2g} % of the requests failed{words}"]
        if failed > FAILED * sent
        else []
    )
    doubts += result.doubts
    return Validity("degraded" if doubts else "valid", doubts)


def _key(field: str) -> str:
    return series_key(f"workload.{field}", DEVICE)


def _rate(
    mean: float | None, series: SeriesData | None, summary: Summary, answered: int
) -> Distribution | None:
    """Return a rate that the client has printed, with the spread of the blocks of its series.
    Without blocks, return one value. The error of this value comes from the latency with the
    smallest relative spread: a rate over few requests varies at least as much as the mean of this
    latency."""
    if mean is None or mean <= 0:
        return None
    blocks = (
        [RateBlock(value, weight) for value, weight in zip(series.v, series.weights, strict=True)]
        if series is not None
        else []
    )
    if (spread := rate_distribution(blocks)) is not None:
        return Distribution(mean, spread.std, spread.n, mean)
    known = [
        latency.std / latency.mean
        for latency in (summary.e2e_s, summary.tpot_s)
        if latency is not None and latency.mean > 0
    ]
    error = min(known) / math.sqrt(answered) if known and answered else 0.0
    return Distribution(mean, mean * error, 1, mean)


def _series(answered: Sequence[Request], result: Result) -> dict[str, SeriesData]:
    """Return the rates and the mean latencies of successive parts of the run. The parts leave out
    the start of the run until the first answer, and the end of the run after the last request is
    sent.

    The tokens of a request are spread evenly from the first token to the end of the request. In
    blocks of seconds, this differs little from the real times of the tokens.
    """
    if len(answered) < MIN_ANSWERED_REQUESTS:
        return {}
    series: dict[str, SeriesData] = {}
    timed, ordered = any(request.t for request in answered), list(answered)
    source = f"{result.client}, single requests{'' if timed else ' in the order of sending'}"
    if timed:
        low, high = _steady(answered, result.duration_s)
        width = (high - low) / BLOCKS
        times = [low + width * (place + 1) for place in range(BLOCKS)]
        tokens, ends = [0.0] * BLOCKS, [0] * BLOCKS
        for request in answered:
            if low <= request.t < high:
                ends[min(BLOCKS - 1, int((request.t - low) / width))] += 1
            _spread(request, low, width, tokens)
        if any(tokens):
            series[_key("tokens_per_s")] = SeriesData(
                times, [amount / width for amount in tokens], source, [width] * BLOCKS
            )
        series[_key("requests_per_s")] = SeriesData(
            times, [count / width for count in ends], source, [width] * BLOCKS
        )
        ordered = sorted(
            (request for request in answered if request.t >= low), key=lambda request: request.t
        )
    for field in REQUEST_TIMES:
        known = [
            (request.t, value)
            for request in ordered
            if (value := getattr(request, field)) is not None and value > 0
        ]
        count = min(BLOCKS, len(known) // 5)
        if count >= MIN_BLOCKS:  # each block: the mean latency of equally many successive requests
            parts = [
                known[len(known) * place // count : len(known) * (place + 1) // count]
                for place in range(count)
            ]
            times = [
                part[-1][0] if timed else result.duration_s * (place + 1) / count
                for place, part in enumerate(parts)
            ]
            means = [statistics.fmean(value for _, value in part) for part in parts]
            series[_key(field)] = SeriesData(
                times, means, source, [float(len(part)) for part in parts]
            )
    return series


def _steady(answered: Sequence[Request], duration_s: float) -> tuple[float, float]:
    """Return the begin and the end of the steady part: from the first answer to the sending of the
    last request. If this part is less than a third of the run, return the whole run."""
    first = min(request.t for request in answered)
    last = max(request.t - (request.e2e_s or 0.0) for request in answered)
    end = max(duration_s, max(request.t for request in answered))
    return (first, last) if last - first > end / 3 else (0.0, end)


def _spread(request: Request, low: float, width: float, tokens: list[float]) -> None:
    """Add the output tokens of a request to the blocks in which the tokens arrived."""
    seconds = max(1e-6, (request.e2e_s or 0.0) - (request.ttft_s or 0.0))
    begun = request.t - seconds
    first, last = math.floor((begun - low) / width), math.floor((request.t - low) / width)
    for place in range(max(0, first), min(len(tokens) - 1, last) + 1):
        edge = low + place * width
        tokens[place] += (
            request.output_tokens
            * max(0.0, min(request.t, edge + width) - max(begun, edge))
            / seconds
        )
