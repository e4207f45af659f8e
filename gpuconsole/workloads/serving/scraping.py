"""The /metrics page of any supported model server, under one set of names; read again and again, at
most as often as its cost allows."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gpuconsole.agent.clock import now
from gpuconsole.model.encoding import MAX_NUMBER
from gpuconsole.model.engines import ServingEngine, engines
from gpuconsole.model.text import visible
from gpuconsole.wire.events import ServerState
from gpuconsole.workloads.serving.http import explain, read_body, redirection

# --- reads the /metrics page of a model server again and again, at most as often as its cost allows
# ---

SHARE = 0.01
"""The share of the time that readings may take: below the noise of a measurement on a shared
machine (2 to 5 %)."""
MIN_INTERVAL_S = 0.5
MAX_INTERVAL_S = 4.0
"""Bounds of the time between two readings. The screen marks values as old after 5 s
(session.freshness)."""
QUICK = 4
"""The first readings follow each other by MIN_INTERVAL_S, so that the screen fills."""
LAST = 5
"""The cost is the smallest of this many readings: other load on the machine only adds to a time."""
TIMEOUT_S = 2.0


class Scraper:
    """The metrics page at `url`.

    vLLM answers `/metrics/?name[]=...` with the named metrics only: 4 KB in 3 ms instead of 49 KB
    in 12 ms (vLLM 0.32 on a CPU), and reading the answer takes 1 ms instead of 13 ms. A server that
    has no such filter is asked for the whole page.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        buckets: bool = False,
        model: str = "",
        timeout_s: float = TIMEOUT_S,
        filtered: bool = True,
    ) -> None:
        """`buckets`, `model`: see `server_state`. `filtered`: ask for the named metrics of vLLM
        alone first."""
        self._session, self._url = session, url
        self._buckets, self._model, self._timeout_s = buckets, model, timeout_s
        self._filtered = filtered
        self._costs: deque[float] = deque(maxlen=LAST)
        self._read = 0

    @property
    def interval_s(self) -> float:
        """Seconds until the next reading."""
        if self._read < QUICK:
            return MIN_INTERVAL_S
        return min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, min(self._costs, default=0.0) / SHARE))

    async def read(self) -> tuple[ServerState, list[Metric]]:
        """One reading: the state, and the metrics by families. Raises ValueError, with the address
        and one line, where there is no such page."""
        try:
            return await self._read_once()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as problem:
            raise ValueError(
                f"{self._url}: {explain(problem)}; the state of the server is unknown"
            ) from None

    async def _read_once(self) -> tuple[ServerState, list[Metric]]:
        if self._filtered:
            page = await self._page(
                f"{self._url}/?"
                f"{'&'.join(f'name[]={quote(name)}' for name in _requested_metrics(self._buckets))}"
            )
            if page is not None and page[1]:
                return page
            self._filtered = False
            self._costs.clear()
        page = await self._page(self._url)
        if page is None:
            raise ValueError("it contains no known metric")
        return page

    async def _page(self, url: str) -> tuple[ServerState, list[Metric]] | None:
        """The page at `url`, and its cost: the time of the request, and the CPU time of reading the
        answer. None without a known metric."""
        asked = time.perf_counter()
        async with self._session.get(
            url, timeout=aiohttp.ClientTimeout(total=self._timeout_s), allow_redirects=False
        ) as answer:
            status, text, t = (
                answer.status,
                (await read_body(answer)).decode(errors="replace"),
                now(),
            )
            elsewhere = redirection(answer)
        cost, begun = time.perf_counter() - asked, time.thread_time()
        if status != 200:
            if self._filtered:
                return None
            raise ValueError(elsewhere or f"HTTP {status}")
        families = read_families(text, self._buckets)
        state = server_state(families, t, buckets=self._buckets, model=self._model)
        self._costs.append(cost + time.thread_time() - begun)
        self._read += 1
        return (state, families) if state.gauges or state.totals else None


# --- the /metrics page of any supported model server, under one set of names ----------------------

SUMMED = ("_sum", "_count")
BUCKET = "_bucket"
SHARES = ("kv_cache_usage_ratio", "prefix_hit_ratio", "forward_busy_ratio")
"""Gauges that engines do not add up: the largest counts, and the mean of KV_MEAN."""
LIMITS = ("sequence_limit", "token_limit", "lora_limit")
"""Limits of one engine: of several engines, the largest."""
MEANS = ("accept_length", "accept_ratio")
"""Gauges of which the mean counts: of those that have worked, because an idle rank reports 0."""
CACHE_USAGE, KV_MEAN = "kv_cache_usage_ratio", "kv_cache_mean_ratio"
PERCENTILES = ("ttft_s", "itl_s", "e2e_s", "iteration_tokens")
"""The histograms whose buckets are read, of a server that is watched: for percentiles, and for the
budget of an iteration."""
CACHE_INFO, SGLANG_TOKENS = "vllm:cache_config_info", "sglang:max_total_num_tokens"
"""Metrics that hold facts about the server (facts.py)."""
PROCESS_START = "process_start_time_seconds"
"""When the process that answers has started. prometheus_client exports it."""
LORA_INFO, MAX_LORA = "vllm:lora_requests_info", "max_lora"
"""vLLM's limit of LoRA adapters in one iteration is a label; the value is a time."""
FACTS_ON_PAGE = (CACHE_INFO, SGLANG_TOKENS, LORA_INFO)
TRITON, TRITON_ENGINE = "nv_", "nv_trt_llm_"
OF_TRITON_ENGINE = (TRITON_ENGINE, "nv_inference_pending_request_count")
"""What runs and waits is told by the model that is the engine."""
OF_EACH_ENGINE = (
    "requests_running", "requests_waiting", "kv_cache_usage_ratio", "sequence_limit",
    "generation_tokens", "prompt_tokens", "requests",
)  # fmt: skip
"""The gauges and counts that are also kept of each engine, where several report on one page."""
OF_WEB_SERVER = ("requests_invalid", "http_errors", "http_answers")
"""Counts of the web server in front of an engine, by the status of its answers."""
KINDS = ("model_name", "model", "engine_type")
"""Labels in which engines differ that do not serve the same requests."""
MAX_ENGINES = 64
KEY_CHARACTERS = 32
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of the parts of one engine: each part reports the same."""
IS_EMPTY = "is an empty page"
IS_HTML = "is a web page (HTML), not metrics"
IS_JSON = "is JSON, not a metrics page"
"""The last one: of trtllm-serve, an array of iterations."""
MAX_LINE_LENGTH = 2**14
MAX_LINES = 20_000


class LabelChoice(NamedTuple):
    """The samples whose `label` is one of `values` (`excludes`: none of them)."""

    label: str
    values: tuple[str, ...]
    excludes: bool

    def takes(self, labels: Mapping[str, str]) -> bool:
        text = labels.get(self.label, "")
        # some pages report the status 404, others its class 4xx
        of_class = f"{text[0]}xx" if len(text) == 3 and text.isdigit() else text
        return (text in self.values or of_class in self.values) != self.excludes


class MetricPart(NamedTuple):
    """A metric of the page, by its full name: the samples that pass all `choices`, times
    `factor`."""

    name: str
    choices: tuple[LabelChoice, ...] = ()
    factor: float = 1.0

    def takes(self, labels: Mapping[str, str]) -> bool:
        return all(choice.takes(labels) for choice in self.choices)


class SignalSource(NamedTuple):
    """Where a signal of an engine comes from: the first of `ways` of which all parts are on the
    page."""

    engine: ServingEngine
    signal: str
    kind: str
    ways: tuple[tuple[MetricPart, ...], ...]


_PART = re.compile(r"(?P<other>/?)(?P<name>\w+)(\{(?P<labels>[^}]*)\})?( \* (?P<factor>\S+))?")
_CHOICE = re.compile(r"(?P<label>\w+)(?P<excludes>!?)=(?P<values>[^,]*)")


def _parts(prefix: str, way: str) -> tuple[MetricPart, ...]:
    """The parts of `a{label=x|y,other!=z} * 1e-6 + b` (see data/engines.toml)."""
    parts = []
    for text in way.split(" + "):
        match = _PART.fullmatch(text)
        if match is None:
            raise ValueError(f"data/engines.toml: {text!r} is no metric")
        choices = tuple(
            LabelChoice(found["label"], tuple(found["values"].split("|")), bool(found["excludes"]))
            for found in _CHOICE.finditer(match["labels"] or "")
        )
        name = match["name"] if match["other"] else prefix + match["name"]
        parts.append(MetricPart(name, choices, float(match["factor"] or 1)))
    return tuple(parts)


@cache
def _sources() -> tuple[SignalSource, ...]:
    """All signals of all engines. Those of routers come last."""
    kinds = ("gauges", "totals", "times")
    return tuple(
        SignalSource(engine, signal, kind, tuple(_parts(engine.prefix, way) for way in ways))
        for engine in sorted(engines(), key=lambda engine: engine.front)
        for kind in kinds
        for signal, ways in getattr(engine, kind).items()
    )


def _names_of(source: SignalSource, buckets: bool) -> list[str]:
    """The names on the page that the source reads. `buckets`: also those of a histogram whose
    percentiles are wanted."""
    ends = (*SUMMED, BUCKET) if buckets and source.signal in PERCENTILES else SUMMED
    return [
        part.name + end
        for way in source.ways
        for part in way
        for end in (ends if source.kind == "times" else ("",))
    ]


@cache
def _requested_metrics(buckets: bool) -> tuple[str, ...]:
    """What vLLM is asked for, where it answers with the named metrics only."""
    names = [
        name
        for source in _sources()
        if source.engine.name == "vllm"
        for name in _names_of(source, buckets)
    ]
    return tuple(dict.fromkeys([*names, CACHE_INFO, LORA_INFO, PROCESS_START]))


@cache
def _spelled(buckets: bool) -> dict[str, str]:
    """The usual name of each metric that is read, by every spelling of it."""
    names: dict[str, str] = {}
    for engine in engines():
        known = [
            name
            for source in _sources()
            if source.engine is engine
            for name in _names_of(source, buckets)
        ]
        known += [name for name in FACTS_ON_PAGE if name.startswith(engine.prefix)]
        for name in known:
            for prefix in (engine.prefix, *engine.also):
                if name.startswith(engine.prefix):
                    names[prefix + name.removeprefix(engine.prefix)] = name
                else:
                    names[name] = name
    return {**names, PROCESS_START: PROCESS_START}


_NAME = re.compile(r"[^{\s]*")


def read_families(text: str, buckets: bool = False) -> list[Metric]:
    """The known metrics of the exposition `text`, by their usual names. `buckets`: also those for
    percentiles. Raises ValueError for an invalid page.

    A page of vLLM has 600 lines, of which 40 are known. Only these are parsed: 1 ms instead of 13
    ms. The time that the parser takes for a line of quotation marks grows with the square of its
    length: 33 s for 1.3 MB.
    """
    known, lines = _spelled(buckets), []
    for line in text.splitlines():
        name = _NAME.match(line)[0]  # type: ignore[index]  # the pattern matches any line
        if (usual := known.get(name)) is not None:
            lines.append(usual + line[len(name) :])
    if any(len(line) > MAX_LINE_LENGTH for line in lines):
        raise ValueError(f"a line has more than {MAX_LINE_LENGTH} characters")
    if len(lines) > MAX_LINES:
        raise ValueError(f"the page has more than {MAX_LINES} lines of known metrics")
    families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    # the parser makes an int of digits, and no float holds one of 400 digits
    if any(
        MAX_NUMBER < abs(sample.value) < math.inf
        for family in families
        for sample in family.samples
    ):
        raise ValueError("a number on the page is out of range")
    return families


def what_it_is(text: str) -> str:
    """What a page without a known metric is, in a few words."""
    begin = text[:1000].lstrip("\ufeff \t\r\n")
    if not begin:
        return IS_EMPTY
    if begin.startswith("<"):
        return IS_HTML
    return IS_JSON if begin[0] in "[{" else "has no known metric"


def engines_on(families: Iterable[Metric]) -> list[ServingEngine]:
    """The engines whose metrics are on the page."""
    names = [sample.name for family in families for sample in family.samples]
    return [engine for engine in engines() if any(name.startswith(engine.prefix) for name in names)]


def models_on(families: Iterable[Metric]) -> list[str]:
    """The names of the models on the page."""
    return sorted(
        {
            name
            for family in families
            for sample in family.samples
            if (name := model_of(sample.labels))
        }
    )


def models_counted(families: Sequence[Metric]) -> list[str]:
    """The models on the page whose requests are added up."""
    counted = _OneRequest(families, "")
    return sorted(
        {
            name
            for family in families
            for sample in family.samples
            if (name := model_of(sample.labels))
            and not sample.name.startswith(OF_TRITON_ENGINE)
            and counted.takes(sample.name, name)
        }
    )


def model_of(labels: Mapping[str, str]) -> str:
    """The model that a sample is about; empty where it names none."""
    return labels.get("model_name") or labels.get("model") or ""


@cache
def _counter_names() -> frozenset[str]:
    """The metrics of all engines that only rise while a server runs."""
    return frozenset(
        name
        for source in _sources()
        if source.kind != "gauges"
        for name in _names_of(source, buckets=False)
    )


def counters_on(families: Iterable[Metric]) -> dict[str, float]:
    """The known counters of the page by their names on it, added up over their labels."""
    counters: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if sample.name in _counter_names() and math.isfinite(sample.value):
                _increase(counters, sample.name, float(sample.value))
    return counters


def server_state(
    families: Iterable[Metric], t: float, *, buckets: bool = False, model: str = ""
) -> ServerState:
    """The values of `families` at `t`, added up over engines (shares: the largest). `buckets`: with
    the buckets for percentiles. `model`: only what is about this model; empty: about all."""
    page, state = _Page(families, model), ServerState(t, {}, {}, {})
    served: set[str] = set()
    """The signals that an engine reports: those of a router do not count then."""
    for source in _sources():
        if source.engine.front and source.signal in served:
            continue
        if source.signal in OF_WEB_SERVER and not state.gauges:
            continue  # a web server without a model server
        if _add(state, source, page, buckets) and not source.engine.front:
            served.add(source.signal)
    engines = _each_engine(page)
    if len(engines) > 1:
        state.gauges["engines"] = float(len(engines))
        state.engines.update(itertools.islice(engines.items(), MAX_ENGINES))
        state.gauges["kinds_of_engines"] = float(page.kinds())
    if limits := page.label_values(LORA_INFO, MAX_LORA):
        state.gauges["lora_limit"] = max(limits)
    starts = page.values(MetricPart(PROCESS_START))
    return msgspec.structs.replace(state, process_start=starts[0]) if len(starts) == 1 else state


def _each_engine(page: _Page) -> dict[str, dict[str, float]]:
    """The gauges of each engine, rank or replica that reports on the page, by a key from the labels
    that tell them apart. Empty where one alone reports."""
    found = {
        signal: [
            ({**labels, "": source.engine.title}, value)
            for source in _sources()
            if source.signal == signal and not source.engine.front
            for way in itertools.islice(filter(page.has, source.ways), 1)
            for part in way
            for labels, value in page.samples(part)
        ]
        for signal in OF_EACH_ENGINE
    }
    # an engine has one running gauge; a limit may be that of all
    own = max((found[signal] for signal in OF_EACH_ENGINE[:3]), key=len)
    names = _telling_apart([labels for labels, _ in own])
    engines: dict[str, dict[str, float]] = {_key(labels, names): {} for labels, _ in own}
    if len(engines) < 2:
        return {}
    for signal, samples in found.items():
        for labels, value in samples:
            keys = [_key(labels, names)]
            if signal in LIMITS and not any(labels.get(name) for name in names):
                keys = list(engines)
            for key in keys:
                if key in engines:
                    before = engines[key].get(signal, 0.0)
                    several = max if signal in (*SHARES, *LIMITS) else operator.add
                    engines[key][signal] = several(before, value)
    return engines


def _telling_apart(engines: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The names of the labels that tell `engines` apart: one if it is enough, the one with the
    shortest values."""
    names = sorted({name for labels in engines for name in labels})
    values = {name: [labels.get(name, "") for labels in engines] for name in names}
    enough = [name for name in names if all(values[name]) and _all_differ(values[name])]
    if enough:
        return (min(enough, key=lambda name: max(map(len, values[name]))),)
    return tuple(name for name in names if len(set(values[name])) > 1)


def _all_differ(values: Sequence[str]) -> bool:
    return len(set(values)) == len(values)


def _key(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """A short name of an engine: `0` of several engines, `dp_rank 1`, `worker-a`."""
    words = (
        f"{name} {value}" if value.isdigit() and name != "engine" else value
        for name in names
        if (value := labels.get(name, ""))
    )
    return visible(", ".join(words))[:KEY_CHARACTERS]


_ENTRY = re.compile(r"ensemble|_bls\b")
"""The models that clients of TensorRT-LLM behind Triton ask: an ensemble, or the script that calls
the same parts."""


class _OneRequest:
    """Which models of a page count. Behind Triton, a request to TensorRT-LLM is one of an ensemble
    and of each of its parts (preprocessing, tensorrt_llm, postprocessing): added up, one request
    was four. Its counts are those of the ensemble, otherwise of the largest model; what runs and
    waits is that of the engine."""

    def __init__(self, families: Sequence[Metric], model: str) -> None:
        """`model`: the one that the user has chosen; empty: all."""
        self._model = model
        self._asked: set[str] = set()
        """The models whose counts are those of the requests; empty where models are independent."""
        self._engines: set[str] = set()
        requests: dict[str, float] = {}
        for family in families:
            for sample in family.samples:
                name = model_of(sample.labels)
                if sample.name.startswith(TRITON_ENGINE) or (
                    sample.name.startswith(TRITON) and name.startswith("tensorrt_llm")
                ):
                    self._engines |= {name} if not _ENTRY.search(name) else set()
                if sample.name == f"{TRITON}inference_request_success":
                    _increase(requests, name, float(sample.value))
        if self._engines and not model:
            asked = {name for name in requests if _ENTRY.search(name)}
            if not any(requests[name] for name in asked):
                asked = {max(requests, key=lambda name: requests[name])} if requests else set()
            self._asked = asked

    def takes(self, metric: str, model: str) -> bool:
        """Whether the samples of `metric` about `model` count."""
        if not model or not metric.startswith(TRITON) or not self._engines:
            return not self._model or (model or self._model) == self._model
        asked = {self._model} if self._model else self._asked
        if metric.startswith(OF_TRITON_ENGINE) and (
            not self._model or self._model not in self._engines
        ):
            return model in self._engines or metric.startswith(TRITON_ENGINE)
        return model in asked


class _Page:
    """The samples of a page by name: of the parts of one engine only one, because each reports the
    same."""

    def __init__(self, families: Iterable[Metric], model: str) -> None:
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        families = list(families)
        counted = _OneRequest(families, model)
        parts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in families:
            for sample in family.samples:
                labels, value = sample.labels, float(sample.value)
                # SGLang reports each priority, and the sum under an empty label
                if labels.get("priority") or math.isnan(value):
                    continue
                if not counted.takes(sample.name, model_of(labels)):
                    continue
                if any(rank in labels for rank in RANKS):
                    rest = tuple(
                        sorted((name, text) for name, text in labels.items() if name not in RANKS)
                    )
                    parts[sample.name, rest] = max(value, parts.get((sample.name, rest), value))
                else:
                    self._samples.setdefault(sample.name, []).append((labels, value))
        for (name, rest), value in parts.items():
            self._samples.setdefault(name, []).append((dict(rest), value))

    def label_values(self, name: str, label: str) -> list[float]:
        """The numbers in a label of the metric `name`."""
        texts = [labels.get(label, "") for labels, _ in self._samples.get(name, ())]
        return [float(text) for text in texts if text.isdigit()]

    def has(self, way: Iterable[MetricPart]) -> bool:
        """Whether all parts of a way are on the page."""
        return all(self.values(part) for part in way)

    def samples(self, part: MetricPart, end: str = "") -> list[tuple[Mapping[str, str], float]]:
        """The samples of a metric, one for each engine, model or label."""
        return [
            (labels, value * part.factor)
            for labels, value in self._samples.get(part.name + end, ())
            if part.takes(labels)
        ]

    def kinds(self) -> int:
        """How many kinds of engines report: of different models, or for different work."""
        running = (
            part
            for source in _sources()
            if source.signal == "requests_running" and not source.engine.front
            for way in source.ways
            for part in way
        )
        kinds = {
            tuple(labels.get(name, "") for name in KINDS)
            for part in running
            for labels, _ in self.samples(part)
        }
        return max(1, len(kinds))

    def values(self, part: MetricPart, end: str = "") -> list[float]:
        """The values of a metric, one for each engine, model or label."""
        return [value for _, value in self.samples(part, end)]

    def buckets(self, part: MetricPart) -> dict[float, float]:
        """The cumulative counts of a histogram by upper bound, over all engines: the bounds that
        all of them have."""
        counts: dict[float, list[float]] = {}
        for labels, value in self._samples.get(part.name + BUCKET, ()):
            with contextlib.suppress(ValueError):
                if part.takes(labels) and math.isfinite(
                    bound := float(labels.get("le", "")) * part.factor
                ):
                    counts.setdefault(bound, []).append(value)
        most = max(map(len, counts.values()), default=0)
        return {
            bound: sum(values) for bound, values in sorted(counts.items()) if len(values) == most
        }


def _add(state: ServerState, source: SignalSource, page: _Page, buckets: bool) -> bool:
    """Add the signal of `source` to the state. False where the page does not have it."""
    for way in source.ways:
        if source.kind == "times":
            (part,) = way
            if not (counts := page.values(part._replace(factor=1.0), "_count")):
                continue
            _increase(state.totals, f"{source.signal}_sum", sum(page.values(part, "_sum")))
            _increase(state.totals, f"{source.signal}_count", sum(counts))
            if buckets and source.signal in PERCENTILES and (bounds := page.buckets(part)):
                state.buckets.setdefault(source.signal, list(bounds.items()))
            return True
        values = [page.values(part) for part in way]
        if not all(values):
            continue
        together = [value for each in values for value in each]
        if source.kind == "totals":
            _increase(state.totals, source.signal, sum(together))
        elif source.signal in MEANS:
            if worked := [value for value in together if value > 0]:
                state.gauges[source.signal] = sum(worked) / len(worked)
        elif source.signal in (*SHARES, *LIMITS):
            state.gauges[source.signal] = max(
                state.gauges.get(source.signal, together[0]), *together
            )
            if source.signal == CACHE_USAGE and len(together) > 1:
                state.gauges[KV_MEAN] = sum(together) / len(together)
        else:
            _increase(state.gauges, source.signal, sum(together))
        return True
    return False


def _increase(values: dict[str, float], name: str, amount: float) -> None:
    values[name] = values.get(name, 0.0) + amount
