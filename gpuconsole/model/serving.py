"""Requests to a model server, measured by the client; what the server reports about its state and
about itself, each fact with its source; and recorded prompts."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuconsole.model.knobs.catalogue import CATALOGUE
from gpuconsole.model.knobs.knob import Knobs, Value

# --- requests to a model server, measured by the client, and the state that the server reports ----

SERVING_PHASES = ("client_queue", "queue", "prefill", "decode", "transport")
"""The exclusive parts of a request's time from the client's view; their shares sum to 1.

`client_queue`: in the client before sending. `queue`, `prefill`, `decode`: as the server reports.
`transport`: the rest of E2E.
"""

SETTLE_S = (0.5, 4.0)
"""After a change the server's batch must fill or drain. The load generator waits for the duration
of a request, within these bounds (seconds)."""


def settle_s(e2e_s: float | None) -> float:
    """The seconds after a change that do not count, where a request takes `e2e_s` seconds."""
    return min(SETTLE_S[1], max(SETTLE_S[0], e2e_s or 0.0))


PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def served_precision(knobs: Mapping[str, object]) -> str:
    """The precision in which a server with these knobs computes, in the names of `Peaks`. Without
    `dtype`: bf16, the usual precision of models."""
    return PRECISIONS.get(str(knobs.get("dtype")), "bf16")


class Request(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One request. Times in seconds; `t` is the end of the request on CLOCK_MONOTONIC.

    `gaps` are the times between chunks; `counts` are the tokens in each chunk after the first. The
    first chunk has no gap and is in neither tuple. `error`: the cause of a failure; `ttft_s` and
    `e2e_s` may then be missing. `kind`: 0 counts, 1 settling, 2 belongs to a probe.
    """

    t: float
    client_queue_s: float
    ttft_s: float | None
    e2e_s: float | None
    prompt_tokens: int
    output_tokens: int
    gaps: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    error: str = ""
    arm: int = 0
    kind: int = 0

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); None with less than two tokens, and where all tokens
        arrived together."""
        if (
            self.ttft_s is None
            or self.e2e_s is None
            or self.output_tokens < 2
            or self.e2e_s <= self.ttft_s
        ):
            return None
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)


class Objective(msgspec.Struct, frozen=True):
    """The objective of a request (`--slo`): upper bounds in seconds; None: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met(self, request: Request) -> bool:
        pairs = (
            (self.ttft_s, request.ttft_s),
            (self.tpot_s, request.tpot_s or 0.0),
            (self.e2e_s, request.e2e_s),
        )
        return not request.error and all(
            bound is None or (value is not None and value <= bound) for bound, value in pairs
        )


def _seconds(text: str, is_known: Callable[[str], bool], expected: str) -> dict[str, float]:
    """The bounds in `ttft=0.5,tpot=0.05`. Raises ValueError with one line for the user."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not is_known(name.strip()):
            raise ValueError(f"{part!r}: expected {expected}")
        try:
            bounds[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"{part!r}: {value!r} is not a number of seconds") from None
        if not bounds[name.strip()] > 0:
            raise ValueError(f"{part!r}: must be more than 0 s")
    return bounds


def parse_objective(text: str) -> Objective:
    """Parse an objective such as `ttft=0.5,tpot=0.05`, in seconds. Raises ValueError with one line
    for the user."""
    known = ("ttft", "tpot", "e2e")
    bounds = _seconds(text, known.__contains__, "ttft=S, tpot=S or e2e=S")
    return Objective(**{f"{name}_s": limit_s for name, limit_s in bounds.items()})


class LatencyBound(msgspec.Struct, frozen=True):
    """One bound on a latency of all requests, as a server's histograms know it: `figure` is a field
    of `Summary`, `statistic` a field of `Distribution`."""

    figure: str
    statistic: str
    limit_s: float

    @property
    def name(self) -> str:
        return f"{self.figure.removesuffix('_s')}_{self.statistic}"


BOUND = re.compile(r"(ttft|itl|e2e)_(mean|p50|p90|p95|p99)")


def parse_latency_bounds(text: str) -> tuple[LatencyBound, ...]:
    """Parse bounds such as `ttft_p99=0.5,itl_mean=0.05`, in seconds. Raises ValueError with one
    line for the user."""
    expected = "ttft_p99=S (ttft, itl or e2e; mean, p50, p90, p95 or p99)"
    bounds = _seconds(text, lambda name: BOUND.fullmatch(name) is not None, expected)
    parts = {name: name.split("_") for name in bounds}
    return tuple(
        LatencyBound(f"{parts[name][0]}_s", parts[name][1], limit_s)
        for name, limit_s in bounds.items()
    )


# --- what a model server reports about itself, each fact with its source --------------------------

WATCHED = "inference.watched"
"""The workload of a run that watches a server under the load of other clients."""
CLIENT_WAIT = "client_wait"
"""The probe of a watched server: requests of ours, after the user has agreed."""
PROBE_REQUESTS = 5
PROBE_CHARACTERS = 256
PROBE_TOKENS = 32
"""What it sends: requests one after another, each with a text of so many characters, for so many
tokens."""
PROBE_PAUSE_S = 0.2
"""After each request: some engines count it only after its end."""
PROBE_S = 60.0
"""After this time the probe ends."""
OURS = "probe.requests"
"""The signal that counts the requests of ours to a watched server."""
KNOB_OF = {"engine": "server", "num_blocks_override": "num_gpu_blocks_override"}
"""Facts whose knob has another name."""
EMBEDDED = "gpuconsole"


class Fact(msgspec.Struct, frozen=True):
    """One fact. `source`: where the value was read, for example `/v1/models` or
    `the server's log`."""

    value: float | str
    source: str


class ServerFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one model server. None: no source reports the fact.

    `engine`: a name of data/engines.toml, or gpuconsole (the embedded server). `dtype` is in the
    server's own words. `max_model_len`: tokens of one sequence, prompt and answer together.
    `block_size`: tokens in one block of the KV cache. `num_blocks`: blocks of the KV cache.
    `num_blocks_override`: the number of blocks that a start argument set; 0: the free memory sets
    the number. Switches are 1 (on) or 0 (off). `kv_cache_tokens`: tokens that fit in the KV cache.
    `max_num_seqs`: sequences in one iteration. `max_num_batched_tokens`: tokens in one iteration.
    `weight_bytes`: bytes of the weights on the device. `kv_bytes_per_token`: bytes of the keys and
    values of one token. `here`: whether the address of the server is an address of this machine,
    also where its processes cannot be seen (a container, another user); None: not known.
    """

    engine: Fact | None = None
    version: Fact | None = None
    model: Fact | None = None
    dtype: Fact | None = None
    kv_cache_dtype: Fact | None = None
    quantization: Fact | None = None
    max_model_len: Fact | None = None
    block_size: Fact | None = None
    num_blocks: Fact | None = None
    num_blocks_override: Fact | None = None
    kv_cache_tokens: Fact | None = None
    max_num_seqs: Fact | None = None
    max_num_batched_tokens: Fact | None = None
    enable_prefix_caching: Fact | None = None
    enable_chunked_prefill: Fact | None = None
    gpu_memory_utilization: Fact | None = None
    tensor_parallel_size: Fact | None = None
    weight_bytes: Fact | None = None
    kv_bytes_per_token: Fact | None = None
    here: bool | None = None

    def known(self) -> dict[str, Fact]:
        """The facts that a source reports, by name."""
        facts = {name: getattr(self, name) for name in self.__struct_fields__ if name != "here"}
        return {name: fact for name, fact in facts.items() if fact is not None}

    def number(self, name: str) -> float | None:
        """The value of the fact `name` as a number; None where no source reports the fact, or the
        fact is a text."""
        fact = self.known().get(name)
        return fact.value if fact is not None and isinstance(fact.value, float | int) else None

    def numbers(self) -> dict[str, float]:
        """The facts that are numbers."""
        numbers = {name: self.number(name) for name in self.known()}
        return {name: value for name, value in numbers.items() if value is not None}

    def settings(self) -> Knobs:
        """The facts that are settings, under the names of the knobs. `server`: the engine; the
        embedded server is `embedded`."""
        knobs: Knobs = {}
        for fact_name, fact in self.known().items():
            name = KNOB_OF.get(fact_name, fact_name)
            if name in CATALOGUE:
                knobs[name] = _as_knob(name, fact.value)
        return knobs


def _as_knob(name: str, value: float | str) -> Value:
    """`value` converted to the type of the knob. A text that the knob does not allow, for example
    another engine's quantization, stays unchanged."""
    if isinstance(value, str):
        return "embedded" if (name, value) == ("server", EMBEDDED) else value
    kind = CATALOGUE[name].kind
    return bool(value) if kind == "bool" else int(value) if kind == "int" else value


# --- recorded prompts: a file with one JSON object per line, in the format of
# `vllm bench serve --dataset-name custom`


class RecordedPrompt(msgspec.Struct, frozen=True):
    """`output_tokens`: number of output tokens to request; None: the knob decides. `shared`: number
    of leading characters that another prompt has too."""

    text: str
    output_tokens: int | None = None
    shared: int = 0


class _Message(msgspec.Struct):
    content: str
    role: str = "user"


class _RecordedLine(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Message] = []
    output_tokens: int | None = None
    max_tokens: int | None = None


MAX_PROMPT_BYTES = 2**28
"""The largest file of recorded prompts that is read."""


def parse_recorded(text: str) -> list[RecordedPrompt]:
    """Parse lines of `{"prompt": ...}` or `{"messages": [...]}`, each with an optional
    `output_tokens` (or `max_tokens`).

    Messages are joined to one text. Raises ValueError with a one-line message that names the line
    of the file.
    """
    requests: list[tuple[str, int | None]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_RecordedLine)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise ValueError(f"line {number}: {problem}") from None
        prompt = read.prompt or "\n".join(
            f"{message.role}: {message.content}" for message in read.messages
        )
        tokens = read.output_tokens if read.output_tokens is not None else read.max_tokens
        if not prompt:
            raise ValueError(f'line {number}: neither "prompt" nor "messages" has a text')
        if tokens is not None and tokens < 1:
            raise ValueError(f"line {number}: output_tokens {tokens} must be 1 or more")
        requests.append((prompt, tokens))
    if not requests:
        raise ValueError("there is no prompt in it")
    shared = shared_beginnings([prompt for prompt, _ in requests])
    return [RecordedPrompt(prompt, tokens, shared[prompt]) for prompt, tokens in requests]


def shared_ratio(texts: Sequence[str]) -> float:
    """Share of the prompt text that a perfect prefix cache would hold from another prompt, 0..1."""
    shared = shared_beginnings(texts)
    return sum(shared[text] for text in texts) / sum(map(len, texts))


def shared_beginnings(texts: Sequence[str]) -> dict[str, int]:
    """For each text, the length in characters of the longest prefix that another text shares. After
    sorting, that other text is adjacent."""
    ordered = sorted(texts)
    shared = dict.fromkeys(ordered, 0)
    for before, other in itertools.pairwise(ordered):
        common = bisect.bisect_left(
            range(1, min(len(before), len(other)) + 1), True, key=lambda n: before[:n] != other[:n]
        )
        for text in (before, other):
            shared[text] = max(shared[text], common)
    return shared
