"""Watches a model server that runs already by its metrics page: sends no request to a model but
those of a probe, and changes nothing but the limits of a trial; the user asks for both.

It reads the metrics page, or what takes its place (SGLang without --enable-metrics, Ollama), and
the pages on which a server names its model and its settings. The traffic is that of other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import aiohttp
import msgspec
import psutil
from prometheus_client.metrics_core import Metric
from yarl import URL

from gpuconsole.agent.clock import now
from gpuconsole.model.engines import engine_of, engines
from gpuconsole.model.finding import Signal
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.knob import live_limit_fact
from gpuconsole.model.run import COUNTS, PROBE, SETTLING, Step
from gpuconsole.model.serving import CLIENT_WAIT, OURS, Fact, ServerFacts, settle_s
from gpuconsole.model.text import visible
from gpuconsole.wire.channel import ChildChannel
from gpuconsole.wire.events import (
    Command,
    Count,
    KnobsSet,
    Note,
    ProbeDone,
    Profile,
    Profiled,
    Progress,
    Requests,
    RunProbe,
    ServerKnown,
    ServerState,
    SetKnobs,
    Start,
    Started,
    Steps,
    Stop,
    total_of,
)
from gpuconsole.workloads.serving.client_wait import ClientWait
from gpuconsole.workloads.serving.facts import SCHEDULER, ask_facts, complete
from gpuconsole.workloads.serving.http import (
    MAX_CHARACTERS,
    OF_ANOTHER_KIND,
    explain,
    read_body,
    read_json,
    same_origin,
)
from gpuconsole.workloads.serving.live_limits import RENEW_S, LiveLimits, find_limits
from gpuconsole.workloads.serving.scraping import (
    IS_EMPTY,
    IS_HTML,
    IS_JSON,
    KEY_CHARACTERS,
    Scraper,
    counters_on,
    engines_on,
    models_counted,
    models_on,
    read_families,
    server_state,
    what_it_is,
)
from gpuconsole.workloads.serving.servers import (
    ServerFailed,
    check_usable,
    shown_names,
    until_answered,
)

PAGE_S = 10.0
"""Time limit of a reading. A server under load may answer late; a load of our own gives it 2 s."""
SLOW_S = 2.0
"""A page that takes longer is named, because it is read seldom."""
JSON_EVERY_S = 1.0
PAGES = tuple(dict.fromkeys(page for engine in engines() for page in engine.pages))
LOADS, LOADED = "/v1/loads", "/api/ps"
"""JSON that takes the place of a metrics page: of SGLang 0.5.10 and later, and of Ollama."""
NO_CHANGE = (
    "gpuconsole only watches this server: it changes nothing but the limits of a server that was"
    " started for it"
)
CLIENT_SIGNAL = "probe.before_engine_s"


Loads = tuple[dict[str, float], dict[str, dict[str, float]]]
"""The gauges, and those of each engine where there are several."""


class ServerReader(Protocol):
    """Reads the state of a server again and again. `interval_s`: seconds until the next reading."""

    @property
    def interval_s(self) -> float: ...

    async def read(self) -> tuple[ServerState, list[Metric]]:
        """One reading. Raises ValueError with one line."""
        ...


class JsonReader:
    """A page of JSON that takes the place of a metrics page."""

    interval_s = JSON_EVERY_S

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        engine: str,
        parse: Callable[[Any], Loads | None],
    ) -> None:
        """`parse` returns None where the answer is of another kind."""
        self._session, self._url, self._parse = session, url, parse
        self.engine = engine

    async def read(self) -> tuple[ServerState, list[Metric]]:
        try:
            async with self._session.get(
                self._url, timeout=aiohttp.ClientTimeout(total=PAGE_S), allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise ValueError(f"HTTP {answer.status}")
                loads = self._parse(await read_json(answer))
        except (aiohttp.ClientError, TimeoutError, OSError, *OF_ANOTHER_KIND) as problem:
            raise ValueError(f"{self._url}: {explain(problem)}") from None
        if loads is None:
            raise ValueError(f"{self._url}: the answer is of another kind")
        gauges, engines = loads
        return ServerState(now(), gauges, {}, engines=engines), []


LOAD_NAMES = {
    "requests_running": "num_running_reqs",
    "requests_waiting": "num_waiting_reqs",
    "sequence_limit": "max_running_requests",
    "kv_cache_usage_ratio": "token_usage",
}


def of_loads(answer: Any) -> Loads | None:
    """The gauges in SGLang's /v1/loads: an entry for each data-parallel rank."""
    ranks = answer.get("loads") if isinstance(answer, dict) else answer
    ranks = [rank for rank in ranks if isinstance(rank, dict)] if isinstance(ranks, list) else []
    if not any("num_running_reqs" in rank for rank in ranks):
        return None

    each = {
        visible(f"dp_rank {rank.get('dp_rank', place)}")[:KEY_CHARACTERS]: {
            signal: float(rank[name])
            for signal, name in LOAD_NAMES.items()
            if isinstance(rank.get(name), int | float)
        }
        for place, rank in enumerate(ranks)
    }
    gauges: dict[str, float] = {}
    for signal in LOAD_NAMES:
        if values := [rank[signal] for rank in each.values() if signal in rank]:
            gauges[signal] = (
                sum(values) if signal in ("requests_running", "requests_waiting") else max(values)
            )
    if len(each) < 2:
        return gauges, {}
    return {**gauges, "engines": float(len(each))}, each


def of_loaded(answer: Any) -> Loads | None:
    """The gauges in Ollama's /api/ps: the loaded models, and the share of their bytes that is on a
    GPU."""
    models = answer.get("models") if isinstance(answer, dict) else None
    if not isinstance(models, list):
        return None
    sizes = [
        (float(model.get("size_vram") or 0), float(model.get("size") or 0))
        for model in models
        if isinstance(model, dict)
    ]
    whole = sum(size for _, size in sizes)
    on_gpu = {"on_gpu_ratio": sum(size for size, _ in sizes) / whole} if whole else {}
    return {"models_loaded": float(len(sizes)), **on_gpu}, {}


FORWARDERS = ("ssh", "kubectl")
"""Programs that listen here for a server that is elsewhere."""


def is_here(url: str) -> bool | None:
    """Whether the address of `url` is an address of this machine, also where the processes of the
    server cannot be seen. None where the name cannot be resolved. A tunnel leads elsewhere."""
    address = URL(url)
    try:
        found = {
            ipaddress.ip_address(str(entry[4][0]).partition("%")[0])
            for entry in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        }
        own = {
            ipaddress.ip_address(entry.address.partition("%")[0])
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        }
    except (OSError, ValueError):
        return None
    if not any(ip.is_loopback or ip.is_unspecified or ip in own for ip in found):
        return False
    with contextlib.suppress(psutil.Error, OSError):
        names = {psutil.Process(pid).name() for pid in _listening(address.port)}
        return not names or not names <= set(FORWARDERS)
    return True


def _listening(port: int | None) -> set[int]:
    """The processes that listen at `port` of this machine, as far as they can be seen."""
    return {
        entry.pid
        for entry in psutil.net_connections("tcp")
        if entry.status == psutil.CONN_LISTEN and entry.laddr.port == port and entry.pid
    }


def processes_at(url: str) -> list[int]:
    """The processes of the server at `url`, where it is on this machine and its processes can be
    seen: the one that listens, the one whose part it is, and all that they have started."""
    if not is_here(url):
        return []
    try:
        listening = _listening(URL(url).port)
        found: set[int] = set()
        for pid in listening:
            top = psutil.Process(pid)
            while (parent := top.parent()) is not None and _is_part(top, parent):
                top = parent
            found |= {top.pid, *(child.pid for child in top.children(recursive=True))}
        return sorted(found - {os.getpid(), os.getppid()})
    except (psutil.Error, OSError, ValueError):
        return []


PARTS = ("multiprocessing", "VLLM::", "sglang::")
"""Words in the command line of a process that is a part of another: of Python's multiprocessing,
and the titles that engines give their parts."""


def _is_part(process: psutil.Process, parent: psutil.Process) -> bool:
    words = " ".join(process.cmdline())
    return any(part in words for part in PARTS) or process.cmdline() == parent.cmdline()


class JoinedCounters:
    """The counters of a page on which engines, models or replicas come and go. Their sum would fall
    or jump then, so no count is made of the time between the two readings. The counters of a single
    engine stay as they are: if they fall, the server has restarted."""

    def __init__(self) -> None:
        self._parts = 1
        self._last: ServerState | None = None
        self._added: dict[Count, float] = {}
        """What is added to the counters of the page."""

    def continued(self, state: ServerState) -> ServerState:
        """`state` with counters that go on from the last reading."""
        last, before = self._last, self._parts
        self._parts = int(state.gauges.get("engines", 1))
        if last is not None and state.process_start != last.process_start:
            self._added = {}
        elif last is not None and max(before, self._parts) > 1:
            again = frozenset(state.totals)
            if self._parts == before:
                again = self._sum(state).began_again(last)
            old = last.counts()
            self._added |= {
                key: old.get(key, count) - count
                for key, count in state.counts().items()
                if total_of(key) in again
            }
        self._last = self._sum(state)
        return self._last

    def _sum(self, state: ServerState) -> ServerState:
        if not self._added:
            return state
        totals = {name: value + self._added.get(name, 0.0) for name, value in state.totals.items()}
        buckets = {
            name: [(bound, count + self._added.get((name, bound), 0.0)) for bound, count in bounds]
            for name, bounds in state.buckets.items()
        }
        return msgspec.structs.replace(state, totals=totals, buckets=buckets)


SEVERAL_SERVERS = (
    "several servers answer behind this address: rates and percentiles are n/a; watch each server"
)
REMEMBERED_S = 300.0
RETURNS = 2
"""Several servers are recognised when readings have so often returned to the counters of an earlier
reading. A server that restarts while it is young may seem to return once."""
AGREE = 3
"""A restart is told when so many readings agree: before two servers, they do not."""


class SeveralServers:
    """Recognises the readings of one address that come from several servers: a load balancer sends
    each request to another one.

    The process that answers names the time of its start; one that has answered before, or is older
    than the last one, is no restart. SGLang, TGI, llama.cpp, and vLLM with several API servers do
    not report this time. There, counters that return to those of an earlier reading show a second
    server.
    """

    def __init__(self) -> None:
        self.count = 0
        """The servers that have answered; 0: one, as far as is known."""
        self.returned = False
        """Whether the last reading has returned to the counters of an earlier one."""
        self._starts: dict[float, float] = {}
        """The last reading of each process, by the time of its start."""
        self._last_start = 0.0
        self._servers: list[tuple[float, dict[str, float]]] = []
        """The time and the counters of the last reading of each server, the newest last."""
        self._returns = 0
        self._parts = 1.0

    def add(self, state: ServerState, counters: dict[str, float], after_silence: bool) -> None:
        """Take the next reading. `after_silence`: the server has not answered since the last."""
        self.returned = False
        if start := state.process_start:
            self._take_start(state.t, start)
        elif counters:
            parts = state.gauges.get("engines", 1.0)
            if after_silence or parts != self._parts:
                self._servers, self._returns = [], 0
            self._parts = parts
            self._take_counters(state.t, counters)

    def _take_start(self, t: float, start: float) -> None:
        recent = {start: seen for start, seen in self._starts.items() if t - seen <= REMEMBERED_S}
        self._starts = {**recent, start: t}
        if (
            self.count
            or start < self._last_start
            or (start != self._last_start and start in recent)
        ):
            self.count = max(self.count, 2, len(self._starts))
        self._last_start = start

    def _take_counters(self, t: float, counters: dict[str, float]) -> None:
        """Assign the reading to the server with the highest counters that the reading can
        continue."""
        self._servers = [one for one in self._servers if t - one[0] <= REMEMBERED_S]
        known = [one for one in self._servers if _continues(one[1], counters)]
        nearest = max(known, key=lambda one: sum(one[1].values()), default=None)
        self.returned = nearest is not None and nearest is not self._servers[-1]
        self._servers = [*(one for one in self._servers if one is not nearest), (t, counters)]
        self._returns += self.returned
        if self._returns >= RETURNS:
            self.count = max(self.count, len(self._servers))


def _continues(before: dict[str, float], counters: dict[str, float]) -> bool:
    """Return whether the counters can be a later reading of the same server. If only one metric of
    many falls, the exporter is at fault. The sum and the count of a histogram are one metric."""
    fallen = {name for name, value in counters.items() if value < before.get(name, 0.0)}
    return len(_metrics(fallen)) < min(2, len(_metrics(before)))


def _metrics(names: Iterable[str]) -> set[str]:
    return {name.removesuffix("_sum").removesuffix("_count") for name in names}


MAX_ASKED = 4
"""How often a server is asked for settings that it has not told: most engines do not tell the limit
of running sequences."""


class ServerWatch:
    """One server, watched from its first answer until Stop."""

    def __init__(
        self,
        channel: ChildChannel,
        start: Start,
        session: aiohttp.ClientSession,
        elsewhere: aiohttp.ClientSession,
    ) -> None:
        """`session`: with the key of the server; `elsewhere`: without it, for a metrics page at
        another address (`metrics_url`)."""
        options = start.options
        self._channel, self._session, self._elsewhere = channel, session, elsewhere
        self._page = options.get("metrics_url", "")
        self._url, self._model = (
            options["server_url"].rstrip("/").removesuffix("/v1"),
            options.get("model", ""),
        )
        for page in PAGES if not self._page else ():
            if self._url.endswith(page):  # the address of the page itself
                self._page, self._url = self._url, self._url.removesuffix(page)
                break
        self._wait_s = float(options.get("wait_s", 0.0))
        self._over = asyncio.Event()
        self._reader: ServerReader
        self._facts = ServerFacts()
        self._asked = 0
        self._processes: list[int] = []
        self._limits: LiveLimits | None = None
        self._knobs: Knobs = {}
        """The limits in force, where the server takes limits while it runs."""
        self._arm = 0
        self._settled_t = 0.0
        self._last: ServerState | None = None
        self._joined = JoinedCounters()
        self._servers = SeveralServers()
        self._untold = 0
        """The readings after which a restart is told."""
        self._index = 0
        self._down = ""
        self._said: set[str] = set()
        self._ours = 0
        """How many requests of ours went to the model."""
        self._probing: asyncio.Task[None] | None = None
        self._probed_t = 0.0
        """The end of the last probe."""
        self.failed = ""

    async def run(self) -> None:
        """Run until a Stop command, or until no page can be read (see `failed`)."""
        work = asyncio.create_task(self._watch())
        over, renewing = (
            asyncio.create_task(self._over.wait()),
            asyncio.create_task(self._renew_for_ever()),
        )
        await asyncio.wait([work, over], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        renewing.cancel()
        if self._probing is not None:
            self._probing.cancel()
        self._give_back()
        if not work.done():
            work.cancel()
            return
        try:
            await work
        except ServerFailed as problem:
            self.failed = str(problem)

    async def serve(self, command: Command) -> None:
        """Handle a command from the console: all but Stop, the probe, and new limits of a server
        that takes them, are refused."""
        if isinstance(command, Stop):
            self._over.set()
        elif isinstance(command, SetKnobs):
            self._set_limits(command)
        elif isinstance(command, RunProbe):
            self._probing = asyncio.create_task(self._probe(command))
        elif isinstance(command, Profile):
            self._channel.send(Profiled(now(), command.request, error=NO_CHANGE))

    async def _watch(self) -> None:
        progress = lambda detail: self._channel.send(Progress(now(), "starting", detail))  # noqa: E731
        self._reader, families = await until_answered(
            self._page or self._url, self._wait_s, progress, self._find
        )
        await self._ask_facts(families)
        if not self._knobs:
            self._channel.send(Started(now(), {}, {}))
        self._say_models(families)
        while True:
            await self._read()
            await asyncio.sleep(self._reader.interval_s)

    # --- which page -------------------------------------------------------------------------------

    async def _find(self, left_s: float) -> tuple[ServerReader, list[Metric]]:
        """The reader of the first page that has known metrics. Raises ServerFailed where there is
        none, and aiohttp's errors where the server does not answer."""
        keyed = not self._page or same_origin(self._page, self._url)
        session = self._session if keyed else self._elsewhere
        refused: list[str] = []
        for page in [self._page] if self._page else [f"{self._url}{page}" for page in PAGES]:
            begun = time.monotonic()
            families, why = await self._families(session, page, PAGE_S)
            if (took := time.monotonic() - begun) > SLOW_S:
                self._note(f"the page took {took:.1f} s to answer")
            if (
                families
                and (known := server_state(families, 0.0, model=self._model))
                and (known.gauges or known.totals)
            ):
                # a filter would hide the other engines
                alone = [engine.name for engine in engines_on(families)] == ["vllm"]
                return Scraper(
                    session, page, buckets=True, model=self._model, timeout_s=PAGE_S, filtered=alone
                ), families
            if families and self._model:
                raise ServerFailed(
                    f"{page} has no metrics of the model {self._model}: it has"
                    f" {shown_names(models_on(families))}"
                )
            refused.append(f"{page} {why}")
        for path, engine, parse in (
            ((LOADS, "sglang", of_loads), (LOADED, "ollama", of_loaded)) if not self._page else ()
        ):
            reader = JsonReader(self._session, f"{self._url}{path}", engine, parse)
            with contextlib.suppress(ValueError):
                await reader.read()
                return reader, []
        raise ServerFailed(await self._why_nothing(refused))

    async def _families(
        self, session: aiohttp.ClientSession, page: str, timeout_s: float
    ) -> tuple[list[Metric], str]:
        """The known metrics of `page`; or none, and why. Raises ServerFailed for a page that no
        other can replace."""
        async with session.get(
            page, timeout=aiohttp.ClientTimeout(total=timeout_s), allow_redirects=False
        ) as answer:
            await check_usable(answer, session, self._url, page)
            if answer.status != 200:
                return [], f"answers HTTP {answer.status}"
            try:
                text = (await read_body(answer)).decode(errors="replace")
                families = await asyncio.to_thread(read_families, text, buckets=True)
            except ValueError as problem:
                raise ServerFailed(f"{page}: {explain(problem)}") from None
        return families, "" if families else what_it_is(text)

    async def _why_nothing(self, refused: list[str]) -> str:
        """Why nothing can be read, in one line, with the flag that turns the metrics on."""
        # a program that answers to every path says nothing about the engine
        if page := next((why.partition(" ")[0] for why in refused if why.endswith(IS_HTML)), ""):
            return (
                f"{page} answers with a web page (HTML), not with metrics: give the address of the"
                " engine itself, such as http://host:8000"
            )
        if page := next((why.partition(" ")[0] for why in refused if why.endswith(IS_EMPTY)), ""):
            return (
                f"{page} answers, and the page is empty: give the address of the engine itself,"
                " such as http://host:8000; an engine that has had no request yet may tell nothing"
            )
        facts = await ask_facts(self._session, self._url) if not self._page else ServerFacts()
        name = (
            str(facts.engine.value)
            if facts.engine is not None
            else "tensorrt-llm"
            if any(IS_JSON in why for why in refused)
            else ""
        )
        if (engine := engine_of(name)) is not None:
            return f"{self._url} is {engine.title} and shows no metrics: {engine.turn_on}"
        flags = "; ".join(
            f"{entry.title}: {entry.turn_on}"
            for entry in engines()
            if entry.name in ("vllm", "sglang", "llama.cpp", "tensorrt-llm")
        )
        return f"{'; '.join(refused)}: no metrics of a known model server. {flags}"

    async def _ask_facts(self, families: list[Metric]) -> None:
        """Send what the server says of its settings, where that is new."""
        self._asked += 1
        facts = await ask_facts(self._session, self._url, families)
        names = [engine.name for engine in engines_on(families)] or [
            self._reader.engine if isinstance(self._reader, JsonReader) else ""
        ]
        models = models_counted(families)
        facts = complete(
            facts,
            (
                "the metrics page",
                {"engine": names[0] or None, "model": models[0] if len(models) == 1 else None},
            ),
        )
        if self._model:
            facts = msgspec.structs.replace(facts, model=Fact(self._model, "--model"))
        processes = await asyncio.to_thread(processes_at, self._page or self._url)
        here = await asyncio.to_thread(is_here, self._page or self._url)
        facts = msgspec.structs.replace(facts, here=here)
        self._give_back()
        self._limits = find_limits(processes)
        if self._limits is not None:
            facts = complete(
                facts,
                (SCHEDULER, {name: float(limit) for name, limit in self._limits.chosen.items()}),
            )
        if self._limits is not None or self._knobs:
            self._knobs = {**self._limits.chosen} if self._limits is not None else {}
            of_engines = (
                {"live_limit.engines": float(self._limits.engines)}
                if self._limits is not None
                else {}
            )
            live = {live_limit_fact(name): float(limit) for name, limit in self._knobs.items()}
            self._channel.send(Started(now(), self._knobs, live | of_engines))
        if (facts, processes) != (self._facts, self._processes):
            self._facts, self._processes = facts, processes
            self._channel.send(ServerKnown(now(), facts, processes))

    def _say_models(self, families: list[Metric]) -> None:
        """A line where the page has several models or engines: the figures are of all of them
        together."""
        models, found = models_counted(families), engines_on(families)
        if len(models) > 1 and not self._model:
            self._note(
                f"{len(models)} models on the page, added up: {shown_names(models)};"
                " --model NAME takes one"
            )
        if len(found) > 1:
            self._note(
                "several engines on the page, added up:"
                f" {', '.join(engine.title for engine in found)}"
            )

    # --- limits that change while the server runs -------------------------------------------------

    def _set_limits(self, command: SetKnobs) -> None:
        """Put the limits of a side of a trial in force. The requests that run then still belong to
        the other side for a while."""
        error: str | None = NO_CHANGE
        if self._limits is not None and command.changes.keys() <= self._limits.chosen.keys():
            knobs = {**self._knobs, **command.changes}
            try:
                self._limits.set(knobs)
            except OSError as problem:
                error = f"the limits of the server could not be written: {problem.strerror}"
            else:
                error, self._knobs, self._arm = None, knobs, command.arm
                self._settled_t = now() + settle_s(self._e2e_s())
        self._channel.send(KnobsSet(now(), command.request, self._index, self._knobs, error=error))

    def _e2e_s(self) -> float | None:
        """The mean time of a request, since the start of the server."""
        totals = self._last.totals if self._last is not None else {}
        return totals["e2e_s_sum"] / totals["e2e_s_count"] if totals.get("e2e_s_count") else None

    async def _renew_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                in_time = self._limits is None or self._limits.renew()
            except OSError:
                in_time = False
            if not in_time and self._arm:
                self._arm = 0  # the trial misses its steps, and ends
                self._channel.send(
                    Note(
                        now(),
                        (
                            "the limits of the server ended by themselves: gpuconsole was held up"
                            " for seconds"
                        ),
                        "warning",
                    )
                )

    def _give_back(self) -> None:
        """Let the server have the values of its start, and end the trial that was under way."""
        if self._limits is not None:
            self._limits.close()
        self._limits, self._arm = None, 0

    # --- requests of ours, where the user has agreed ----------------------------------------------

    async def _probe(self, command: RunProbe) -> None:
        """Send the requests of the probe, and always an answer."""
        begun, error = now(), None
        signals: dict[str, Signal] = {}
        try:
            signals = await self._client_wait(command.probe)
            if CLIENT_SIGNAL not in signals:
                error = "the metrics page has no TTFT of the requests of ours to compare with"
        except ValueError as problem:
            error = visible(str(problem))
        if self._ours:
            signals[OURS] = Signal(self._ours, "requests", "sent by gpuconsole in this session")
        self._probed_t = now()
        self._channel.send(
            ProbeDone(
                self._probed_t,
                command.request,
                command.probe,
                signals,
                error,
                self._probed_t - begun,
            )
        )

    async def _client_wait(self, probe: str) -> dict[str, Signal]:
        """Raises ValueError with one line."""
        if probe != CLIENT_WAIT:
            raise ValueError(NO_CHANGE)
        if self._facts.model is None:
            raise ValueError("the server does not tell the name of its model: --model NAME")
        if self._down:
            raise ValueError(f"the server does not answer: {self._down}")

        async def read() -> ServerState:
            return (await self._reader.read())[0]

        wait = ClientWait(self._session, self._url, str(self._facts.model.value), read, self._note)
        try:
            return await wait.run()
        finally:
            self._ours += wait.sent

    # --- readings ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        begun = time.monotonic()
        try:
            state, families = await self._reader.read()
        except ValueError as problem:
            self._on_silence(str(problem))
            return
        if (took := time.monotonic() - begun) > SLOW_S:
            self._note(f"the metrics page takes {took:.1f} s, so it is read seldom")
        self._servers.add(state, counters_on(families), bool(self._down))
        if self._servers.count:
            self._say_several()
            gauges = {**state.gauges, "replicas": float(self._servers.count)}
            state = msgspec.structs.replace(state, gauges=gauges, totals={}, buckets={})
        else:
            state = self._joined.continued(state)
        before, self._last = self._last, state
        restarted = before is not None and not self._servers.count and state.restarted_since(before)
        # a busy server may have answered too late
        is_busy = self._facts.max_num_seqs is None and self._asked < MAX_ASKED
        if self._down or restarted or is_busy:
            await self._ask_facts(families)
        self._say_restart(restarted)
        if self._down:
            self._down = ""
            self._channel.send(Requests(now(), []))
        self._channel.send(state)
        if before is not None:
            self._send_step(before, state)

    def _say_several(self) -> None:
        self._untold = 0
        if SEVERAL_SERVERS not in self._said:
            self._said.add(SEVERAL_SERVERS)
            self._channel.send(Note(now(), SEVERAL_SERVERS, "warning"))

    def _say_restart(self, restarted: bool) -> None:
        """A line about a restart: at once after a silence, otherwise when the next readings are of
        the same server."""
        if restarted:
            self._untold = 1 if self._down else AGREE
        elif self._servers.returned:
            self._untold = 0
        elif not self._untold:
            return
        self._untold -= 1
        if not self._untold:
            self._channel.send(
                Note(now(), "the server has restarted: its counters began again", "warning")
            )

    def _send_step(self, before: ServerState, state: ServerState) -> None:
        """What the server has done since the reading before. A server that has restarted has
        counted from 0."""
        again = state.began_again(before)

        def gained(name: str) -> int:
            value, old = state.totals.get(name, 0.0), before.totals.get(name, 0.0)
            return round(value if name in again else max(0.0, value - old))

        probes = (
            self._probing is not None and not self._probing.done()
        ) or before.t < self._probed_t
        kind = PROBE if probes else COUNTS if before.t >= self._settled_t else SETTLING
        step = Step(
            self._index,
            state.t,
            state.t - before.t,
            gained("requests"),
            gained("generation_tokens"),
            (),
            arm=self._arm,
            kind=kind,
        )
        self._index += 1
        self._channel.send(
            Steps(state.t, [step], time.process_time(), 0.0, 0.0, 0.0, self._channel.dropped)
        )

    def _on_silence(self, why: str) -> None:
        self._down = visible(why)[:MAX_CHARACTERS]
        self._channel.send(
            Requests(
                now(),
                [],
                down=self._down,
                down_since=self._last.t if self._last is not None else now(),
            )
        )

    def _note(self, text: str) -> None:
        kind = "".join(letter for letter in text if not letter.isdigit())
        if kind not in self._said:
            self._said.add(kind)
            self._channel.send(Note(now(), text))
