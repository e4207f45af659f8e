"""The OpenAI API over the engine: /v1/completions, /v1/chat/completions, /v1/models, /health,
/metrics.

Engine and HTTP share one thread: an iteration, then its answers. Two threads would compete for
Python's global lock, and the main load is the model. A token is a byte, so a prompt has as many
tokens as bytes.
"""

from __future__ import annotations

import asyncio
import codecs
import hmac
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gpuconsole.model.knobs.serving import embedded_limits
from gpuconsole.workloads.serving.engine.core import Core, Iteration, NoFreeSlot, Sequence, TooLong
from gpuconsole.workloads.serving.http import SERVER_KEY
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import OwnLimits

# --- metrics, with the names that vLLM 0.32 uses on /metrics --------------------------------------

LABELS = ("model_name", "engine")
LATENCIES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
)  # fmt: skip
BATCHES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


GAUGES = {
    "num_requests_running": "Sequences in the current iteration",
    "num_requests_waiting": "Sequences that wait for a sequence slot or for KV blocks",
    "kv_cache_usage_perc": "Share of the KV blocks in use, 0 to 1",
}
COUNTERS = {
    "num_preemptions": "Preempted sequences, which are recomputed",
    "prompt_tokens": "Prompt tokens computed",
    "generation_tokens": "Tokens generated",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "estimated_flops_per_gpu": "FLOPs of the model's matrices and attention",
    "estimated_read_bytes_per_gpu": "Bytes of weights and KV cache that iterations must read",
}
TIMES = {
    "time_to_first_token_seconds": "From arrival to the first token",
    "inter_token_latency_seconds": "Between two tokens of a sequence",
    "e2e_request_latency_seconds": "From arrival to the last token",
    "request_queue_time_seconds": "From arrival to the first iteration",
    "request_prefill_time_seconds": "From the first iteration to the first token",
    "request_decode_time_seconds": "From the first token to the last",
}
Metric = TypeVar("Metric", Gauge, Counter, Histogram)


class Metrics:
    """Counters grow with each event; each iteration sets the gauges."""

    def __init__(
        self, model: str, core: Core, cache: dict[str, str], facts: Mapping[str, float]
    ) -> None:
        """`facts`: the facts that the server reports at /facts; the FLOPs and bytes of an iteration
        follow from them."""
        self._core, self._facts = core, facts
        self._registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self._counted: dict[str, int] = {}
        self._gauges = {name: self._new(Gauge, name, text) for name, text in GAUGES.items()}
        self._counters = {name: self._new(Counter, name, text) for name, text in COUNTERS.items()}
        self._times = {
            name: self._new(Histogram, name, text, buckets=LATENCIES)
            for name, text in TIMES.items()
        }
        self._iteration = self._new(
            Histogram, "iteration_tokens_total", "Tokens computed in an iteration", buckets=BATCHES
        )
        self._done = Counter(
            "vllm:request_success",
            "Requests by finish reason",
            (*LABELS, "finished_reason"),
            registry=self._registry,
        )
        text = "Configuration of the KV cache"
        info = Gauge("vllm:cache_config_info", text, tuple(cache), registry=self._registry)
        info.labels(**cache).set(1)

    def iteration(self, plan: Iteration) -> None:
        scheduler, prefixes = self._core.scheduler, self._core.prefixes
        self._gauges["num_requests_running"].set(len(scheduler.running))
        self._gauges["num_requests_waiting"].set(len(scheduler.waiting))
        self._gauges["kv_cache_usage_perc"].set(scheduler.kv_usage)
        if plan.tokens:
            self._iteration.observe(plan.tokens)
            self._cost(plan)
        self._counters["prompt_tokens"].inc(sum(end - start for _, start, end in plan.prefills))
        totals = {
            "num_preemptions": scheduler.preemptions,
            "prefix_cache_queries": prefixes.queries,
            "prefix_cache_hits": prefixes.hits,
        }
        for name, total in totals.items():
            self._counters[name].inc(total - self._counted.get(name, 0))
        self._counted = totals

    def _cost(self, plan: Iteration) -> None:
        """FLOPs: 2 per weight and token, 4 per layer, width and attended position. Bytes: all
        weights once, and the keys and values of the sequences."""
        facts = self._facts
        decoded = sum(sequence.computed for sequence in plan.decodes)
        seen = decoded + sum((end - start) * (start + end) / 2 for _, start, end in plan.prefills)
        held = decoded + sum(end for _, _, end in plan.prefills)
        attention = 4 * facts["n_layer"] * facts["d_model"] * seen
        self._counters["estimated_flops_per_gpu"].inc(
            2 * facts["matrix_parameters"] * plan.tokens + attention
        )
        # each piece of a prompt is a separate pass through the model
        passes = len(plan.prefills) + bool(plan.decodes)
        self._counters["estimated_read_bytes_per_gpu"].inc(
            passes * facts["weight_bytes"] + held * facts["kv_bytes_per_token"]
        )

    def token(self, sequence: Sequence, now: float) -> None:
        self._counters["generation_tokens"].inc()
        if sequence.first is None:
            self._times["time_to_first_token_seconds"].observe(now - sequence.arrived)
        elif sequence.last is not None:
            self._times["inter_token_latency_seconds"].observe(now - sequence.last)

    def finished(self, sequence: Sequence, reason: str) -> None:
        self._done.labels(**self._labels, finished_reason=reason).inc()
        arrived, admitted = sequence.arrived, sequence.admitted
        first, last = sequence.first, sequence.last
        if admitted is not None and first is not None and last is not None:
            self._times["request_queue_time_seconds"].observe(admitted - arrived)
            self._times["request_prefill_time_seconds"].observe(first - admitted)
            self._times["request_decode_time_seconds"].observe(last - first)
            self._times["e2e_request_latency_seconds"].observe(last - arrived)

    def text(self, names: Collection[str] = ()) -> bytes:
        """The page; with `names` only these metrics, as prometheus_client answers `?name[]=`."""
        return generate_latest(
            self._registry.restricted_registry(names) if names else self._registry
        )

    def _new(self, kind: type[Metric], name: str, meaning: str, **options: Any) -> Metric:
        metric = kind(f"vllm:{name}", meaning, LABELS, registry=self._registry, **options)
        return metric.labels(**self._labels)


# --- the API --------------------------------------------------------------------------------------

MODEL = "gpuconsole-gpt"
PASSES = 6
"""Turns of the event loop between two iterations. A new request needs several turns: accept, read,
parse, queue."""
DEFAULT_MAX_TOKENS = 16
MAX_BODY_BYTES = 64 * 1024 * 1024


class BadRequest(ValueError):
    """The request asks for a feature that this server does not have; the message is one line."""


@dataclass(eq=False)
class ResponseStream:
    """The sequence of a request and the bytes that are not sent yet."""

    sequence: Sequence
    chat: bool
    stream: bool
    include_usage: bool
    continuous_usage: bool
    fresh: list[int] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")

    def usage(self) -> dict[str, Any]:
        prompt, output = len(self.sequence.prompt), self.sequence.output
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }


def only_with_key(key: str) -> Middleware:
    """Refuses requests without the bearer token `key`, where there is one: other users of the
    machine reach the port too."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if key and not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), key.encode()):
            return _error(401, "this server belongs to a run of gpuconsole")
        return await handler(request)

    return check


class EngineServer:
    """One engine with its HTTP server. `facts` are plain numbers that the server reports at
    /facts."""

    def __init__(self, core: Core, facts: dict[str, float], cache_facts: dict[str, str]) -> None:
        self._core, self._facts = core, facts
        core.set_callbacks(self._token, self._iteration)
        self._metrics = Metrics(MODEL, core, cache_facts, facts)
        self._answers: dict[Sequence, ResponseStream] = {}
        self._wake = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application(
            client_max_size=MAX_BODY_BYTES,
            middlewares=[only_with_key(os.environ.get(SERVER_KEY, ""))],
        )
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/metrics", self._metrics_text),
                web.get("/metrics/", self._metrics_text),
                web.get("/facts", self._tell_facts),
                web.post("/limits", self._set_limits),
            ]
        )
        return app

    async def run_engine(self) -> None:
        """Run iterations forever; wait while there is no work."""
        while True:
            if not self._core.busy:
                self._wake.clear()
                await self._wake.wait()
            self._core.iterate()
            for _ in range(PASSES):
                await asyncio.sleep(0)

    def offer_limits(self, knobs: Mapping[str, Any]) -> None:
        """Let `gpuconsole watch` change the limits of the scheduler while the server runs. Raises
        OSError."""
        limits = embedded_limits(dict(knobs))
        tokens = limits["max_num_batched_tokens"] if knobs["enable_chunked_prefill"] else 0
        self._core.scheduler.own_limits = OwnLimits(limits["max_num_seqs"], tokens).read

    # --- from the engine --------------------------------------------------------------------------

    def _token(self, sequence: Sequence, token: int) -> None:
        self._metrics.token(sequence, time.monotonic())
        answer = self._answers[sequence]
        answer.fresh.append(token)
        answer.news.set()

    def _iteration(self, plan: Iteration) -> None:
        self._metrics.iteration(plan)

    # --- requests ---------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, chat=True)

    async def _serve(self, request: web.Request, chat: bool) -> web.StreamResponse:
        try:
            body = await request.json()
            if not isinstance(body, dict):
                raise BadRequest("the body must be a JSON object")
            if body.get("echo"):
                return web.json_response(self._scored(body))
            answer = read_request(body, chat)
            self._core.add(answer.sequence)
        except (json.JSONDecodeError, UnicodeDecodeError, BadRequest, TooLong) as problem:
            return _error(400, str(problem))
        except NoFreeSlot as problem:
            return _error(503, str(problem))
        self._answers[answer.sequence] = answer
        self._wake.set()
        try:
            return await (self._stream(request, answer) if answer.stream else self._whole(answer))
        finally:
            self._core.scheduler.remove(answer.sequence)
            self._metrics.finished(answer.sequence, answer.sequence.finished or "abort")
            del self._answers[answer.sequence]

    async def _stream(self, request: web.Request, answer: ResponseStream) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        if answer.chat:
            await response.write(_line(_chunk(answer, {"role": "assistant", "content": ""}, "")))
        async for text, reason in _pieces(answer):
            await response.write(_line(_chunk(answer, text, reason)))
        if answer.include_usage:
            await response.write(_line({**_head(answer), "choices": [], "usage": answer.usage()}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(self, answer: ResponseStream) -> web.Response:
        text = "".join([piece async for piece, _ in _pieces(answer)])
        choice: dict[str, Any] = {"index": 0, "finish_reason": answer.sequence.finished}
        choice |= (
            {"message": {"role": "assistant", "content": text}} if answer.chat else {"text": text}
        )
        return web.json_response({**_head(answer), "choices": [choice], "usage": answer.usage()})

    def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        """`echo` with `logprobs` and no generation: the log probabilities of the prompt, for
        perplexity."""
        if body.get("max_tokens") != 0 or body.get("logprobs") is None:
            raise BadRequest("echo only scores a prompt here: it needs max_tokens 0 and logprobs")
        tokens = prompt_tokens(body.get("prompt"))
        logprobs = {
            "tokens": [chr(token) for token in tokens],
            "token_logprobs": self._core.score(tokens),
        }
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 0, "total_tokens": len(tokens)}
        text = bytes(tokens).decode(errors="replace")
        choice = {"index": 0, "text": text, "finish_reason": "length", "logprobs": logprobs}
        return {
            "id": "score",
            "object": "text_completion",
            "model": MODEL,
            "choices": [choice],
            "usage": usage,
        }

    async def _models(self, request: web.Request) -> web.Response:
        entry = {
            "id": MODEL,
            "object": "model",
            "owned_by": "gpuconsole",
            "max_model_len": int(self._facts["max_model_len"]),
        }
        return web.json_response({"object": "list", "data": [entry]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics_text(self, request: web.Request) -> web.Response:
        names = request.query.getall("name[]", [])
        return web.Response(
            body=self._metrics.text(names), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def _tell_facts(self, request: web.Request) -> web.Response:
        return web.json_response(self._facts)

    async def _set_limits(self, request: web.Request) -> web.Response:
        limits = await request.json()
        self._core.scheduler.set_limits(
            int(limits["max_num_seqs"]), int(limits["max_num_batched_tokens"])
        )
        return web.Response()


async def _pieces(answer: ResponseStream) -> AsyncIterator[tuple[str, str]]:
    """Stream the text. A slow reader receives several tokens at once. The last piece carries the
    finish reason."""
    while True:
        await answer.news.wait()
        answer.news.clear()
        fresh, answer.fresh = answer.fresh, []
        reason = answer.sequence.finished
        yield answer.decoder.decode(bytes(fresh), bool(reason)), reason
        if reason:
            return


def read_request(body: dict[str, Any], chat: bool) -> ResponseStream:
    """The sequence that `body` asks for. Raises BadRequest."""
    tokens = prompt_tokens(chat_text(body.get("messages")) if chat else body.get("prompt"))
    asked = body.get("max_completion_tokens") or body.get("max_tokens")
    max_tokens = DEFAULT_MAX_TOKENS if asked is None else asked
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise BadRequest("max_tokens must be a whole number above 0")
    temperature = body.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 10:
        raise BadRequest("temperature must be between 0 and 10")
    if body.get("n", 1) != 1:
        raise BadRequest("n: only 1 is supported")
    options = body.get("stream_options") or {}
    sequence = Sequence(
        tokens,
        max_tokens,
        time.monotonic(),
        float(temperature),
        ignore_eos=bool(body.get("ignore_eos")),
    )
    return ResponseStream(
        sequence,
        chat,
        bool(body.get("stream")),
        bool(options.get("include_usage")),
        bool(options.get("include_usage") and options.get("continuous_usage_stats")),
    )


def prompt_tokens(prompt: object) -> list[int]:
    """A prompt's bytes, from text or from a list of them. Raises BadRequest."""
    if isinstance(prompt, str) and prompt:
        return list(prompt.encode())
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(token, int) and 0 <= token < 256 for token in prompt)
    ):
        return prompt
    raise BadRequest("the prompt must be text, or a list of bytes; and not empty")


def chat_text(messages: object) -> str:
    """The prompt text of chat messages. Raises BadRequest."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message")
    lines = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise BadRequest("every message needs a role and a text as content")
        lines.append(f"{message.get('role', 'user')}: {message['content']}")
    return "\n".join([*lines, "assistant: "])


def _head(answer: ResponseStream) -> dict[str, Any]:
    kind = (
        ("chat.completion.chunk" if answer.stream else "chat.completion")
        if answer.chat
        else "text_completion"
    )
    return {"id": answer.id, "object": kind, "created": int(time.time()), "model": MODEL}


def _chunk(answer: ResponseStream, piece: str | dict[str, str], reason: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason or None}
    if answer.chat:
        choice["delta"] = {"content": piece} if isinstance(piece, str) else piece
    else:
        choice["text"] = piece
    usage = {"usage": answer.usage()} if answer.continuous_usage else {}
    return {**_head(answer), "choices": [choice], **usage}


def _line(event: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def _error(status: int, message: str) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status
    )
