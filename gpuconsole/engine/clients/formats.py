"""Describe the result files of other clients in tables: the keys that identify each format, and the
path of each figure. Names and meanings come from the programs that write the files.

- vLLM: `vllm/benchmarks/serve.py` at 009e6d4 (2026), `benchmarks/benchmark_serving.py` at 0049e29
  (2025). Older files have no `failed`, `start_times`, `latencies` and `queue_times`, and write
  `request_goodput:` with a colon. Its ITL is the gap between two chunks. `date` is the end of the
  run in the local time of the client.
- SGLang 0.5.23: `sglang/benchmark/serving.py`. The file does not hold the time of the run. If the
  tag is a time, the time counts as the start of the run. A file without details has no failures.
  The backend `sglang` divides the gap before a chunk among the tokens of the chunk. The ITL of the
  other backends is the gap between chunks.
- AIPerf 0.2.0 to 0.13.0: `aiperf/common/models/export_models.py`, `record_models.py`. Its ITL is
  (E2E - TTFT) / (output tokens - 1): TPOT here. `profile_export.jsonl` has the single requests
  without the load and the model. The configuration has `loadgen` in older versions and `phases` in
  newer ones.
- GuideLLM 0.3.1 `guidellm/benchmark/benchmark.py` (the load is in `args`), 0.4.0 to 0.8.1
  `guidellm/benchmark/schemas` (`config`). Its ITL is TPOT here; its `time_per_output_token`
  contains the first token and is left out. A report has requests of the warm-up and the cool-down,
  which its figures do not count.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpuconsole.engine.clients.fields import MAX_SECONDS, MAX_TEXT_LENGTH, ClientFileError, Fields
from gpuconsole.engine.clients.result import NO_TIMES, Result, lengths_of, start_of, unix
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.run import Distribution
from gpuconsole.model.serving import Request
from gpuconsole.model.text import cut, visible
from gpuconsole.session.figures.distributions import distribution

Table = dict[str, tuple[str, str, str]]
"""Three paths (see `Fields`): for vLLM and SGLang, for AIPerf, and for GuideLLM. A path is empty if
the files do not hold the figure."""
TEXTS: Table = {
    "version": ("", "aiperf_version", ""),
    "model": (
        "model_id",
        "",
        "config.backend.model|worker.backend_model",
    ),
    "engine": ("backend|endpoint_type", "", ""),
}
NUMBERS: Table = {
    "duration_s": ("duration", "benchmark_duration.avg", "duration"),
    "answered": (
        "completed",
        "request_count.avg",
        "request_totals.successful|metrics.request_totals.successful",
    ),
    "failed": (
        "failed",
        "error_request_count.avg",
        "request_totals.errored|metrics.request_totals.errored",
    ),
    "sent": ("num_prompts", "", ""),
    "tokens_per_s": (
        "output_throughput",
        "output_token_throughput.avg",
        "metrics.output_tokens_per_second.successful.mean",
    ),
    "requests_per_s": (
        "request_throughput",
        "request_throughput.avg",
        "metrics.requests_per_second.successful.mean",
    ),
    "goodput_per_s": ("request_goodput|request_goodput:", "goodput.avg", ""),
}
LENGTHS: Table = {
    "prompt_tokens": (
        "total_input_tokens",
        "input_sequence_length.{}",
        "metrics.prompt_token_count.successful.{}",
    ),
    "output_tokens": (
        "total_output_tokens",
        "output_sequence_length.{}",
        "metrics.output_token_count.successful.{}",
    ),
}
"""Paths without {}: the tokens of all requests. Paths with {}: the statistics of the tokens per
request."""
LATENCIES: Table = {
    "ttft_s": (
        "{}_ttft_ms",
        "time_to_first_token.{}",
        "metrics.time_to_first_token_ms.successful.{}",
    ),
    "tpot_s": (
        "{}_tpot_ms",
        "inter_token_latency.{}",
        "metrics.inter_token_latency_ms.successful.{}",
    ),
    "chunk_gap_s": ("{}_itl_ms", "inter_chunk_latency.{}", ""),
    "e2e_s": (
        "{0}_e2el_ms|{0}_e2e_latency_ms",
        "request_latency.{}",
        "metrics.request_latency.successful.{}",
    ),
    "client_queue_s": ("{}_client_queue_time_ms", "", ""),
}
STATISTICS = {
    "mean": ("mean", "avg", "mean"),
    "std": ("std", "std", "std_dev"),
    "p50": ("median", "p50", "median"),
    **{share: (share, share, f"percentiles.{share}") for share in ("p90", "p95", "p99")},
}
"""The words that replace {} in a path, for each of the three columns."""
STARTED = ("date|tag", "start_time", "start_time")
REQUEST: Table = {
    "issued": ("", "metadata.credit_issued_ns", ""),
    "sent": ("", "metadata.request_start_ns", "request_start_time|start_time"),
    "ended": ("", "metadata.request_end_ns", "request_end_time|end_time"),
    "ttft_s": ("", "metrics.time_to_first_token.value", "time_to_first_token_ms"),
    "e2e_s": ("", "metrics.request_latency.value", "request_latency"),
    "prompt_tokens": ("", "metrics.input_sequence_length.value", "prompt_tokens"),
    "output_tokens": ("", "metrics.output_sequence_length.value", "output_tokens"),
    "chunks": ("", "metrics.inter_chunk_latency.value", ""),
    "error": ("", "error.type|error.message", "error|info.error"),
}
"""The paths of a single request, in formats that write an object for each request."""
LISTS, METRICS, REPORT = range(3)
ENGINES = {
    "openai": "",
    "sglang": "sglang",
    "vllm": "vllm",
    "lmdeploy": "lmdeploy",
    "trt": "tensorrt-llm",
}
DATASET = (
    "dataset_name",
    "random_input_len",
    "random_output_len",
    "random_range_ratio",
    "sharegpt_output_len",
)
LIMITS = "|".join(
    f"{root}.{name}{place}{key}"
    for root in ("config.constraints", "config", "args")
    for name in ("max_num_requests", "max_requests", "max_number")
    for place in ("", ".args", ".attributes")
    for key in ("", f".{name}", ".max_num", ".count")
)
"""The paths of GuideLLM's limit of requests. The limit is a number, or an object that holds the
number (in some versions in the attributes of the object). A list holds one limit for each
benchmark."""
NOT_COUNTED = "the single requests in the file are not those that its figures count"


class Format(NamedTuple):
    """One format: an object that has all `keys`, or a list `parts` of such objects. `column`: the
    column of the format in the tables. `requests`: a function that returns the single requests,
    from the fields and the duration. `adjust`: a function that sets the figures that have no path.
    `no_times`: a hint for the user of a file without single requests."""

    client: str
    keys: tuple[str, ...]
    column: int
    load: Callable[[Fields, int], Knobs]
    requests: Callable[[Fields, float], list[Request]]
    adjust: Callable[[Fields, Result], None]
    no_times: str = ""
    parts: str = ""

    def recognises(self, fields: Fields) -> bool:
        try:
            parts = fields.each(self.parts) if self.parts else [fields]
        except ClientFileError:
            return False
        return bool(parts) and all(part.has(key) for part in parts for key in self.keys)

    def read(self, fields: Fields) -> list[Result]:
        """Return the results of an object. Raises ClientFileError."""
        return [
            self._result(part, fields)
            for part in (fields.each(self.parts) if self.parts else [fields])
        ]

    def _result(self, fields: Fields, whole: Fields) -> Result:
        numbers: dict[str, Any] = {
            name: fields.number(paths[self.column])
            for name, paths in NUMBERS.items()
            if paths[self.column]
        }
        path = NUMBERS["duration_s"][self.column]
        duration_s = fields.seconds(path) or self._span_s(fields, numbers)
        if not 0 < duration_s <= MAX_SECONDS:
            raise ClientFileError(f"{path}: must be the seconds of the run, more than 0")
        answered, failed, sent = (
            None if (n := numbers.pop(name, None)) is None else round(n)
            for name in ("answered", "failed", "sent")
        )
        answered = answered or 0
        requests = self.requests(fields, duration_s)
        failures = Counter(request.error for request in requests if request.error)
        if failed is None:
            failed = (
                max(0, sent - answered)
                if sent is not None
                else failures.total()
                if requests
                else None
            )
        counted = len(requests) - failures.total() == answered or len(requests) == answered + (
            failed or 0
        )
        lengths, errors = self._lengths(fields, answered)
        figures = (
            {"prompt_tokens": lengths_of(requests)[0]}
            | lengths
            | numbers
            | {"duration_s": duration_s}
        )
        figures |= {
            name: fields.text(paths[self.column])
            for name, paths in TEXTS.items()
            if paths[self.column]
        }
        result = Result(
            client=self.client,
            started=start_of(fields.value(STARTED[self.column], float | str), duration_s),
            load=self.load(fields, sent or answered + (failed or 0)),
            answered=answered,
            failed=failed,
            failures=dict(failures),
            length_errors=errors,
            latencies=self._latencies(fields, answered),
            requests=requests if counted else [],
            unavailable={}
            if requests and counted
            else {"workload.intervals": NOT_COUNTED if requests else NO_TIMES + self.no_times},
            **figures,
        )
        self.adjust(fields, result)
        if self.parts:
            result.version = whole.text("metadata.guidellm_version")
        return result

    def _span_s(self, fields: Fields, numbers: dict[str, Any]) -> float:
        """Return the seconds of a run whose file does not state them. The answer is 0 if no other
        figures have them."""
        if self.column == REPORT:
            return (fields.number("end_time") or 0.0) - (fields.number("start_time") or 0.0)
        answered, rate = numbers["answered"], numbers["requests_per_s"]
        return answered / rate if self.column == METRICS and answered and rate else 0.0

    def _lengths(self, fields: Fields, answered: int) -> tuple[dict[str, Any], dict[str, float]]:
        """Return the known mean lengths, and the relative standard error of each mean."""
        means, errors = {}, {}
        for name, paths in LENGTHS.items():
            path = paths[self.column]
            mean, std = (
                fields.number(path.format(STATISTICS[word][self.column]))
                for word in ("mean", "std")
            )
            if mean and answered:
                means[name] = mean if "{" in path else mean / answered
                if "{" in path and std is not None:
                    errors[name] = std / mean / math.sqrt(answered)
        return means, errors

    def _latencies(self, fields: Fields, answered: int) -> dict[str, Distribution]:
        """Return the latencies that have a mean and a median. A mean of 0 means that the latency
        was not measured."""
        known = {}
        for name, paths in LATENCIES.items():
            if path := paths[self.column]:
                mean, std, p50, p90, p95, p99 = (
                    fields.seconds(path.format(words[self.column])) for words in STATISTICS.values()
                )
                if mean and p50 is not None:
                    known[name] = Distribution(
                        mean,
                        std or 0.0,
                        fields.count(path.format("count")) or answered,
                        p50,
                        p90,
                        p95,
                        p99,
                    )
        return known


def load_of(
    requests: float | None,
    users: float | None,
    rate: float | None,
    arrivals: str = "",
    burstiness: float | None = None,
) -> Knobs:
    """Return the knobs that describe how the client sent requests: at a rate that does not depend
    on the answers, or with a fixed number of concurrent users. `arrivals`: the distribution of the
    intervals between requests."""
    load: Knobs = {} if requests is None else {"requests": round(requests)}
    if rate or arrivals == "trace":
        load |= (
            ({"request_rate": rate} if rate else {})
            | {"arrivals": arrivals}
            | ({"max_concurrency": round(users)} if users else {})
        )
        return load if burstiness is None else load | {"burstiness": burstiness}
    return load | (
        {"concurrency": round(users), "request_rate": 0.0}
        if users
        else {"arrivals": arrivals}
        if arrivals
        else {}
    )


def in_order(requests: Sequence[Request]) -> list[Request]:
    """Sort the requests by the time of sending."""
    return sorted(requests, key=lambda request: request.t - (request.e2e_s or 0.0))


# --- vLLM and SGLang: lists with an entry for each request ----------------------------------------


def _of_lists(fields: Fields, duration_s: float) -> list[Request]:
    """Return the requests of a file of lists. If the file has no times of sending, or impossible
    times, the `t` of all requests is 0."""
    names = ("ttfts", "output_lens", "input_lens", "start_times", "latencies", "queue_times")
    ttfts, outputs, prompts, starts, latencies, queued = map(fields.numbers, names)
    totals, errors = fields.sums("itls"), fields.value("errors", list[str | None]) or []
    if not ttfts or not outputs or not (totals or latencies):
        return []
    count = len(ttfts)
    if any(
        len(values) != count
        for values in (outputs, prompts, starts, latencies, queued, totals, errors)
        if values
    ):
        raise ClientFileError("the lists of single requests differ in length: the file is damaged")
    latencies = latencies or [ttft + total for ttft, total in zip(ttfts, totals, strict=True)]
    ends = (
        [start - min(starts) + latency for start, latency in zip(starts, latencies, strict=True)]
        if starts
        else [0.0] * count
    )
    ends = ends if max(ends) <= 2 * duration_s else [0.0] * count
    causes = [cause or "" for cause in errors] or [""] * count
    requests = []
    for t, queue, ttft, e2e, prompt, output, cause in zip(
        ends,
        queued or [0.0] * count,
        ttfts,
        latencies,
        prompts or [0.0] * count,
        outputs,
        causes,
        strict=True,
    ):
        error = cause or ("" if output or ttft else "no token came")
        times = (None, None) if error else (ttft or None, e2e or None)
        requests.append(Request(t, queue, *times, round(prompt), round(output), error=error))
    return requests


def _load_of_lists(fields: Fields, count: int) -> Knobs:
    """Return the load of a file of lists. Without a limit of rate or users, the client sent all
    requests at the start. The text of the dataset contains the options of SGLang's dataset."""
    users, rate, burstiness = (
        fields.count("max_concurrency"),
        fields.limit("request_rate"),
        fields.number("burstiness"),
    )
    if burstiness is None and fields.has(VLLM.keys[-1]):
        burstiness = 1.0  # what vLLM does without the option
    arrivals = "poisson" if burstiness is None else "gamma"
    if ramp := fields.text("ramp_up_strategy"):
        rate, burstiness = fields.number("ramp_up_end_rps"), None
        arrivals = f"{ramp} ramp from {fields.number('ramp_up_start_rps') or 0.0:g}/s"
    elif fields.value("request_rate", object) == "trace":
        arrivals = "trace"
    elif not rate:
        users = users or count
    options = [
        str(value)
        for name in DATASET
        if isinstance(value := fields.value(name, object), int | float | str)
    ]
    load = load_of(count, users, rate, arrivals, burstiness)
    return load | ({"dataset": cut(visible(" ".join(options)), MAX_TEXT_LENGTH)} if options else {})


def _adjust_lists(fields: Fields, result: Result) -> None:
    if not fields.has("output_throughput"):
        raise ClientFileError(
            "a benchmark of embeddings has no output tokens: only results of generation are"
            " compared"
        )
    if result.client == SGLANG.client:
        # a server without this answer, or with another one, has no name of the model
        with contextlib.suppress(ClientFileError):
            server = fields.inner("server_info")
            decoding = server.each("decode")  # prefill and decoding on different servers
            result.model = (decoding[0] if decoding else server).text(
                "served_model_name|model_path"
            )
        if "T" not in fields.text("tag"):
            result.started = ""
    if result.client == VLLM.client:
        result.unavailable["workload.itl_s"] = (
            "vLLM's ITL is the gap between chunks: see chunk_gap_s"
        )
    elif not result.started:
        result.unavailable["workload.started"] = NO_TIME
    if (
        result.client == SGLANG.client
        and result.engine in ("sglang", "sglang-native")
        and "chunk_gap_s" in result.latencies
    ):
        result.latencies["itl_s"] = result.latencies.pop("chunk_gap_s")
    result.engine = next(
        (name for word, name in ENGINES.items() if result.engine.startswith(word)), result.engine
    )


NO_TIME = (
    'the file has no time of the run: the runs of a side count as one occasion; --tag "$(date -Is)"'
    " of SGLang's bench_serving gives them one"
)


# --- AIPerf and GuideLLM: an object for each request ----------------------------------------------


def _request(fields: Fields, column: int, begun: float, error: str) -> Request:
    """Return the request that an object describes. `begun`: the clock at the start of the run."""
    path = {name: paths[column] for name, paths in REQUEST.items()}
    issued, sent, ended = (
        (fields.number(path[name]) or 0.0) * fields.unit(path[name])
        for name in ("issued", "sent", "ended")
    )
    ttft, e2e = (
        None if error else fields.seconds(path[name]) or None for name in ("ttft_s", "e2e_s")
    )
    prompt, output = (fields.count(path[name]) or 0 for name in ("prompt_tokens", "output_tokens"))
    e2e = e2e if e2e or error else max(0.0, ended - sent) or None
    return Request(
        max(0.0, ended - begun),
        max(0.0, sent - issued) if issued else 0.0,
        ttft,
        e2e,
        prompt,
        output,
        error=error,
    )


def _load_of_metrics(fields: Fields, count: int) -> Knobs:
    phases = [
        phase for phase in fields.each("input_config.phases") if phase.text("kind|name") != "warmup"
    ]
    part = phases[-1] if phases else fields.inner("input_config.loadgen")
    sent, users, rate = (
        part.number("requests|request_count"),
        part.limit("concurrency"),
        part.number("rate|request_rate"),
    )
    arrivals = part.text("type") or (
        part.text("arrival_pattern|request_rate_mode") or "poisson" if rate else ""
    )
    return load_of(sent, users, rate, arrivals, part.number("smoothness")) | (
        {"phases": len(phases)} if len(phases) > 1 else {}
    )


def _adjust_metrics(fields: Fields, result: Result) -> None:
    models = fields.value("input_config.models|input_config.endpoint.model_names", object)
    models = models.get("items") if isinstance(models, dict) else models
    names = [
        item.get("name") if isinstance(item, dict) else item
        for item in (models if isinstance(models, list) else [models])
    ]
    result.model = cut(
        visible(", ".join(name for name in names if isinstance(name, str))), MAX_TEXT_LENGTH
    )
    result.failed = result.failed or 0
    for entry in fields.each("error_summary"):
        cause = entry.text("error_details.type|error_details.message") or "no cause is given"
        result.failures[cause] = entry.count("count") or 0
    if fields.value("was_cancelled", bool):
        result.doubts.append("the run was cancelled before its end")
    if fields.value("is_complete", bool) is False:
        result.doubts.append(
            "AIPerf did not complete the run:"
            f" {fields.text('incomplete_reason') or 'no reason is given'}"
        )
    if not result.load:
        result.unavailable["workload.load"] = "the file has no configuration of the load"


def is_record(fields: Fields) -> bool:
    """Return whether the object is a single request of AIPerf."""
    return all(map(fields.has, ("metrics", "metadata.request_start_ns", "metadata.request_end_ns")))


def read_records(records: Sequence[Fields]) -> Result:
    """Return the result of the single requests of AIPerf. Requests of the warm-up do not count.
    Raises ClientFileError."""
    counted = [
        record for record in records if record.text("metadata.benchmark_phase") in ("profiling", "")
    ]
    begun = (
        min((record.number("metadata.request_start_ns") or 0.0 for record in counted), default=0.0)
        * 1e-9
    )
    if not begun:
        raise ClientFileError(
            "a request has no time"
            if counted
            else "all requests belong to the warm-up: none counts"
        )
    requests, gaps, chunks = [], list[float](), REQUEST["chunks"][METRICS]
    for record in counted:
        cancelled = "cancelled" if record.value("metadata.was_cancelled", bool) else ""
        error = record.text(REQUEST["error"][METRICS]) or (
            "failed" if record.inner("error").raw else cancelled
        )
        requests.append(_request(record, METRICS, begun, error))
        gaps += (gap * record.unit(chunks) for gap in record.numbers(chunks))
    answered = [request for request in requests if not request.error]
    duration_s = max(request.t for request in answered or requests)
    if duration_s <= 0:
        raise ClientFileError("the requests took no time: the file is damaged")
    prompt, output = lengths_of(requests)
    return Result(
        client=AIPERF.client,
        started=unix(begun),
        duration_s=duration_s,
        load={},
        answered=len(answered),
        failed=len(requests) - len(answered),
        failures=dict(Counter(request.error for request in requests if request.error)),
        tokens_per_s=sum(request.output_tokens for request in answered) / duration_s or None,
        requests_per_s=len(answered) / duration_s or None,
        prompt_tokens=prompt,
        output_tokens=output,
        latencies={"chunk_gap_s": known} if (known := distribution(gaps)) is not None else {},
        requests=in_order(requests),
        unavailable={
            "workload.load": (
                "profile_export.jsonl has no model and no load: profile_export_aiperf.json beside"
                " it has them"
            )
        },
    )


def _load_of_report(fields: Fields, count: int) -> Knobs:
    """Return the strategy of the load. If the run had a limit of requests, return this limit
    too."""
    strategy = fields.inner("config.strategy" if fields.has("config") else "args.strategy")
    kind, rate = strategy.text("type_"), strategy.number("rate")
    users = 1 if kind == "synchronous" else strategy.count("streams|max_concurrency")
    return load_of(
        fields.limit(LIMITS), users, rate if kind in ("constant", "poisson") else None, kind
    )


def _requests_of_report(fields: Fields, duration_s: float) -> list[Request]:
    begun = fields.number("start_time") or 0.0
    found = [_request(entry, REPORT, begun, "") for entry in fields.each("requests.successful")]
    found += [
        _request(entry, REPORT, begun, entry.text(REQUEST["error"][REPORT]) or "failed")
        for entry in fields.each("requests.errored")
    ]
    return in_order(
        [
            request
            for request in found
            if request.t > 0 and request.t - (request.e2e_s or 0.0) < duration_s
        ]
    )


def _adjust_report(fields: Fields, result: Result) -> None:
    if not fields.has("config"):  # up to 0.3 the file's mean is not the rate
        result.tokens_per_s = (
            result.output_tokens or 0.0
        ) * result.answered / result.duration_s or None
    if result.unavailable.get("workload.intervals") == NOT_COUNTED:
        result.unavailable["workload.intervals"] = "the report has a sample of the requests only"


VLLM = Format(
    "vllm bench serve",
    ("total_token_throughput", "request_throughput", "completed", "tokenizer_id"),
    *(LISTS, _load_of_lists, _of_lists, _adjust_lists),
    no_times=": vllm bench serve writes them with --save-detailed",
)
SGLANG = Format(
    "SGLang bench_serving",
    ("total_output_tokens_retokenized", "request_throughput", "completed", "dataset_name"),
    *(LISTS, _load_of_lists, _of_lists, _adjust_lists),
    no_times=": SGLang's bench_serving writes them with --output-details",
)
AIPERF = Format(
    "AIPerf",
    (
        "request_throughput.unit",
        "request_throughput.avg",
        "request_latency.unit",
        "request_latency.avg",
    ),
    *(METRICS, _load_of_metrics, lambda fields, duration_s: [], _adjust_metrics),
    no_times=": profile_export.jsonl beside it has them",
)
GUIDELLM = Format(
    "GuideLLM",
    ("metrics", "requests"),
    REPORT,
    _load_of_report,
    _requests_of_report,
    _adjust_report,
    parts="benchmarks",
)
FORMATS = (VLLM, SGLANG, AIPERF, GUIDELLM)
