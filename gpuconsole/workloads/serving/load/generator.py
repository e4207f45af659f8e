"""The load generator: sends requests to a server, and reports every request and every tick of its
clock.

The serving worker starts it as `python -m gpuconsole.workloads.serving.load.generator --fd N`. The
process does nothing else, so that its timestamps are accurate, and it measures its own lateness.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import time
from collections import Counter, deque
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from gpuconsole import __version__
from gpuconsole.agent.clock import ThreadTimes, now
from gpuconsole.host.files import read_limited
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Step
from gpuconsole.model.serving import (
    MAX_PROMPT_BYTES,
    Request,
    parse_recorded,
    settle_s,
    shared_ratio,
)
from gpuconsole.model.text import percent
from gpuconsole.wire.channel import ChildChannel, die_with_parent
from gpuconsole.wire.events import (
    Command,
    Failed,
    Hello,
    KnobsSet,
    Note,
    Pause,
    Paused,
    ProbeDone,
    Progress,
    Requests,
    Resume,
    RunProbe,
    SetKnobs,
    Start,
    Steps,
    Stop,
)
from gpuconsole.workloads.serving.http import api_key, connect
from gpuconsole.workloads.serving.load.answer import FIRST_GUESS, RequestFailed
from gpuconsole.workloads.serving.load.client import Client, OutageTracker
from gpuconsole.workloads.serving.load.quality import perplexity
from gpuconsole.workloads.serving.load.traffic import (
    Prompts,
    Tokenizer,
    Traffic,
    Variant,
    ask_tokenizer,
)

TICK_S = 0.25
LAG_EVERY_S = 0.02
WARM_UP_S = 15.0
"""Maximum warm-up in seconds. Warm-up ends when every user has an answer (open loop: after the
requests of two seconds)."""
HOPELESS = 20
HOPELESS_S = 4.0
"""Failures, and seconds of nothing but failures, without any answer after which the server, not the
load, is the cause."""
FRESH_S = 2.0
"""A request that is open for a shorter time can still be one of those that fail at once."""
NICENESS = -10
"""The priority of the generator's thread where the system allows it. The generator uses a few
percent of a core. Next to busy processes it waits a third as long for a CPU
(benchmarks.loadgen.starved), and its TTFT is nearer to the server's."""
TIMEOUT_S = 120.0
PROBE_S = 2.5
SENT = 32
"""Number of prompts whose prefixes are compared."""
SHARED_EVERY_S = 1.0
PROMPT_KNOBS = {"shared_prefix_ratio", "prompt_tokens", "length_spread"}
"""A change of one of these knobs changes the prompts."""
LENGTH_KNOBS = {"prompt_tokens", "output_tokens", "length_spread"}
PROBE_KIND = 2
VARIANTS: tuple[Variant, ...] = ("plain", "salted", "cut")
CHAT = {"auto": None, "completions": False, "chat": True}
"""Whether a client chats, by the knob `endpoint`; None: where the server takes no completions."""
STEP = 4
"""Probe P12 multiplies the number of users by this factor."""


class Generator:
    """One server under load."""

    def __init__(self, channel: ChildChannel, start: Start, session: aiohttp.ClientSession) -> None:
        options = start.options
        self._channel, self._options = channel, options
        self._timeout_s = float(options.get("timeout_s", TIMEOUT_S))
        self._session, self._url, self._model = session, options["url"], options.get("model", "")
        recorded = (
            parse_recorded(read_limited(Path(options["prompts"]), MAX_PROMPT_BYTES).decode())
            if "prompts" in options
            else []
        )
        self._prompts = Prompts(
            start.seed, float(options.get("characters_per_token", FIRST_GUESS)), recorded
        )
        self._prompts.max_model_len = (
            int(options["max_model_len"]) if "max_model_len" in options else None
        )
        self._shortened = ""
        self._clients: list[Client] = []
        self._client = self._new_client(start.knobs)
        self._traffic = Traffic(start.knobs, self._ask, start.seed)
        self._arm, self._kind = 0, 1
        self._settled_at: float | None = None
        self._begun = now()
        self._outage = OutageTracker(self._begun)
        self._open: dict[object, float] = {}
        self._ended: list[Request] = []
        self._tokens = self._all_tokens = 0.0
        self._finished = self._index = 0
        self._probe: asyncio.Task[None] | None = None
        self._answered = 0
        self._failures_in_a_row = 0
        self._lags: list[float] = []
        self._sent: deque[str] = deque(maxlen=SENT)
        self._shared: tuple[float, float | None] = (0.0, None)
        self._shared_by_recorded = (
            shared_ratio([prompt.text for prompt in recorded]) if recorded else None
        )
        self._e2e: deque[float] = deque(maxlen=50)
        self._ticked = now()
        self._paused = False
        self._times = ThreadTimes()  # of this thread, which runs the event loop
        self.stopped = asyncio.Event()
        self.failed = ""

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (self._load(), self._tick_for_ever(), self._watch_lateness())
        ]
        await self.stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._tick()

    async def _load(self) -> None:
        """Ask for the tokenizer where nothing is known about it, then send requests forever."""
        if "characters_per_token" not in self._options and "prompts" not in self._options:
            await self._ask_tokenizer()
        self._note_shortened()
        self._begun = now()
        self._watch_anew()
        await self._traffic.run()

    async def _ask_tokenizer(self) -> None:
        this = object()
        self._opened(this)
        try:
            told = await self._tokenizer()
        except RequestFailed as problem:
            self._note(
                f"the server does not count tokens: {problem}; the first prompts assume"
                f" {FIRST_GUESS:g} characters per token"
            )
        else:
            self._prompts.characters_per_token, self._prompts.overhead = (
                told.characters_per_token,
                told.overhead,
            )
            self._client.characters_per_token = told.characters_per_token
            self._prompts.max_model_len = self._prompts.max_model_len or told.max_model_len
        finally:
            del self._open[this]

    async def _tokenizer(self) -> Tokenizer:
        """The tokenizer, by the API of the load; where that is not set, by the first that the
        server has. Raises RequestFailed."""
        chat, at = CHAT[str(self._traffic.knobs["endpoint"])], (self._session, self._url)
        ask = partial(ask_tokenizer, *at, self._model, self._prompts.sample)
        try:
            return await ask(chat=bool(chat), timeout_s=self._timeout_s)
        except RequestFailed:
            if chat is not None:
                raise
        return await ask(chat=True, timeout_s=self._timeout_s)

    def _note_shortened(self) -> None:
        """One note about prompts that do not fit in the server's context, for each share of such
        prompts."""
        if not (ratio := self._prompts.shortened_ratio(self._traffic.knobs)):
            return
        share = (
            "all prompts"
            if ratio == 1
            else f"{percent(ratio)} of the prompts"
            if ratio >= 0.01
            else "a few prompts"
        )
        text = (
            f"{share} are shortened: prompt and answer must fit in the server's max_model_len of"
            f" {self._prompts.max_model_len} tokens"
        )
        if text != self._shortened:
            self._shortened = text
            self._note(text)

    def serve(self, command: Command) -> None:
        """A command from the console."""
        if isinstance(command, Stop):
            self.stopped.set()
        elif isinstance(command, SetKnobs):
            self._tick()
            knobs = {**self._traffic.knobs, **command.changes}
            self._client = (
                self._new_client(knobs) if "endpoint" in command.changes else self._client
            )
            if not PROMPT_KNOBS.isdisjoint(command.changes):
                self._sent.clear()
                self._shared = (0.0, None)
            self._traffic.change(knobs)
            if not LENGTH_KNOBS.isdisjoint(command.changes):
                self._note_shortened()
            self._settle(command.arm)
            self._channel.send(KnobsSet(now(), command.request, self._index, knobs))
        elif isinstance(command, RunProbe):
            self._probe = asyncio.create_task(self._run_probe(command))
        elif isinstance(command, Pause):
            self._tick()
            self._paused = True
            self._traffic.pause()
            self._channel.send(Paused(now(), command.request))
        elif isinstance(command, Resume):
            self._paused = False
            self._ticked = now()
            self._watch_anew()
            self._traffic.resume()
            self._settle(command.arm)

    async def _run_probe(self, command: RunProbe) -> None:
        """Run a probe and always send an answer. Afterwards the run continues as before."""
        begun, signals, error = now(), {}, None
        try:
            if command.probe == "concurrency_step":
                signals = await self._step_concurrency()
            elif command.probe == "prefix_reuse":
                signals = await self._reuse_prefix()
            elif command.probe == "perplexity":
                signals = await perplexity(self._session, self._url.rstrip("/"), self._model)
            else:
                raise ValueError("not a probe of a model server")
        except (ValueError, RequestFailed) as problem:
            error = str(problem)
        self._channel.send(
            ProbeDone(now(), command.request, command.probe, signals, error, now() - begun)
        )

    async def _step_concurrency(self) -> dict[str, Signal]:
        """Probe P12: tokens per second with the present number of users and with STEP times as
        many. Raises ValueError."""
        knobs = self._traffic.knobs
        if float(knobs["request_rate"]):
            raise ValueError("an open loop has no number of users to multiply")
        before = await self._rate(knobs)
        after = await self._rate({**knobs, "concurrency": STEP * int(knobs["concurrency"])})
        self._traffic.change(knobs)
        self._tick()
        self._settle(self._arm)
        if before <= 0:
            raise ValueError("no token came within the probe")
        source = f"load generator, {PROBE_S:g} s each"
        return {
            "probe.concurrency_factor": Signal(float(STEP), "", source),
            "probe.tokens_per_s": Signal(before, "tokens/s", source),
            "probe.concurrency_gain": Signal(after / before, "x", source),
        }

    async def _reuse_prefix(self) -> dict[str, Signal]:
        """Probe P13: tokens per second with the present prompts, with a unique prefix for each
        prompt, and without the shared prefix.

        The second rate shows the present gain of a prefix cache, in the server or in front of it.
        The third rate is the maximum of a prefix cache. Raises ValueError.
        """
        knobs = self._traffic.knobs
        if not float(knobs["shared_prefix_ratio"]) and "prompts" not in self._options:
            raise ValueError("the prompts share nothing")
        rates: dict[Variant, float] = {}
        try:
            for variant in VARIANTS:
                self._prompts.variant = variant
                rates[variant] = await self._rate(knobs)
        finally:
            self._prompts.variant = "plain"
            self._tick()
            self._settle(self._arm)
        if min(rates.values()) <= 0:
            raise ValueError("no token came within the probe")
        source = f"load generator, {PROBE_S:g} s each"
        return {
            "probe.prefix_salt_ratio": Signal(rates["plain"] / rates["salted"], "x", source),
            "probe.prefix_cut_gain": Signal(rates["cut"] / rates["plain"], "x", source),
        }

    async def _rate(self, knobs: Knobs) -> float:
        """Tokens per second under `knobs`, after the server's batch has adapted."""
        self._traffic.change(knobs)
        self._tick()
        self._settle(self._arm)
        self._kind, wait, self._settled_at = PROBE_KIND, (self._settled_at or 0.0) - now(), None
        await asyncio.sleep(wait)
        tokens, begun = self._all_tokens, now()
        await asyncio.sleep(PROBE_S)
        return (self._all_tokens - tokens) / (now() - begun)

    def _new_client(self, knobs: Knobs) -> Client:
        client = Client(
            self._session,
            self._url,
            self._model,
            chat=CHAT[str(knobs["endpoint"])],
            timeout_s=self._timeout_s,
            note=self._note,
        )
        client.characters_per_token = self._prompts.characters_per_token
        self._clients.append(client)  # the arms before still have open requests
        return client

    def _note(self, text: str) -> None:
        self._channel.send(Note(now(), text, "warning"))

    def _settle(self, arm: int) -> None:
        """Later requests belong to `arm` and count after the server's batch has adapted to the
        change."""
        typical = sorted(self._e2e)[len(self._e2e) // 2] if self._e2e else None
        self._arm, self._kind = arm, 1
        self._settled_at = now() + settle_s(typical)

    async def _ask(self, due: float) -> bool:
        try:
            return await self._request(due)
        except Exception as problem:  # required because no caller awaits a request in the open loop
            self.failed = f"the load generator: {type(problem).__name__}: {problem}"
            self.stopped.set()
            return False

    async def _request(self, due: float) -> bool:
        prompt, output = self._prompts.next(self._traffic.knobs)
        plain = self._prompts.variant == "plain"
        if plain:
            self._sent.append(prompt)
        begun, this = (self._arm, self._kind), object()
        self._opened(this)
        try:
            request = await self._client.ask(prompt, output, due, self._count)
        finally:
            del self._open[this]
        if plain:  # probe P13 changes the lengths of prompts
            self._prompts.learn(prompt, request.prompt_tokens)
        # classified by its end time: in an overloaded open loop a request starts long before; in a
        # closed loop it waited under the previous load
        settling = (
            self._kind == 0
            and begun != (self._arm, 0)
            and not float(self._traffic.knobs["request_rate"])
        )
        self._ended.append(
            msgspec.structs.replace(request, arm=self._arm, kind=1 if settling else self._kind)
        )
        if request.error:
            self._note_failure(request.error)
            return False
        self._answered += 1
        self._finished += 1
        self._failures_in_a_row = 0
        self._e2e.append(request.e2e_s or 0.0)
        return True

    def _opened(self, request: object) -> None:
        t = now()
        if not self._open:
            self._outage.opened(t)
        self._open[request] = t

    def _count(self, tokens: float) -> None:
        self._tokens += tokens
        self._all_tokens += tokens
        if tokens > 0 and self._outage.token(now()):
            self._traffic.server_is_up()

    def _note_failure(self, error: str) -> None:
        self._failures_in_a_row += 1
        self._outage.failed(now(), error, sum(client.streams for client in self._clients))
        if self._outage.since is not None:
            self._traffic.server_is_down()
        if not self._answered and self._failures_in_a_row >= HOPELESS:
            self._give_up(error)

    def _give_up(self, error: str) -> None:
        causes = Counter(request.error for request in self._ended if request.error)
        self.failed = f"no request is answered; {causes.most_common(1)[0][0] if causes else error}"
        self.stopped.set()

    def _watch_anew(self) -> None:
        self._outage.begin(now())
        self._traffic.server_is_up()

    def _watch_server(self, t: float) -> None:
        """Decide whether the server answers now. Give up after nothing but failures from the
        start."""
        outage, oldest = self._outage, next(iter(self._open.values()), t)
        outage.data(max(client.last_data_t for client in self._clients))
        probing = self._probe is not None and not self._probe.done()
        outage.tick(
            t,
            len(self._open),
            oldest,
            sum(client.streams for client in self._clients),
            patient=probing,
        )
        if outage.since is not None:
            self._traffic.server_is_down()
        if not self._all_tokens and outage.failing_s(t) > HOPELESS_S and t - oldest < FRESH_S:
            self._give_up(outage.failure)

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S if self._paused else max(0.0, self._ticked + TICK_S - now()))
            if not self._paused:
                self._tick()

    def _tick(self) -> None:
        """Report the requests since the last tick, and the tick itself as a step."""
        t = now()
        wall, self._ticked = t - self._ticked, t
        for client in self._clients:
            client.cancel_silent()
        self._watch_server(t)
        self._warm()
        tokens = max(0, int(self._tokens))
        self._tokens -= tokens  # what is left is a part of a token, or was counted too early
        if wall > 0 and not self._paused:
            step = Step(
                self._index,
                t,
                wall,
                self._finished,
                tokens,
                (),
                arm=self._arm,
                kind=self._kind,
            )
            self._index += 1
            self._channel.send(
                Steps(t, [step], time.process_time(), 0.0, 0.0, 0.0, self._channel.dropped)
            )
        self._finished = 0
        lags, self._lags = sorted(self._lags), []
        late = lags[int(0.95 * len(lags))] if lags else 0.0
        ended, self._ended = self._ended, []
        active = len(self._traffic.under_way)
        waited = self._times.runq_s() if self._times.available else None
        down = (self._outage.why, self._outage.since or 0.0)
        shared = self._shared_prefix(t)
        self._channel.send(
            Requests(
                t,
                ended,
                active,
                late,
                time.process_time(),
                self._channel.dropped,
                shared,
                waited,
                *down,
            )
        )

    def _shared_prefix(self, t: float) -> float | None:
        """Share of the prompt text that is a prefix of another prompt: over all recorded prompts,
        or once a second over the last generated prompts."""
        if self._shared_by_recorded is not None:
            return self._shared_by_recorded
        if t - self._shared[0] >= SHARED_EVERY_S and len(self._sent) > 1:
            self._shared = t, shared_ratio(self._sent)
        return self._shared[1]

    def _warm(self) -> None:
        if self._kind in (0, PROBE_KIND):
            return
        if self._settled_at is not None:
            warm = now() >= self._settled_at
        else:
            rate = float(self._traffic.knobs["request_rate"])
            needed = int(2 * rate) if rate else int(self._traffic.knobs["concurrency"])
            warm = self._answered >= max(1, needed) or (
                self._answered > 0 and now() - self._begun > WARM_UP_S
            )
        if warm:
            self._kind = 0

    async def _watch_lateness(self) -> None:
        """Measures the lateness: the delay between the requested and the actual wake-up of this
        process. Timestamps can be late by this time."""
        while True:
            asked = now() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lags.append(max(0.0, now() - asked))


async def run_load_generator(channel: ChildChannel) -> int:
    """From Start to Stop. Returns the exit code."""
    commands = channel.commands(lambda: os._exit(1))
    start = await commands.get()
    if not isinstance(start, Start):
        return 0
    channel.send(Progress(now(), "warming", "first requests"))
    async with await connect(api_key(start.options)) as session:
        generator = Generator(channel, start, session)
        running = asyncio.create_task(generator.run())
        listening = asyncio.create_task(_listen(commands, generator))
        await running
        listening.cancel()
    if generator.failed:
        channel.send(Failed(now(), generator.failed))
    return 1 if generator.failed else 0


async def _listen(commands: asyncio.Queue[Command], generator: Generator) -> None:
    while True:
        generator.serve(await commands.get())


def raise_priority() -> None:
    with contextlib.suppress(OSError):  # not allowed
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)


def main() -> None:
    parser = argparse.ArgumentParser(description="load generator of gpuconsole; internal")
    parser.add_argument("--fd", type=int, required=True)
    args = parser.parse_args()
    die_with_parent()
    raise_priority()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ChildChannel(args.fd)
    channel.send(Hello(now(), "load generator", os.getpid(), __version__, time.time()))
    code = asyncio.run(run_load_generator(channel))
    channel.end(code)


if __name__ == "__main__":
    main()
