"""A model server that answers at known times, and one that misbehaves in every known way. A process
of its own:

    python -m tests.fakes.model_server      prints `serving http://127.0.0.1:PORT`

Each behaviour has an address of its own, `http://127.0.0.1:PORT/BEHAVIOUR`; `/switched` behaves as
`FakeServer.mode` says. The script: first token after TTFT_S, then one every ITL_S, by absolute
times, so that it does not drift. `/four` sends the first token alone and then four at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import statistics
import time

from aiohttp import web

TTFT_S, ITL_S = 0.2, 0.02
KEY = "sesame"
CONTEXT_TOKENS = 512
"""The context length of `/context`, whose tokenizer counts one token for each character."""
UNKNOWN_FIELDS = {
    "ignore_eos": ("Unexpected fields: ignore_eos", 422),
    "stream_options": (
        {
            "detail": [
                {
                    "type": "extra_forbidden",
                    "loc": ["body", "stream_options"],
                    "msg": "Extra inputs are not permitted",
                }
            ]
        },
        422,
    ),
    "continuous_usage_stats": ("unrecognized field: stream_options.continuous_usage_stats", 400),
    "some": ("Extra inputs are not permitted", 400),
}
"""The refusals of `/refuses-FIELD`, in the words of several servers."""
RUNNING, WAITING = 7, 3
RESTART_S = 2.5
PASSKEY_WORDS = "The pass key is "
"""How the passkey stands in a prompt."""


class FakeServer:
    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.asked = self.sent = 0
        self.bodies: list[dict[str, object]] = []
        self.first_reading = 0.0
        self.mode = "steady"
        self.late: dict[str, list[float]] = {"first": [], "last": []}

    def application(self, prefix: str = "/{behaviour}") -> web.Application:
        """Without a `prefix` it behaves steadily."""
        app = web.Application()
        app.add_routes(
            [
                web.post(f"{prefix}/v1/completions", self.complete),
                web.post(f"{prefix}/v1/chat/completions", self.complete),
                web.post(f"{prefix}/tokenize", self.tokenize),
                web.get(f"{prefix}/v1/models", self.models),
                web.get(f"{prefix}/metrics", self.metrics),
                web.get("/lateness", self.lateness),
                web.get("/sent", self.tell_sent),
            ]
        )
        return app

    async def models(self, request: web.Request) -> web.Response:
        behaviour = request.match_info.get("behaviour", "steady")
        if behaviour == "slow-start" and time.monotonic() - self.begun < 3.0:
            return web.Response(status=503)
        if behaviour == "key" and request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        if behaviour == "pressed":
            return web.json_response(
                {"data": [{"id": "scripted", "owned_by": "vllm", "max_model_len": 512}]}
            )
        if behaviour == "restarts":
            length = 1024 if self.restarted_s() is not None else 512
            return web.json_response(
                {"data": [{"id": "scripted", "owned_by": "vllm", "max_model_len": length}]}
            )
        return web.json_response({"data": [{"id": "scripted"}]})

    def restarted_s(self) -> float | None:
        """Seconds since `/restarts` restarted with other arguments: RESTART_S after the first
        reading of its metrics."""
        since = time.monotonic() - (self.first_reading or time.monotonic()) - RESTART_S
        return since if since >= 0 else None

    async def tokenize(self, request: web.Request) -> web.Response:
        """One token for each character. Only `/context` has it, as vLLM."""
        if request.match_info.get("behaviour") != "context":
            return web.Response(status=404)
        body = await request.json()
        return web.json_response(
            {"count": characters(body), "max_model_len": CONTEXT_TOKENS, "tokens": []}
        )

    async def metrics(self, request: web.Request) -> web.Response:
        behaviour = request.match_info.get("behaviour", "steady")
        if behaviour == "restarts":
            self.first_reading = self.first_reading or time.monotonic()
            again = self.restarted_s()
            blocks, up_s = (18, time.monotonic() - self.begun) if again is None else (36, again)
            info = (
                f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",'
                f'num_gpu_blocks_override="{blocks}"}} 1'
            )
            return web.Response(
                text=(
                    f"vllm:num_requests_running {RUNNING}\n"
                    f"vllm:generation_tokens_total {100 * up_s:.3f}\n{info}\n"
                )
            )
        if behaviour == "pressed":
            return web.Response(text=self.pressed())
        if behaviour != "steady":
            return web.Response(status=404)
        lines = [
            f"vllm:num_requests_running {RUNNING}",
            f"vllm:num_requests_waiting {WAITING}",
            "vllm:kv_cache_usage_perc 0.25",
        ]
        lines += [f"vllm:generation_tokens_total {100 * (time.monotonic() - self.begun):.3f}"]
        return web.Response(text="\n".join(lines) + "\n")

    def pressed(self) -> str:
        """A page of vLLM with a full KV cache of 18 blocks, one preemption for each of 10 requests
        in a second, and a long queue."""
        up_s = time.monotonic() - self.begun
        labels = (
            'block_size="16",num_gpu_blocks="18",num_gpu_blocks_override="18",'
            'gpu_memory_utilization="0.9",enable_prefix_caching="True"'
        )
        totals = {
            "num_preemptions": 10,
            "request_success": 10,
            "generation_tokens": 160,
            "prompt_tokens": 200,
        }
        times = {
            "request_queue_time_seconds": 1.0,
            "e2e_request_latency_seconds": 2.0,
            "request_prefill_time_seconds": 0.1,
        }
        times |= {"request_decode_time_seconds": 0.9}
        lines = [
            "vllm:num_requests_running 10",
            "vllm:num_requests_waiting 5",
            "vllm:kv_cache_usage_perc 1.0",
        ]
        lines += [
            f"vllm:cache_config_info{{{labels}}} 1",
            *(f"vllm:{name}_total {rate * up_s:.0f}" for name, rate in totals.items()),
        ]
        lines += [
            f"vllm:{name}_count {10 * up_s:.0f}\nvllm:{name}_sum {10 * up_s * mean:.1f}"
            for name, mean in times.items()
        ]
        return "\n".join(lines) + "\n"

    async def lateness(self, request: web.Request) -> web.Response:
        """By how many seconds it has missed its own script since it was last asked, median: event
        loops wake late."""
        told = {name: statistics.median(values) for name, values in self.late.items() if values}
        self.late = {"first": [], "last": []}
        return web.json_response(told)

    async def tell_sent(self, request: web.Request) -> web.Response:
        """Tokens sent to anybody so far."""
        return web.json_response(self.sent)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        behaviour = request.match_info.get("behaviour", "steady")
        behaviour = self.mode if behaviour == "switched" else behaviour
        begun = asyncio.get_running_loop().time()
        body = await request.json()
        self.asked += 1
        self.bodies.append(body)
        if behaviour == "key" and request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"error": {"message": "wrong key"}}, status=401)
        if behaviour == "busy":
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        if behaviour == "error":
            return web.Response(status=500, text="Internal\x1b[31m Server Error")
        if behaviour == "every-other" and self.asked % 2:
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        if behaviour == "strict" and {"ignore_eos"} & body.keys():
            return web.json_response(
                {"error": {"message": "Unexpected fields: ignore_eos"}}, status=422
            )
        if (
            behaviour.startswith("refuses-")
            and (refused := refuses(behaviour.removeprefix("refuses-"), body)) is not None
        ):
            return refused
        if behaviour == "context" and (refused := too_long(body)) is not None:
            return refused
        if behaviour == "passkey":
            return self.answer(body)
        if behaviour == "hang":
            await asyncio.sleep(3600)
        if not body.get("stream"):
            return web.json_response(
                {
                    "choices": [{"text": "x"}],
                    "usage": {"prompt_tokens": prompt_tokens(body, behaviour)},
                }
            )
        return await self.stream(request, behaviour, body, begun)

    def answer(self, body: dict[str, object]) -> web.Response:
        """Reads the passkey out of the prompt; scores every byte of an echoed one with probability
        1/4."""
        prompt = str(body.get("prompt", ""))
        if body.get("echo"):
            scores = [None, *[math.log(0.25)] * (len(prompt) - 1)]
            return web.json_response(
                {"choices": [{"text": prompt, "logprobs": {"token_logprobs": scores}}]}
            )
        found = re.search(rf"{PASSKEY_WORDS}(\d+)", prompt)
        return web.json_response(
            {"choices": [{"text": f" {found.group(1)}." if found else " none"}]}
        )

    async def stream(
        self, request: web.Request, behaviour: str, body: dict[str, object], begun: float
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = "messages" in body
        options = body.get("stream_options") or {}
        assert isinstance(options, dict)
        tells = bool(options.get("include_usage")) and behaviour != "no-usage"
        continuous = tells and bool(options.get("continuous_usage_stats"))
        tokens, sent = int(str(body["max_tokens"])), 0
        if behaviour == "chatty":
            await response.write(b": a comment\nevent: message\n\n")
        if chat:
            await response.write(line(piece({"role": "assistant", "content": ""}, chat)))
        while sent < tokens or behaviour == "endless":
            take = (
                64
                if behaviour == "endless"
                else min(4 if behaviour == "four" and sent else 1, tokens - sent)
            )
            sent += take
            if behaviour != "endless":  # a chunk goes out when its last token is there
                due = begun + TTFT_S + ITL_S * (sent - 1)
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
                if sent in (1, tokens):
                    self.late["first" if sent == 1 else "last"].append(
                        asyncio.get_running_loop().time() - due
                    )
            if sent > tokens // 2 and behaviour == "breaks-off":
                assert request.transport is not None
                request.transport.abort()
                return response
            if sent > tokens // 2 and behaviour == "stalls":
                await asyncio.sleep(3600)
            if sent > tokens // 2 and behaviour == "ends-early":
                return response
            if sent > tokens // 2 and behaviour == "reports-an-error":
                await response.write(
                    b'data: {"error": {"message": "out of memory", "type": "server_error", "code":'
                    b" 500}}\n\n"
                )
            if behaviour == "broken":
                await response.write(b'data: {"choices": [{"text": \n\n')
                continue
            chunk = piece("x" * take, chat, "length" if sent >= tokens else None)
            if continuous:
                chunk["usage"] = {
                    "prompt_tokens": prompt_tokens(body, behaviour),
                    "completion_tokens": sent,
                }
            await response.write(line(chunk))
            self.sent += take
        if tells:
            await response.write(
                line(
                    {
                        "choices": [],
                        "usage": {
                            "prompt_tokens": prompt_tokens(body, behaviour),
                            "completion_tokens": sent,
                        },
                    }
                )
            )
        await response.write(b"data: [DONE]\n\n")
        return response


def refuses(field: str, body: dict[str, object]) -> web.Response | None:
    """The refusal of an unknown field; None where the request does not have the field."""
    words, status = UNKNOWN_FIELDS[field]
    options = body.get("stream_options") or {}
    assert isinstance(options, dict)
    if not (
        {"ignore_eos", "stream_options"} & body.keys()
        if field == "some"
        else field in body | options
    ):
        return None
    return web.json_response(
        words if isinstance(words, dict) else {"error": {"message": words}}, status=status
    )


def too_long(body: dict[str, object]) -> web.Response | None:
    """vLLM's refusal of a prompt that does not fit together with its answer."""
    tokens, output = characters(body), int(str(body["max_tokens"]))
    if tokens + output <= CONTEXT_TOKENS:
        return None
    words = (
        f"This model's maximum context length is {CONTEXT_TOKENS} tokens. However, you requested"
        f" {output} output tokens and your prompt contains at least {tokens} input tokens, for a"
        f" total of at least {tokens + output} tokens. Please reduce the length of the input prompt"
        " or the number of requested output tokens."
    )
    return web.json_response(
        {
            "error": {
                "message": words,
                "type": "BadRequestError",
                "param": "input_tokens",
                "code": 400,
            }
        },
        status=400,
    )


def characters(body: dict[str, object]) -> int:
    """The length of the prompt in characters, without a chat template."""
    messages = body.get("messages")
    return (
        sum(len(one["content"]) for one in messages)
        if isinstance(messages, list)
        else len(str(body.get("prompt", "")))
    )


def prompt_tokens(body: dict[str, object], behaviour: str) -> int:
    """Four characters for a token and a chat template of ten tokens; one character for a token in
    `/context` and `/characters`."""
    each = 1 if behaviour in ("context", "characters") else 4
    return max(1, characters(body) // each) + (10 if "messages" in body else 0)


def piece(content: object, chat: bool, reason: str | None = None) -> dict[str, object]:
    said = (
        {"delta": content if isinstance(content, dict) else {"content": content}}
        if chat
        else {"text": content}
    )
    return {"choices": [{"index": 0, **said, "finish_reason": reason}]}


def line(event: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def main() -> None:
    # clients that hang up are what it is for
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL)
    runner = web.AppRunner(
        FakeServer().application(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"serving http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
