"""A scripted model server that fails in the ways in which real servers fail. It speaks the words of
vLLM on real sockets, in a process of its own.

    python -m tests.fakes.faulty_server --port 0 [--fault NAME] [--dialect NAME] ...
            prints `serving PORT`

Commands come on stdin, one word each: the name of a fault in FAULTS, or `healthy`. The answer on
stdout is `fault NAME T`, T on CLOCK_MONOTONIC. The first moment at which a client can notice a
fault that was there from the start is printed in the same way.

`FaultyServer` starts the process, kills it, and starts it again on the same port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODEL = "scripted-model"
FAULTS = ("silent", "stall", "half-500", "all-500", "overloaded")
"""`silent`: new requests get no byte. `stall`: open streams stop. `half-500`, `all-500`: HTTP 500
to half of the requests, or to all. `overloaded`: HTTP 429 with Retry-After to every request. A
dead, stopped or restarted process is the work of `FaultyServer`.
"""
DIALECTS = (
    "plain",
    "close",
    "http10",
    "crlf",
    "bytes",
    "utf8",
    "gzip",
    "redirect",
    "no-tokens",
    "blocked-metrics",
    "old-vllm",
)
"""Ways to write a correct answer. `close`: no keep-alive. `bytes`: one byte in each TCP segment.
`utf8`: characters of several bytes, cut between two segments. `no-tokens`: answers without a token.
`blocked-metrics`: /metrics gets no answer. `old-vllm`: prompt and answer together must fit in the
context.
"""
BLOCK = 16
BLOCKS = 512
HTTP = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
}
HTTP |= {500: "Internal Server Error", 503: "Service Unavailable"}


class Connection:
    """One connection of a client: its requests one after the other."""

    def __init__(
        self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server, self._reader, self._writer = server, reader, writer
        self._dialect = server.options.dialect
        self._version = "HTTP/1.0" if self._dialect == "http10" else "HTTP/1.1"
        self._chunked = self._version == "HTTP/1.1"

    async def serve(self) -> None:
        while True:
            try:
                method, path, body = await self._request()
            except (asyncio.IncompleteReadError, ValueError):
                return
            await self._server.answer(self, method, path, body)
            if self._dialect in ("close", "http10"):
                return

    async def _request(self) -> tuple[str, str, bytes]:
        """Method, path and body. Raises ValueError for a line that is not HTTP, for example the
        greeting of a TLS client."""
        line = await self._reader.readline()
        if not line:
            raise ValueError("closed")
        words = line.decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            await self.whole(400, b"Invalid HTTP request received.", kind="text/plain")
            raise ValueError("not HTTP")
        length = 0
        while (header := await self._reader.readline()).strip():
            name, _, value = header.decode("latin-1").partition(":")
            if name.lower() == "content-length":
                length = int(value)
        return words[0], words[1], await self._reader.readexactly(length)

    async def whole(
        self, status: int, body: bytes, kind: str = "application/json", **headers: str
    ) -> None:
        """A complete answer."""
        lines = [
            f"{self._version} {status} {HTTP[status]}",
            "server: uvicorn",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
        ]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += ["connection: close"] if self._dialect in ("close", "http10") else []
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await self._writer.drain()

    async def error(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        """An error in the form of vLLM."""
        await self.whole(
            status,
            json.dumps(
                {"error": {"message": message, "type": kind, "param": param, "code": status}}
            ).encode(),
        )

    async def begin_stream(self) -> None:
        lines = [
            f"{self._version} 200 OK",
            "server: uvicorn",
            "content-type: text/event-stream; charset=utf-8",
        ]
        lines += ["transfer-encoding: chunked"] if self._chunked else []
        lines += ["content-encoding: gzip"] if self._dialect == "gzip" else []
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await self._writer.drain()

    async def event(self, event: dict[str, Any] | str) -> None:
        """One server-sent event."""
        text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        end = "\r\n\r\n" if self._dialect == "crlf" else "\n\n"
        data = f"data: {text}{end}".encode()
        if self._dialect == "gzip":
            data = gzip.compress(data)
        framed = f"{len(data):x}\r\n".encode() + data + b"\r\n" if self._chunked else data
        if self._dialect == "bytes":
            parts = [framed[i : i + 1] for i in range(len(framed))]
        elif self._dialect == "utf8":
            cut = next((i + 1 for i, byte in enumerate(framed) if byte >= 0xC0), 1)
            parts = [framed[:cut], framed[cut:]]
        else:
            parts = [framed]
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            if len(parts) > 1:
                await asyncio.sleep(0)

    async def end_stream(self) -> None:
        if self._chunked:
            self._writer.write(b"0\r\n\r\n")
            await self._writer.drain()


class Server:
    """The server: a scheduler with a limited number of sequences, and the counters of vLLM."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.fault: str = options.fault
        self.begun = time.monotonic()
        self._seen = False
        self._slots = asyncio.Semaphore(options.max_num_seqs)
        self._resumed = asyncio.Event()
        self.running = self.waiting = self.asked = self.blocks = 0
        self.totals: dict[str, float] = dict.fromkeys(
            (
                "prompt_tokens",
                "generation_tokens",
                "request_success",
                "num_preemptions",
                "prefix_cache_queries",
                "prefix_cache_hits",
            ),
            0.0,
        )
        self.times: dict[str, list[float]] = {}

    def begin(self, fault: str) -> None:
        """From now on the server has `fault`, or is `healthy`."""
        self.fault = fault
        if fault == "healthy":
            self._resumed.set()
            self._resumed = asyncio.Event()
        print(f"fault {fault} {time.monotonic():.6f}", flush=True)

    def manifest(self, fault: str) -> None:
        """Print once that a client can notice a fault that is there from the start."""
        if not self._seen:
            self._seen = True
            print(f"seen {fault} {time.monotonic():.6f}", flush=True)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await Connection(self, reader, writer).serve()
        writer.close()

    async def answer(self, to: Connection, method: str, path: str, body: bytes) -> None:
        path = path.partition("?")[0]
        if time.monotonic() - self.begun < self.options.loading_s:
            self.manifest("loading")
            await to.whole(503, b"upstream is not ready", kind="text/plain")
        elif self.options.dialect == "redirect" and not path.startswith("/there"):
            self.manifest("redirect")
            await to.whole(307, b"", location=f"/there{path}")
        else:
            await self._route(to, path.removeprefix("/there"), body)

    async def _route(self, to: Connection, path: str, body: bytes) -> None:
        if path == "/v1/models":
            listed: dict[str, Any] = {
                "id": self.options.model,
                "object": "model",
                "owned_by": "vllm",
            }
            listed |= (
                {} if self.options.secretive else {"max_model_len": self.options.max_model_len}
            )
            await to.whole(200, json.dumps({"object": "list", "data": [listed]}).encode())
        elif path == "/metrics":
            if self.options.dialect == "blocked-metrics":
                self.manifest("no metrics")
                await asyncio.sleep(3600)
            await to.whole(
                200, self.metrics().encode(), kind="text/plain; version=0.0.4; charset=utf-8"
            )
        elif path == "/version":
            await to.whole(200, b'{"version":"0.32.0"}')
        elif path in ("/health", "/ping"):
            await to.whole(200, b"")
        elif path == "/tokenize" and not self.options.secretive:
            asked = json.loads(body)
            count = self._tokens(str(asked.get("prompt", "")))
            await to.whole(
                200,
                json.dumps(
                    {
                        "count": count,
                        "max_model_len": self.options.max_model_len,
                        "tokens": [0] * count,
                    }
                ).encode(),
            )
        elif path in ("/v1/completions", "/v1/chat/completions"):
            await self._complete(to, json.loads(body))
        else:
            await to.whole(404, b'{"detail":"Not Found"}')

    async def _complete(self, to: Connection, asked: dict[str, Any]) -> None:
        self.asked += 1
        limit = self.options.max_model_len
        text = asked["messages"][-1]["content"] if "messages" in asked else asked["prompt"]
        prompt, wanted = self._tokens(text), int(asked.get("max_tokens") or 16)
        if asked.get("model") != self.options.model:
            self.manifest("wrong model")
            await to.error(
                404, f"The model `{asked.get('model')}` does not exist.", "NotFoundError", "model"
            )
        elif self.fault == "silent":
            self.manifest("silent")
            await self._resumed.wait()
        elif self.fault == "overloaded":
            self.manifest("overloaded")
            await to.whole(
                429,
                b'{"error":{"message":"Too many requests","type":"rate_limit","code":429}}',
                retry_after="5",
            )
        elif self.fault == "all-500" or (self.fault == "half-500" and self.asked % 2):
            self.manifest(self.fault)
            await to.error(
                500,
                "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "InternalServerError",
            )
        elif prompt > limit or (self.options.dialect == "old-vllm" and prompt + wanted > limit):
            self.manifest("too long prompt")
            await to.error(
                400,
                too_long(prompt, wanted, limit, old=self.options.dialect == "old-vllm"),
                "BadRequestError",
                "input_tokens",
            )
        else:
            await self._generate(to, asked, prompt, min(wanted, limit - prompt))

    async def _generate(
        self, to: Connection, asked: dict[str, Any], prompt: int, wanted: int
    ) -> None:
        asked_at = time.monotonic()
        options = asked.get("stream_options") or {}
        if not asked.get("stream"):  # a short question of a client before the load
            await self._whole_answer(to, "messages" in asked, prompt, wanted)
            return
        await to.begin_stream()  # vLLM sends the header before the first token
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        held = (prompt + wanted + BLOCK - 1) // BLOCK
        self.running, self.blocks = self.running + 1, self.blocks + held
        try:
            admitted = time.monotonic()
            self._observe("request_queue_time_seconds", admitted - asked_at)
            sent = await self._stream(
                to, asked, prompt, 0 if self.options.dialect == "no-tokens" else wanted, asked_at
            )
            if options.get("include_usage"):
                await to.event({"id": "cmpl-1", "choices": [], "usage": usage(prompt, sent)})
            await to.event("[DONE]")
            await to.end_stream()
            self.totals["request_success"] += 1
            self._observe("e2e_request_latency_seconds", time.monotonic() - asked_at)
            self._observe("request_prefill_time_seconds", self.options.ttft_s)
            self._observe(
                "request_decode_time_seconds", time.monotonic() - admitted - self.options.ttft_s
            )
        finally:
            self.running, self.blocks = self.running - 1, self.blocks - held
            self._slots.release()

    async def _stream(
        self, to: Connection, asked: dict[str, Any], prompt: int, wanted: int, asked_at: float
    ) -> int:
        """One event for each token, by absolute times; returns the number of tokens."""
        chat, continuous = (
            "messages" in asked,
            bool((asked.get("stream_options") or {}).get("continuous_usage_stats")),
        )
        begun, last = time.monotonic(), asked_at
        if chat:
            await to.event(
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
            )
        self.totals["prompt_tokens"] += prompt
        self.totals["prefix_cache_queries"] += prompt
        for number in range(wanted):
            await asyncio.sleep(
                max(
                    0.0,
                    begun + self.options.ttft_s + number * self.options.itl_s - time.monotonic(),
                )
            )
            while self.fault == "stall":
                self.manifest("stall")
                await self._resumed.wait()
            text = " é漢" if self.options.dialect == "utf8" else " a"
            said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            event: dict[str, Any] = {
                "id": "cmpl-1",
                "object": "text_completion",
                "model": self.options.model,
            }
            event["choices"] = [
                {"index": 0, **said, "finish_reason": "length" if number + 1 == wanted else None}
            ]
            if continuous:
                event["usage"] = usage(prompt, number + 1)
            await to.event(event)
            self._observe(
                "inter_token_latency_seconds" if number else "time_to_first_token_seconds",
                time.monotonic() - last,
            )
            self._observe("iteration_tokens_total", float(self.running))
            self.totals["generation_tokens"] += 1
            last = time.monotonic()
        if not wanted:
            said = {"delta": {"content": ""}} if chat else {"text": ""}
            await to.event({"choices": [{"index": 0, **said, "finish_reason": "stop"}]})
        return wanted

    async def _whole_answer(self, to: Connection, chat: bool, prompt: int, wanted: int) -> None:
        await asyncio.sleep(self.options.ttft_s + wanted * self.options.itl_s)
        self.totals["prompt_tokens"] += prompt
        self.totals["generation_tokens"] += wanted
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": " a" * wanted}}
            if chat
            else {"text": " a" * wanted}
        )
        choices = [{"index": 0, **said, "finish_reason": "length"}]
        await to.whole(
            200,
            json.dumps(
                {"model": self.options.model, "choices": choices, "usage": usage(prompt, wanted)}
            ).encode(),
        )

    def _tokens(self, text: str) -> int:
        characters_per_token: float = self.options.characters_per_token
        return max(1, round(len(text) / characters_per_token))

    def _observe(self, name: str, value: float) -> None:
        kept = self.times.setdefault(name, [0.0, 0.0])
        kept[0] += value
        kept[1] += 1

    def metrics(self) -> str:
        """The page of vLLM, without buckets."""
        label = f'{{engine="0",model_name="{self.options.model}"}}'
        tokens = BLOCK * BLOCKS
        config = (
            f'block_size="{BLOCK}",num_gpu_blocks="{BLOCKS}",kv_cache_size_tokens="{tokens}",'
            'cache_dtype="auto",engine="0"'
        )
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.blocks / BLOCKS,
        }
        lines = [
            (
                "# TYPE vllm:cache_config_info gauge\n"
                f'vllm:cache_config_info{{{config},enable_prefix_caching="True"}} 1.0'
            )
        ]
        lines += [
            f"# TYPE vllm:{name} gauge\nvllm:{name}{label} {value}"
            for name, value in gauges.items()
        ]
        lines += [
            f"# TYPE vllm:{name} counter\nvllm:{name}_total{label} {value}"
            for name, value in self.totals.items()
        ]
        for name, (total, count) in self.times.items():
            lines.append(
                f"# TYPE vllm:{name} histogram\nvllm:{name}_sum{label} {total}\n"
                f"vllm:{name}_count{label} {count}"
            )
        return "\n".join(lines) + "\n"


def too_long(prompt: int, wanted: int, limit: int, *, old: bool) -> str:
    """The refusal of a prompt by vLLM 0.32, which shortens the answer where only prompt and answer
    together are too long; and of older versions."""
    if old:
        asked = (
            f"you requested {prompt + wanted} tokens ({prompt} in the messages, {wanted} in the"
            " completion)"
        )
        return (
            f"This model's maximum context length is {limit} tokens. However, {asked}. Please"
            " reduce the length of the messages or completion."
        )
    contains = (
        f"your prompt contains {prompt} input tokens, which exceeds this limit even without any"
        " output tokens"
    )
    return (
        f"This model's maximum context length is {limit} tokens. However, {contains}. Please reduce"
        " the length of the input prompt."
    )


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


class FaultyServer:
    """The process of one server. A context manager: the process is killed at the end.

    `words`: options of the process, see `parser`. The port stays the same after a restart.
    """

    def __init__(self, *words: str, tls: Path | None = None, port: int = 0) -> None:
        """`tls`: a folder with cert.pem and key.pem (see `make_certificate`)."""
        self._words = [*words, *(("--tls", str(tls)) if tls else ())]
        self._scheme = "https" if tls else "http"
        self.port = port
        self.fault_at: float | None = None
        """The moment of the last fault, on CLOCK_MONOTONIC; None before a fault."""
        self._process: subprocess.Popen[str] | None = None
        self._told = threading.Condition()
        self._later: threading.Timer | None = None

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultyServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later.join()
        self.kill()

    def start(self) -> None:
        """Start the process; returns when the port is open. The counters are at 0."""
        command = [
            sys.executable,
            "-m",
            "tests.fakes.faulty_server",
            "--port",
            str(self.port),
            *self._words,
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split()[1])
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()

    def begin(self, fault: str) -> float:
        """Begin a fault of FAULTS, or `dies`, `restarts` (3 s without a process) or `stops`
        (SIGSTOP: the kernel accepts, nobody answers)."""
        if fault in ("dies", "restarts"):
            self.kill()
            self.fault_at = time.monotonic()
            if fault == "restarts":
                self.start_later(3.0)
            return self.fault_at
        assert self._process is not None
        assert self._process.stdin is not None
        if fault == "stops":
            self._process.send_signal(signal.SIGSTOP)
            self.fault_at = time.monotonic()
            return self.fault_at
        before = self.fault_at
        self._process.stdin.write(f"{fault}\n")
        self._process.stdin.flush()
        with self._told:
            assert self._told.wait_for(lambda: self.fault_at not in (None, before), 5.0), (
                f"the server did not confirm {fault}"
            )
        assert self.fault_at is not None
        return self.fault_at

    def start_later(self, seconds: float) -> None:
        """Start the process after `seconds`; the port must be known."""
        self._later = threading.Timer(seconds, self.start)
        self._later.start()

    def kill(self) -> None:
        """SIGKILL. The kernel closes all connections: clients see EOF or RST."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, *_, t = line.split()
            with self._told:
                if word == "fault" or self.fault_at is None:
                    self.fault_at = float(t)
                self._told.notify_all()


def make_certificate(folder: Path) -> Path:
    """A self-signed certificate for localhost in `folder`, as cert.pem and key.pem. Needs the
    program `openssl`."""
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(
        ["openssl", *words, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", *files],
        check=True,
        capture_output=True,
    )
    return folder


def parser() -> argparse.ArgumentParser:
    words = argparse.ArgumentParser(description="a model server that fails as told; for tests")
    words.add_argument("--port", type=int, default=0)
    words.add_argument("--model", default=MODEL)
    words.add_argument("--max-model-len", type=int, default=2048)
    words.add_argument(
        "--secretive", action="store_true", help="no max_model_len in /v1/models, and no /tokenize"
    )
    words.add_argument("--max-num-seqs", type=int, default=32)
    words.add_argument("--characters-per-token", type=float, default=4.0)
    words.add_argument("--ttft-s", type=float, default=0.05)
    words.add_argument("--itl-s", type=float, default=0.01)
    words.add_argument(
        "--loading-s", type=float, default=0.0, help="HTTP 503 for this time, as from a proxy"
    )
    words.add_argument("--fault", default="healthy", choices=("healthy", *FAULTS))
    words.add_argument("--dialect", default="plain", choices=DIALECTS)
    words.add_argument("--tls", type=Path, help="folder with cert.pem and key.pem")
    return words


async def main() -> None:
    options = parser().parse_args()
    context = None
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.tls / "cert.pem", options.tls / "key.pem")
    server = Server(options)
    listening = await asyncio.start_server(
        server.accept, "127.0.0.1", options.port, ssl=context, backlog=512
    )
    print(f"serving {listening.sockets[0].getsockname()[1]}", flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        server.begin(line.decode().strip())
    os._exit(0)  # the starter has ended


if __name__ == "__main__":
    asyncio.run(main())
