"""The load generator as a process, against servers that fail, stall and come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web

from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.wire.events import (
    AnyEvent,
    Command,
    Failed,
    Hello,
    Note,
    Pause,
    Requests,
    Resume,
    Start,
    Stop,
    decode_event,
    encode,
)
from gpuconsole.workloads.serving.load.client import SILENCE_S
from gpuconsole.workloads.serving.load.generator import NICENESS
from tests.fakes.model_server import CONTEXT_TOKENS, FakeServer, characters
from tests.workloads.serving.test_load import LOAD


class Server:
    """The fake server in this process; it can die, and come back at its port."""

    def __init__(self) -> None:
        self.fake, self.port = FakeServer(), 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        self._runner = web.AppRunner(
            self.fake.application(), access_log=None, handler_cancellation=True, shutdown_timeout=0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]

    async def die(self) -> None:
        """Close all connections, also those in the middle of an answer."""
        assert self._runner is not None and self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()


class Load:
    """A running generator and its events."""

    def __init__(
        self, server: Server, process: asyncio.subprocess.Process, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.process, self._writer = server, process, writer
        self.events: list[AnyEvent] = []

    def send(self, command: Command) -> None:
        self._writer.write(encode(command) + b"\n")

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def last(self) -> Requests:
        found = self.of(Requests)
        return found[-1] if found else Requests(0.0, [])

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.of(Note)]

    @property
    def failures(self) -> list[str]:
        return [
            request.error
            for event in self.of(Requests)
            for request in event.requests
            if request.error
        ]

    async def until(self, true: Callable[[Load], bool]) -> Requests:
        """Wait for a condition; returns the last report, whose time is the generator's."""
        async with asyncio.timeout(30):
            while not true(self):
                await asyncio.sleep(0.01)
        return self.last

    async def read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self.events.append(decode_event(line))


@contextlib.asynccontextmanager
async def load(
    behaviour: str,
    options: dict[str, str] | None = None,
    server: Server | None = None,
    **knobs: Any,
) -> AsyncIterator[Load]:
    """A generator with four users under way against the fake server."""
    server = server or Server()
    if not server.port:
        await server.start()
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "gpuconsole.workloads.serving.load.generator",
                "--fd",
                str(theirs.fileno()),
            ),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    reader, writer = await asyncio.open_connection(sock=ours, limit=2**26)
    running = Load(server, process, writer)
    reading = asyncio.create_task(running.read(reader))
    chosen: Knobs = {**LOAD, "concurrency": 4, "output_tokens": 8, **knobs}
    known = {
        "url": f"http://127.0.0.1:{server.port}/{behaviour}",
        "model": "m",
        "characters_per_token": "4",
    }
    told = {**known, **(options or {})}
    running.send(
        Start(
            "inference.test",
            chosen,
            "cpu",
            options={name: value for name, value in told.items() if value},
        )
    )
    try:
        await running.until(lambda it: bool(it.of(Hello)))
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        reading.cancel()
        writer.close()
        with contextlib.suppress(Exception):
            await server.die()


def run(main: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(main())


def answers(running: Load) -> bool:
    return not running.last.down and any(
        not request.error for event in running.of(Requests) for request in event.requests
    )


ASKED = {"characters_per_token": ""}


def test_a_server_that_dies_is_reported_at_once_and_its_return_within_a_second() -> None:
    async def main() -> None:
        async with load("switched") as running:
            await running.until(answers)
            died = now()
            await running.server.die()
            assert (await running.until(lambda it: bool(it.last.down))).t - died < 1.0
            refused = await running.until(lambda it: it.last.down == "connection refused")
            assert refused.t - died < 1.5 and abs(refused.down_since - died) < 0.5
            await asyncio.sleep(1.0)
            assert (
                running.last.down == "connection refused"
                and abs(running.last.down_since - died) < 0.5
            )
            assert len(running.failures) < 4 + 25, "four users together try some times per second"
            failed = len(running.failures)
            await running.server.start()
            back = now()
            assert (await running.until(lambda it: not it.last.down)).t - back < 1.0 + 0.5, (
                "a second, the first token, and a tick"
            )
            await running.until(lambda it: it.last.active == 4)
            await asyncio.sleep(0.3)
            assert len(running.failures) <= failed + 4, "the pool has no stale connections"

    run(main)


def test_many_users_together_do_not_hammer_a_dead_server() -> None:
    async def main() -> None:
        async with load("switched", concurrency=64) as running:
            await running.until(answers)
            await running.server.die()
            await running.until(lambda it: it.last.down == "connection refused")
            cpu, failed = running.last.cpu_s, len(running.failures)
            await asyncio.sleep(1.5)
            assert len(running.failures) - failed < 64 + 20
            assert running.last.cpu_s - cpu < 0.3
            await running.server.start()
            await running.until(lambda it: it.last.active == 64)

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "stalls"])
def test_silence_is_an_outage_within_five_seconds_until_a_pause_or_a_token(fault: str) -> None:
    async def main() -> None:
        async with load("switched") as running:
            await running.until(answers)
            running.server.fake.mode = fault
            await running.until(lambda it: bool(it.last.down))
            seconds = running.last.t - running.last.down_since
            assert SILENCE_S - 0.1 < seconds < 5.0, "since the last data"
            assert running.last.down == "4 requests wait without an answer"
            running.send(Pause(1))
            running.send(Resume())
            await running.until(lambda it: not it.last.down)
            running.send(Pause(2))
            running.server.fake.mode = "steady"
            running.send(Resume())
            await running.until(answers)

    run(main)


@pytest.mark.slow
def test_requests_that_all_get_an_http_error_are_an_outage() -> None:
    async def main() -> None:
        async with load("switched") as running:
            await running.until(answers)
            running.server.fake.mode = "error"
            failing = now()
            assert (await running.until(lambda it: bool(it.last.down))).t - failing < 5.0
            assert running.last.down.startswith("every request fails: HTTP 500: Internal")
            failed = len(running.failures)
            await asyncio.sleep(1.0)
            assert len(running.failures) < failed + 12
            running.server.fake.mode = "steady"
            await running.until(answers)

    run(main)


def test_errors_of_half_of_the_requests_are_no_outage() -> None:
    async def main() -> None:
        async with load("every-other") as running:
            await running.until(lambda it: len(it.failures) > 12)
            assert not any(event.down for event in running.of(Requests))

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["refused", "error"])
def test_nothing_but_failures_ends_the_run_within_five_seconds(address: str) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
        options = {"url": url} if address == "refused" else {}
        async with load("error", options | ASKED, concurrency=1) as running:
            begun = now()
            await running.until(lambda it: bool(it.of(Failed)))
            assert now() - begun < 5.5
            (failed,) = running.of(Failed)
            expected = (
                "cannot connect: connection refused"
                if address == "refused"
                else "HTTP 500: Internal"
            )
            assert f"no request is answered; {expected}" in failed.cause

    run(main)


@pytest.mark.parametrize("options", [{}, ASKED])
def test_stop_ends_a_generator_whose_requests_all_hang(options: dict[str, str]) -> None:
    async def main() -> None:
        async with load("hang", options) as running:
            await running.until(lambda it: bool(it.server.fake.bodies))
            running.send(Stop())
            begun = now()
            await running.process.wait()
            assert now() - begun < 1.0

    run(main)


def prompt_lengths(running: Load) -> list[int]:
    return [characters(body) for body in running.server.fake.bodies if body.get("stream")]


@pytest.mark.parametrize("behaviour", ["context", "characters", "steady"])
@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_the_first_prompts_have_the_requested_length(behaviour: str, endpoint: str) -> None:
    async def main() -> None:
        async with load(
            behaviour,
            ASKED,
            prompt_tokens=200,
            output_tokens=4,
            length_spread=0.0,
            endpoint=endpoint,
        ) as running:
            await running.until(lambda it: len(prompt_lengths(it)) >= 4)
            each = 4 if behaviour == "steady" else 1
            template = 10 if endpoint == "chat" else 0
            assert statistics.median(prompt_lengths(running)[:4]) == pytest.approx(
                (200 - template) * each, rel=0.03
            )
            assert not running.notes and not running.failures

    run(main)


def test_a_server_that_counts_nothing_gets_a_note_with_its_reason() -> None:
    async def main() -> None:
        async with load("busy", ASKED) as running:
            await running.until(lambda it: bool(it.notes))
            assert running.notes[0].startswith(
                "the server does not count tokens: HTTP 429: too many requests"
            )

    run(main)


def test_prompts_are_shortened_to_the_context_of_the_server() -> None:
    async def main() -> None:
        wide = {"prompt_tokens": 400, "output_tokens": 64, "length_spread": 0.3}
        async with load("context", ASKED, concurrency=8, **wide) as running:
            await running.until(lambda it: len(prompt_lengths(it)) >= 12)
            assert not running.failures
            assert len(running.notes) == 1 and "of the prompts are shortened" in running.notes[0]
            assert f"max_model_len of {CONTEXT_TOKENS} tokens" in running.notes[0]
        async with load(
            "characters", {"characters_per_token": "1", "max_model_len": "300"}, **wide
        ) as running:
            await running.until(lambda it: len(prompt_lengths(it)) >= 4)
            assert max(prompt_lengths(running)) <= 300 - 64 + 20
            assert any(
                "all prompts are shortened" in note or "of the prompts" in note
                for note in running.notes
            )

    run(main)


def test_the_wait_for_a_cpu_is_reported_and_the_priority_raised_where_allowed() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", f"import os; os.setpriority(os.PRIO_PROCESS, 0, {NICENESS})"],
        capture_output=True,
    )

    async def main() -> None:
        async with load("steady") as running:
            await running.until(lambda it: len(it.of(Requests)) > 3)
            waited = [event.runq_s for event in running.of(Requests)]
            assert None not in waited and waited == sorted(waited) and waited[-1] > 0
            usual = os.getpriority(os.PRIO_PROCESS, 0)
            assert os.getpriority(os.PRIO_PROCESS, running.process.pid) == (
                usual if asked.returncode else NICENESS
            )

    run(main)
