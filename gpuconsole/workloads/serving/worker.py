"""The serving worker: runs a model server and a load generator as child processes, and reads the
server's /metrics.

The console starts it as `python -m gpuconsole.workloads.serving.worker --fd N --scratch DIR`. The
worker leads a process group, so that both children end when the console or the worker ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from prometheus_client.metrics_core import Metric

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.model.figures import LATENCIES
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs, show
from gpuconsole.model.knobs.knob import NO_EFFECT
from gpuconsole.model.knobs.serving import BLOCK_TOKENS, LIVE_KNOBS
from gpuconsole.model.serving import WATCHED, ServerFacts
from gpuconsole.wire.channel import ChildChannel, end_others_in_group, kill_own_group
from gpuconsole.wire.events import (
    Command,
    Failed,
    Hello,
    KnobsSet,
    Note,
    Profile,
    Profiled,
    Progress,
    Requests,
    ServerKnown,
    ServerState,
    SetKnobs,
    Start,
    Started,
    Stop,
    decode_event,
    encode,
)
from gpuconsole.workloads import process
from gpuconsole.workloads.serving.facts import ASK_S, ask_facts, complete
from gpuconsole.workloads.serving.http import api_key, connect, explain, make_key
from gpuconsole.workloads.serving.scraping import Scraper
from gpuconsole.workloads.serving.servers import (
    EmbeddedServer,
    ModelServer,
    RemoteServer,
    ServerFailed,
    VllmServer,
)
from gpuconsole.workloads.serving.watching import ServerWatch, is_here

# --- knobs without effect on this server ----------------------------------------------------------

VLLMS_OWN = {
    "gpu_memory_utilization": (
        "the embedded server allocates the memory that max_num_seqs and max_model_len need"
    ),
    "enforce_eager": "the embedded server has no CUDA graphs: it always runs eagerly",
    "tensor_parallel_size": "the embedded server runs on one device",
    "num_speculative_tokens": "the embedded server has no speculative decoding",
    "api_server_count": "the embedded server answers from the process of the engine",
    "kv_cache_dtype": "the embedded server stores keys and values in dtype",
}

EMBEDDED_OWN = ("d_model", "n_layer", "weights")
"""The model of the embedded server. Another server serves a model of its own."""


def without_effect(knobs: Knobs, *, embedded: bool, remote: bool, recorded: bool) -> dict[str, str]:
    """Knobs that are set and have no effect here, with the reason."""
    reasons: dict[str, str] = {}
    if embedded:
        reasons |= {
            name: why for name, why in VLLMS_OWN.items() if knobs[name] != CATALOGUE[name].default
        }
        if knobs["quantization"] not in ("none", "int8"):
            reasons["quantization"] = "the embedded server supports int8 only"
    elif remote:
        why = "gpuconsole did not start this server"
        reasons |= {
            name: why
            for name, knob in CATALOGUE.items()
            if knob.serving and knob.apply == "cold" and name in knobs
        }
    if not embedded:
        reasons |= {
            name: "it belongs to the embedded server; this server serves a model of its own"
            for name in EMBEDDED_OWN
            if name in knobs
        }
    if recorded:
        why = "the prompts come from a file (--prompts)"
        reasons |= {name: why for name in ("prompt_tokens", "shared_prefix_ratio") if name in knobs}
    if not float(knobs["request_rate"]):
        why = "a closed loop has no arrival intervals: set request_rate"
        reasons |= {
            name: why
            for name in ("burstiness", "max_concurrency")
            if knobs[name] != CATALOGUE[name].default
        }
    return reasons


# --- the worker -----------------------------------------------------------------------------------

UNLIKE = 1.5
"""A KV cache of so many times the wanted size, or of less than that part of it, is reported. Whole
blocks explain a smaller difference."""
LINE_LIMIT = 64 * 1024 * 1024
STOP_S = 2.0
EMBEDDED_CHARACTERS_PER_TOKEN = "1"


class ServingWorker:
    """One server under one load."""

    def __init__(
        self, channel: ChildChannel, start: Start, session: aiohttp.ClientSession, scratch: Path
    ) -> None:
        self._channel, self._start, self._session, self._scratch = channel, start, session, scratch
        self._server: ModelServer | None = None
        self._generator: asyncio.subprocess.Process | None = None
        self._to_generator: asyncio.StreamWriter | None = None
        self._early: list[Command] = []
        self._over = asyncio.Event()
        self._knobs = start.knobs
        self._scrape_refused = ""
        self._scraper: Scraper
        self._server_facts = ServerFacts()
        self._last: ServerState | None = None
        self._page_seen = False
        self._was_down = False
        self._asking: asyncio.Task[None] | None = None
        self._frontend: tuple[float, float | None] = (0.0, None)
        self._noted: set[str] = set()
        self.failed = ""

    async def run(self) -> None:
        """Run until a Stop command, or until the server or the generator ends (see `failed`)."""
        start = self._start
        self._server = choose_server(
            start,
            lambda detail: self._channel.send(Progress(now(), "starting", detail)),
            self._scratch,
        )
        try:
            starting, over = (
                asyncio.create_task(self._server.start(self._session)),
                asyncio.create_task(self._over.wait()),
            )
            await asyncio.wait([starting, over], return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            if not starting.done():
                starting.cancel()
                return
            await starting
            for text in self._server.notes:
                self._channel.send(Note(now(), text))
            await self._under_load(self._server)
        except ServerFailed as problem:
            self.failed = str(problem)
        finally:
            await self._server.stop()

    async def serve(self, command: Command) -> None:
        """Handle a command from the console. The generator answers commands for the load, after the
        server has its new limits."""
        if isinstance(command, SetKnobs) and not await self._limit(command):
            return
        if isinstance(command, Stop):
            self._over.set()
        elif isinstance(command, Profile):
            self._channel.send(
                Profiled(
                    now(),
                    command.request,
                    error="the model server is a separate process: profile that process",
                )
            )
        elif self._to_generator is not None:
            self._to_generator.write(encode(command) + b"\n")
        else:
            self._early.append(command)

    async def _limit(self, command: SetKnobs) -> bool:
        """Apply new limits to the server if the command contains them. Sends an error and returns
        False if the server cannot change them."""
        knobs, server = {**self._knobs, **command.changes}, self._server
        if server is not None and any(name in command.changes for name in LIVE_KNOBS):
            try:
                await server.set_limits(knobs)
            except (ServerFailed, aiohttp.ClientError, TimeoutError) as problem:
                self._channel.send(
                    KnobsSet(now(), command.request, 0, self._knobs, error=explain(problem))
                )
                return False
        self._knobs = knobs
        return True

    async def _under_load(self, server: ModelServer) -> None:
        # do not send the server's key to another address
        async with await connect("") as elsewhere:
            page = self._start.options.get("metrics_url")
            self._scraper = Scraper(
                elsewhere if page else self._session, page or f"{server.url}/metrics"
            )
            await self._ask_facts(server)
            self._check_cache()
            self._knobs = {
                **self._knobs,
                **{name: limit for name, limit in server.limits().items() if not self._knobs[name]},
            }
            self._announce(server, self._knobs)
            await self._until_the_end(server)

    async def _until_the_end(self, server: ModelServer) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (self._generate(server), self._scrape_for_ever(server), self._watch(server))
        ]
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
        await self._end_generator()
        for task in (over, *tasks):
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for problem in ended:
            if isinstance(problem, Exception):
                raise problem

    def _announce(self, server: ModelServer, knobs: Knobs) -> None:
        """Facts about the server, and the knobs without effect. Sends one note about knobs that
        were set without effect."""
        recorded = "prompts" in self._start.options
        idle = without_effect(
            knobs,
            embedded=isinstance(server, EmbeddedServer),
            remote=isinstance(server, RemoteServer),
            recorded=recorded,
        )
        for name, why in idle.items():
            # a scenario sets the knobs of the embedded model
            chosen = knobs[name] != CATALOGUE[name].default and name not in EMBEDDED_OWN
            if chosen and name not in self._noted and not isinstance(server, RemoteServer):
                self._noted.add(name)
                self._channel.send(Note(now(), f"{name} {show(knobs[name])} has no effect: {why}"))
        notes = {figure.field: f"{figure.label}: {figure.formula}" for figure in LATENCIES}
        notes |= {NO_EFFECT + name: why for name, why in idle.items()}
        self._channel.send(Started(now(), knobs, server.facts, notes))

    async def _watch(self, server: ModelServer) -> None:
        """Wait until the server process ends or its engine fails, and store the cause in
        `failed`."""
        ends: list[asyncio.Task[Any]] = [asyncio.create_task(server.broken.wait())]
        if server.process is not None:
            ends.append(asyncio.create_task(server.process.wait()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        await asyncio.sleep(0.2)  # the last lines of the log
        self.failed = server.death()

    # --- the load generator -----------------------------------------------------------------------

    async def _generate(self, server: ModelServer) -> None:
        """Start the load generator and forward its events. Returns when the generator has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._generator = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-P",
                    "-m",
                    "gpuconsole.workloads.serving.load.generator",
                    "--fd",
                    str(theirs.fileno()),
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_LIMIT)
        options = {**self._start.options, "url": server.url, "model": server.model}
        if isinstance(server, EmbeddedServer):
            options["characters_per_token"] = EMBEDDED_CHARACTERS_PER_TOKEN
        if (longest := self._server_facts.number("max_model_len")) is not None:
            options["max_model_len"] = f"{longest:.0f}"
        start = self._start
        first = Start(start.workload, self._knobs, start.device, seed=start.seed, options=options)
        # a knob may have changed since the server became ready
        for command in (first, *self._early):
            writer.write(encode(command) + b"\n")
        self._to_generator = writer
        while line := await reader.readline():
            event = decode_event(line)
            if isinstance(event, Failed):
                self.failed = event.cause
            elif not isinstance(event, Hello):
                self._channel.send(event)
            if isinstance(event, Requests):
                self._on_requests(event, server)
            if isinstance(event, KnobsSet):
                self._announce(server, event.knobs)
        code = await self._generator.wait()
        if not self._over.is_set() and not self.failed:
            self.failed = f"the load generator ended with exit code {code}"

    async def _end_generator(self) -> None:
        if self._generator is None or self._to_generator is None:
            return
        with contextlib.suppress(ConnectionError):
            self._to_generator.write(encode(Stop()) + b"\n")
        try:
            await asyncio.wait_for(self._generator.wait(), STOP_S)
        except TimeoutError:
            self._generator.kill()
            await self._generator.wait()

    # --- the server's reports about itself --------------------------------------------------------

    async def _scrape_for_ever(self, server: ModelServer) -> None:
        while True:
            try:
                state, families = await self._scraper.read()
                if (busy := self._frontend_busy(server, state.t)) is not None:
                    state.gauges["frontend_cpu_ratio"] = busy
                self._channel.send(state)
                before, self._last = self._last, state
                # the server may have restarted with other arguments
                restarted = before is not None and state.restarted_since(before)
                if restarted or not self._page_seen or self._scrape_refused:
                    await self._ask_facts(server, families)
                self._scrape_refused = ""
            except ValueError as problem:
                self._tell_once(str(problem))
            await asyncio.sleep(self._scraper.interval_s)

    async def _ask_facts(self, server: ModelServer, families: list[Metric] | None = None) -> None:
        """Send what the server reports about itself, if that is new. `families`: its /metrics page,
        if the page was just read."""
        if families is None:
            families = []
            with contextlib.suppress(ValueError, TimeoutError):
                async with asyncio.timeout(ASK_S):
                    _, families = await self._scraper.read()
        self._page_seen = self._page_seen or bool(families)
        facts = complete(
            await ask_facts(self._session, server.url, families), *server.start_facts()
        )
        here = await asyncio.to_thread(is_here, server.url)
        facts = msgspec.structs.replace(facts, here=here)
        if facts != self._server_facts:
            self._server_facts = facts
            self._channel.send(ServerKnown(now(), facts))

    def _check_cache(self) -> None:
        """Send a note where the KV cache has another size than the knob asks for: vLLM chooses the
        size of a block by the model."""
        wanted, has = (
            int(self._knobs["num_gpu_blocks_override"]) * BLOCK_TOKENS,
            self._server_facts.number("kv_cache_tokens"),
        )
        if (
            wanted
            and has
            and not isinstance(self._server, RemoteServer)
            and not 1 / UNLIKE < has / wanted < UNLIKE
        ):
            block = self._server_facts.number("block_size") or 0
            text = (
                f"the KV cache has {has:.0f} tokens, not {wanted}: a block has {block:.0f} tokens;"
                " --vllm-args='--block-size N' sets N"
            )
            self._channel.send(Note(now(), text, "warning"))

    def _on_requests(self, event: Requests, server: ModelServer) -> None:
        """Ask for the facts again when the server answers after an outage."""
        if self._was_down and not event.down:
            self._asking = asyncio.create_task(self._ask_facts(server))
        self._was_down = bool(event.down)

    def _frontend_busy(self, server: ModelServer, t: float) -> float | None:
        """CPU cores that the answering process has used since the last reading."""
        used, (before_t, before) = server.frontend_cpu_s(), self._frontend
        self._frontend = (t, used)
        return (
            (used - before) / (t - before_t)
            if used is not None and before is not None and t > before_t
            else None
        )

    def _tell_once(self, text: str) -> None:
        if text != self._scrape_refused:
            self._scrape_refused = text
            self._channel.send(Note(now(), text, "warning"))


def choose_server(start: Start, progress: Callable[[str], None], scratch: Path) -> ModelServer:
    """The server for `start`: the server at an address, vLLM, or the embedded server. Servers that
    start here get an API key of their own."""
    options, knobs = start.options, start.knobs
    if options.get("server_url"):
        return RemoteServer(
            progress,
            options["server_url"],
            options.get("model", ""),
            float(options.get("wait_s", 0.0)),
        )
    if knobs["server"] == "vllm":
        return VllmServer(
            progress, knobs, options, start.gpus or (start.device,), start.uuid, scratch
        )
    return EmbeddedServer(
        progress,
        {name: value for name, value in knobs.items() if CATALOGUE[name].apply == "cold"},
        start.device,
        start.seed,
    )


async def run_serving_worker(channel: ChildChannel, scratch: Path) -> int:
    """Run from Start to Stop. Returns the exit code; a failure has already been reported to the
    console."""
    commands = channel.commands(kill_own_group)
    channel.send(Progress(now(), "ready", ""))
    start = await commands.get()
    if not isinstance(start, Start):
        return 0
    if start.uuid:  # vLLM sets the variable itself
        os.environ["CUDA_VISIBLE_DEVICES"] = start.uuid
    make_key(start.options)
    async with await connect(api_key(start.options)) as session, await connect("") as elsewhere:
        watches = start.workload == WATCHED
        worker = (
            ServerWatch(channel, start, session, elsewhere)
            if watches
            else ServingWorker(channel, start, session, scratch)
        )
        listening = asyncio.create_task(_listen(commands, worker))
        await worker.run()
        listening.cancel()
    if worker.failed:
        channel.send(Failed(now(), worker.failed))
    return 1 if worker.failed else 0


async def _listen(commands: asyncio.Queue[Command], worker: ServingWorker | ServerWatch) -> None:
    while True:
        await worker.serve(await commands.get())


def main() -> None:
    parser = argparse.ArgumentParser(description="serving worker of gpuconsole; internal")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    # no PR_SET_PDEATHSIG here: a killed worker could not end the server's children; the closed
    # socket is noticed just as soon
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ChildChannel(args.fd)
    channel.send(Hello(now(), "worker", os.getpid(), __version__, time.time()))
    process.set_variables(str(args.scratch))
    code = asyncio.run(run_serving_worker(channel, args.scratch))
    end_others_in_group()  # a helper of vLLM removes shared memory after the end of the server
    channel.end(code)


if __name__ == "__main__":
    main()
