"""Result files of SGLang's `bench_serving` (`--output-file`, `--output-details`): a JSON object on each line.

Field names: sglang 0.5.23 `sglang/benchmark/serving.py`. The file has no time, no times at which requests were sent and, without details, no failures. A tag that
is a time (`--tag "$(date -Is)"`) counts as the start of the run. `request_rate` without a limit is Infinity, which becomes null. The backend `sglang` divides the gap
of a chunk among its tokens, so its ITL is `itl_s`; the ITL of the other backends is the gap between chunks.
"""

from __future__ import annotations

import datetime
from collections import Counter

from gpuconsole.engine.clients import vllm
from gpuconsole.engine.clients.fields import LONGEST, ClientFileError, Fields
from gpuconsole.engine.clients.result import NO_TIMES, Result, closed_loop, lengths_of, open_loop
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.text import cut, visible

CLIENT = "SGLang bench_serving"
PER_TOKEN = ("sglang", "sglang-native")
ENGINES = {"sglang": "sglang", "vllm": "vllm", "lmdeploy": "lmdeploy", "trt": "tensorrt-llm"}
DATASET = ("dataset_name", "random_input_len", "random_output_len", "random_range_ratio", "sharegpt_output_len")
NO_TIME = 'the file has no time of the run: the runs of a side count as one occasion; --tag "$(date -Is)" of SGLang\'s bench_serving gives them one'


def recognises(fields: Fields) -> bool:
    return {"total_output_tokens_retokenized", "request_throughput", "completed", "dataset_name"} <= set(fields)


def read(fields: Fields) -> Result:
    """Raises ClientFileError."""
    duration_s, answered = fields.duration("duration"), fields.count("completed") or 0
    backend = fields.text("backend")
    requests = vllm.requests_of(fields, [], [], [])
    failures = Counter(request.error for request in requests if request.error)
    prompt, output = fields.number("total_input_tokens"), fields.number("total_output_tokens")
    words = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "itl_s" if backend in PER_TOKEN else "chunk_gap_s", "e2e_latency": "e2e_s"}
    server = _server_info(fields)
    missing, started = {}, _started(fields.text("tag"))
    if not requests:
        missing["workload.intervals"] = f"{NO_TIMES}: SGLang's bench_serving writes them with --output-details"
    if not started:
        missing["workload.started"] = NO_TIME
    return Result(
        client=CLIENT,
        model=server.text("served_model_name") or server.text("model_path"),
        engine=next((engine for word, engine in ENGINES.items() if backend.startswith(word)), backend),
        engine_source="the option --backend of the client",
        started=started,
        duration_s=duration_s,
        load=_load(fields, len(requests) or answered),
        answered=answered,
        failed=sum(failures.values()) if requests else None,
        failures=dict(failures),
        tokens_per_s=fields.number("output_throughput"),
        requests_per_s=fields.number("request_throughput"),
        prompt_tokens=prompt / answered if prompt and answered else lengths_of(requests)[0],
        output_tokens=output / answered if output and answered else None,
        latencies={name: known for word, name in words.items() if (known := vllm.latency(fields, word, answered)) is not None},
        requests=requests,
        whole=len(requests) == answered + sum(failures.values()),
        timed=False,
        unavailable=missing,
    )


def _server_info(fields: Fields) -> Fields:
    """What the server said about itself; without fields where it said nothing that can be read."""
    try:
        server = fields.inner("server_info")
        return server.each("decode")[0] if "decode" in server else server
    except (ClientFileError, IndexError):
        return Fields({})


def _load(fields: Fields, count: int) -> Knobs:
    """How the requests were sent. A dataset has its options."""
    users = fields.count("max_concurrency")
    rate = fields.number_or_word("request_rate")
    load: Knobs = {"requests": count}
    load["dataset"] = cut(visible(" ".join(str(value) for name in DATASET if (value := fields.number_or_word(name)) is not None)), LONGEST)
    if rate == "trace":
        return load | {"arrivals": "trace"} | ({} if users is None else {"max_concurrency": users})
    if isinstance(rate, float | int) and rate > 0:
        return load | open_loop(float(rate), "poisson", users)
    return load | closed_loop(users or count)


def _started(tag: str) -> str:
    """The start of a run whose tag is a time; empty otherwise."""
    try:
        return datetime.datetime.fromisoformat(tag).isoformat() if "T" in tag else ""
    except ValueError:
        return ""
