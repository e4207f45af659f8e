"""Reads what a model server reports about itself: its engine, its limits and its KV cache, each
fact with its source."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
from prometheus_client.metrics_core import Metric

from gpuconsole.model.encoding import MAX_NUMBER
from gpuconsole.model.knobs.knob import Knobs
from gpuconsole.model.serving import Fact, ServerFacts
from gpuconsole.workloads.serving.http import MAX_NAME_LENGTH, OF_ANOTHER_KIND, read_json
from gpuconsole.workloads.serving.scraping import CACHE_INFO, SGLANG_TOKENS, engines_on

Values = dict[str, float | str | None]
"""Facts of one source, by the names of ServerFacts. None: the source does not report the fact."""

ASK_S = 1.0
"""Time limit of each request. The requests of a round run in parallel, and there are at most three
rounds."""
GIB = 2**30
MODELS, VERSION, ARGUMENTS, LOG, FILES = (
    "/v1/models",
    "/version",
    "the start arguments",
    "the server's log",
    "the model's files",
)
SCHEDULER = "the server's scheduler"
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "gpuconsole": "gpuconsole"}
"""The engine by the `owned_by` of its models. TGI writes the name of the model there."""
NO_VALUE = ("", "None", "null", "auto", None)


async def ask_facts(
    session: aiohttp.ClientSession, url: str, families: Iterable[Metric] = ()
) -> ServerFacts:
    """The facts that the server at `url` reports about itself, in at most three times ASK_S
    seconds.

    `families`: the metrics of the server's /metrics page. The session sends its headers only to
    `url`: redirections are not followed. A missing endpoint, a refusal or an unknown format means
    that its facts stay None.
    """
    families = list(families)
    answer, listed = await _ask(session, url, MODELS), Values()
    with contextlib.suppress(*OF_ANOTHER_KIND):
        listed = _of_models(answer)
    engine = str(listed.get("engine") or _engine_of_metrics(families))
    answered: list[tuple[str, Values]] = [
        (MODELS, listed),
        ("/metrics", {"engine": engine or None}),
        (CACHE_INFO, _of_cache_info(families)),
        (SGLANG_TOKENS, _of_sglang_metrics(families)),
    ]
    # An unknown engine is asked everything, because only its answers show what it is. So is one
    # whose list of models did not come in time: several engines have the names of vLLM's metrics.
    wanted = [endpoint for endpoint in ENDPOINTS if not listed or engine in ("", *endpoint.engines)]
    for answers in await asyncio.gather(*(_first(session, url, endpoint) for endpoint in wanted)):
        answered += answers
    return merge(answered)


class Endpoint(msgspec.Struct, frozen=True):
    """Where engines report facts. The first of `paths` with a fact counts: newer versions have the
    first path."""

    engines: tuple[str, ...]
    paths: tuple[str, ...]
    read: Callable[[Any], Values]


async def _first(
    session: aiohttp.ClientSession, url: str, endpoint: Endpoint
) -> list[tuple[str, Values]]:
    for path in endpoint.paths:
        answer = await _ask(session, url, path)
        try:
            values = endpoint.read(answer)
        except OF_ANOTHER_KIND:
            continue
        if any(value is not None for value in values.values()):
            return [(path, values)]
    return []


async def _ask(session: aiohttp.ClientSession, url: str, path: str) -> Any:
    """The JSON answer of `path`; None if there is none."""
    try:
        async with session.get(
            f"{url}{path}", timeout=aiohttp.ClientTimeout(total=ASK_S), allow_redirects=False
        ) as answer:
            if answer.status != 200:
                return None
            return await read_json(answer)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


def merge(sources: Sequence[tuple[str, Values]]) -> ServerFacts:
    """One value for each fact: the value of the first source that reports the fact."""
    facts: dict[str, Fact] = {}
    for source, values in sources:
        for name, value in values.items():
            if value is not None and name not in facts:
                facts[name] = Fact(value, source)
    return ServerFacts(**facts)  # type: ignore[arg-type]  # no source names `here`


def complete(reported: ServerFacts, *sources: tuple[str, Values]) -> ServerFacts:
    """`reported`, with the facts that only `sources` report: the start arguments, the log, the
    model's files."""
    facts = msgspec.structs.asdict(reported)
    further = msgspec.structs.asdict(merge(sources))
    return ServerFacts(
        **{name: fact if fact is not None else further[name] for name, fact in facts.items()}
    )


# --- the answers of each endpoint -----------------------------------------------------------------


def _of_models(answer: Any) -> Values:
    """`/v1/models`. The KV cache of llama.cpp has `n_ctx` tokens for a sequence; `n_ctx_train` is a
    limit of the model only."""
    models = answer.get("data") if isinstance(answer, dict) else None
    first: dict[str, Any] = (
        models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
    )
    meta = first.get("meta") or {}
    meta = meta if isinstance(meta, dict) else {}
    return {
        "engine": OWNERS.get(str(first.get("owned_by"))),
        "model": _text(first.get("id")),
        "max_model_len": _number(first.get("max_model_len")) or _number(meta.get("n_ctx")),
        "weight_bytes": _number(meta.get("size")),
        "quantization": _text(meta.get("ftype")),
    }


def _of_version(answer: Any) -> Values:
    return {"version": _text(answer["version"])}


def _of_sglang(answer: Any) -> Values:
    """`/server_info`, before SGLang 0.5.4 `/get_server_info`: the start arguments, and the memory
    that the scheduler measured in GiB."""
    if "max_total_num_tokens" not in answer:
        return {}
    state = (answer.get("internal_states") or [{}])[0]
    memory = state.get("memory_usage") or {}
    ranks, tokens = int(answer.get("tp_size") or 1), _number(answer.get("max_total_num_tokens"))
    weights, cache, chunk = (
        _number(memory.get("weight")),
        _number(memory.get("kvcache")),
        _number(answer.get("chunked_prefill_size")),
    )
    return {
        "engine": "sglang",
        "version": _text(answer.get("version")),
        "model": _text(answer.get("served_model_name")) or _text(answer.get("model_path")),
        "dtype": _text(answer.get("dtype")),
        "kv_cache_dtype": _text(answer.get("kv_cache_dtype")),
        "quantization": _text(answer.get("quantization")) or "none",
        "max_model_len": _number(answer.get("context_length")),
        "block_size": _number(answer.get("page_size")),
        "kv_cache_tokens": tokens,
        "max_num_seqs": _number(state.get("effective_max_running_requests_per_dp"))
        or _number(answer.get("max_running_requests")),
        "max_num_batched_tokens": chunk if chunk and chunk > 0 else None,
        "enable_prefix_caching": _switch(answer.get("disable_radix_cache"), opposite=True),
        "enable_chunked_prefill": None if chunk is None else float(chunk > 0),
        "gpu_memory_utilization": _number(answer.get("mem_fraction_static")),
        "tensor_parallel_size": _number(answer.get("tp_size")),
        "weight_bytes": weights * GIB * ranks if weights and weights > 0 else None,
        "kv_bytes_per_token": cache * GIB * ranks / tokens
        if cache and cache > 0 and tokens
        else None,
    }


def _of_tgi(answer: Any) -> Values:
    """`/info` of TGI. `max_concurrent_requests` limits its queue, not an iteration, so it is not
    max_num_seqs."""
    if "max_total_tokens" not in answer:
        return {}
    return {
        "engine": "tgi",
        "version": _text(answer.get("version")),
        "model": _text(answer.get("model_id")),
        "dtype": _text(str(answer.get("model_dtype") or "").removeprefix("torch.")),
        "max_model_len": _number(answer.get("max_total_tokens")),
        "kv_cache_tokens": _number(answer.get("max_batch_total_tokens")),
        "max_num_seqs": _number(answer.get("max_batch_size")),
        "max_num_batched_tokens": _number(answer.get("max_batch_prefill_tokens")),
    }


def _of_llama_cpp(answer: Any) -> Values:
    """`/props`, or `/slots` where llama.cpp was started without `/props`: a slot holds one
    sequence.

    Slots have a KV cache each, or they share one, and no answer states which. So the tokens of the
    whole cache are known for one slot only.
    """
    slots = len(answer) if isinstance(answer, list) else _number(answer.get("total_slots"))
    settings = answer[0] if isinstance(answer, list) else answer["default_generation_settings"]
    tokens = _number(settings["n_ctx"])
    props = answer if isinstance(answer, dict) else {}
    return {
        "engine": "llama.cpp",
        "version": _text(props.get("build_info")),
        "model": _text(props.get("model_alias")) or _text(props.get("model_path")),
        "max_model_len": tokens,
        "max_num_seqs": float(slots) if slots else None,
        "kv_cache_tokens": tokens if slots == 1 else None,
    }


def _of_embedded(answer: Any) -> Values:
    """`/facts` of the embedded server: plain numbers, of which some are facts in the sense of
    ServerFacts."""
    names = {field.name for field in msgspec.structs.fields(ServerFacts)} - {"here"}
    return {name: _number(value) for name, value in answer.items() if name in names}


# not `/server_info` of vLLM: it exists in its development mode only, and each request costs the
# server 4 s (measured with 0.32)
ENDPOINTS = (
    Endpoint(("vllm",), (VERSION,), _of_version),
    Endpoint(("sglang",), ("/server_info", "/get_server_info"), _of_sglang),
    Endpoint(("tgi",), ("/info",), _of_tgi),
    Endpoint(("llama.cpp",), ("/props", "/slots"), _of_llama_cpp),
    Endpoint(("gpuconsole",), ("/facts",), _of_embedded),
)


# --- the /metrics page ----------------------------------------------------------------------------


def _engine_of_metrics(families: Iterable[Metric]) -> str:
    """The engine by the names of its metrics. The embedded server uses the names of vLLM."""
    return next((engine.name for engine in engines_on(families) if not engine.front), "")


def _of_cache_info(families: Iterable[Metric]) -> Values:
    """The labels of `vllm:cache_config_info`. Older versions have no label for the tokens of the
    cache. Several engines: the sum of their caches."""
    labels = [
        sample.labels
        for family in families
        for sample in family.samples
        if sample.name == CACHE_INFO
    ]
    if not labels:
        return {}
    first = labels[0]
    sizes, counts, reported_tokens = (
        [_number(engine_labels.get(name)) for engine_labels in labels]
        for name in ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")
    )
    tokens = [
        reported or (size * count if size and count else None)
        for reported, size, count in zip(reported_tokens, sizes, counts, strict=True)
    ]
    return {
        "block_size": sizes[0],
        "num_blocks": _sum(counts),
        "num_blocks_override": _number(first.get("num_gpu_blocks_override"))
        or (0.0 if "num_gpu_blocks_override" in first else None),
        "kv_cache_tokens": _sum(tokens),
        "kv_cache_dtype": _text(first.get("cache_dtype")),
        "enable_prefix_caching": _switch(first.get("enable_prefix_caching")),
        "gpu_memory_utilization": _number(first.get("gpu_memory_utilization")),
    }


def _of_sglang_metrics(families: Iterable[Metric]) -> Values:
    """Each rank reports the same number, so the maximum counts."""
    tokens = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == SGLANG_TOKENS
    ]
    return {"kv_cache_tokens": max(tokens)} if tokens else {}


# --- a server that was started here ---------------------------------------------------------------

NUMBER_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "tensor_parallel_size",
    "block_size",
)
TEXT_FLAGS = ("dtype", "kv_cache_dtype", "quantization")
EMBEDDED_FLAGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill")


def of_arguments(arguments: Sequence[str]) -> Values:
    """vLLM's command line `arguments`; the last of two equal flags counts, as in vLLM."""
    values: Values = {}
    for word, following in itertools.pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        flag = name.removeprefix("--").replace("-", "_")
        setting = value if equals else following
        if not name.startswith("--"):
            continue
        if flag in NUMBER_FLAGS:
            values[flag] = _number(setting)
        elif flag in TEXT_FLAGS:
            values[flag] = _text(setting)
        elif flag.removeprefix("no_") in SWITCHES:
            values[flag.removeprefix("no_")] = float(not flag.startswith("no_"))
        elif flag == "num_gpu_blocks_override":
            values["num_blocks_override"] = _number(setting)
    return {"quantization": "none", "num_blocks_override": 0.0, **values}


def of_knobs(knobs: Knobs) -> Values:
    """The knobs that the embedded server was started with."""
    values: Values = {name: _number(knobs[name]) for name in EMBEDDED_FLAGS if name in knobs}
    values |= {name: _switch(knobs[name]) for name in SWITCHES}
    return {
        **values,
        "quantization": str(knobs["quantization"]),
        "num_blocks_override": _number(knobs["num_gpu_blocks_override"]),
    }


def of_log(lines: Iterable[str]) -> Values:
    """vLLM's log. It holds values that vLLM chose itself, for example the dtype."""
    text = "\n".join(lines)
    config = next((line for line in text.splitlines() if "LLM engine (v" in line), "")
    tokens = re.search(r"KV cache size: ([\d,]+) tokens", text)
    blocks = re.search(r"# (?:GPU|CPU|cuda|cpu) blocks: (\d+)", text)
    budget = re.search(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)", text)
    values: Values = {
        "kv_cache_tokens": float(tokens[1].replace(",", "")) if tokens else None,
        "num_blocks": float(blocks[1]) if blocks else None,
        "max_num_batched_tokens": float(budget[1]) if budget else None,
    }
    for name, pattern in (
        ("version", r"LLM engine \(v([^)]+)\)"),
        ("dtype", r"\bdtype=(?:torch\.)?(\w+)"),
        ("kv_cache_dtype", r"\bkv_cache_dtype=(\w+)"),
        ("max_model_len", r"\bmax_seq_len=(\d+)"),
        ("tensor_parallel_size", r"\btensor_parallel_size=(\d+)"),
    ):
        match = re.search(pattern, config)
        values[name] = (
            None if match is None else _number(match[1]) if match[1].isdigit() else _text(match[1])
        )
    return values


def of_numbers(facts: Mapping[str, float]) -> Values:
    """Plain numbers under the names of ServerFacts."""
    return _of_embedded(facts)


# --- values ---------------------------------------------------------------------------------------


def _number(value: object) -> float | None:
    """`value` as a number; None where it is none. Labels of metrics hold numbers as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if -MAX_NUMBER <= number <= MAX_NUMBER else None


def _text(value: object) -> str | None:
    """`value`, if it is a text that says something, and no longer than a name."""
    if not isinstance(value, str) or value in NO_VALUE or len(value) > MAX_NAME_LENGTH:
        return None
    return value


def _switch(value: object, opposite: bool = False) -> float | None:
    """1 for on and 0 for off."""
    on = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    return None if on is None else float(on != opposite)


def _sum(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None
