"""Watching a server: what is asked, what is sent to the console, and one clear line for each
fault."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from gpuconsole.model.serving import WATCHED
from gpuconsole.session.serving import ServingRecord
from gpuconsole.wire.events import (
    AnyEvent,
    Note,
    Requests,
    ServerKnown,
    ServerState,
    SetKnobs,
    Start,
    Started,
    Steps,
    Stop,
)
from gpuconsole.workloads.serving import scraping, servers, watching
from gpuconsole.workloads.serving.http import connect, same_origin
from gpuconsole.workloads.serving.watching import NO_CHANGE, ServerWatch
from tests.fakes.server_pages import Load, PageServer, page

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Channel:
    """Takes the place of the console."""

    dropped = 0

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.news = asyncio.Event()

    def send(self, event: AnyEvent) -> None:
        self.events.append(event)
        self.news.set()

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not enough():
                self.news.clear()
                await self.news.wait()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "MIN_INTERVAL_S", 0.02)
    monkeypatch.setattr(scraping, "SHARE", 1.0)
    monkeypatch.setattr(watching.JsonReader, "interval_s", 0.02)
    monkeypatch.setattr(servers, "PATIENCE_S", 0.2)


def watch(
    answer: Answer,
    use: Callable[[Channel, ServerWatch], Awaitable[None]],
    key: str = "",
    **options: str,
) -> tuple[Channel, ServerWatch]:
    """Watch a server that answers with `answer`, while `use` runs; `{url}` in an option is its
    address."""

    async def run() -> tuple[Channel, ServerWatch]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url, channel = f"http://127.0.0.1:{runner.addresses[0][1]}", Channel()
        start = Start(
            WATCHED,
            {},
            "cpu",
            options={
                "server_url": url,
                **{name: text.format(url=url) for name, text in options.items()},
            },
        )
        try:
            async with await connect(key) as session, await connect("") as elsewhere:
                watched = ServerWatch(channel, start, session, elsewhere)  # type: ignore[arg-type]
                running = asyncio.create_task(watched.run())
                using = asyncio.ensure_future(use(channel, watched))
                await asyncio.wait([running, using], return_when=asyncio.FIRST_COMPLETED)
                await watched.serve(Stop())
                await running
                if using.done():
                    using.result()
                using.cancel()
        finally:
            await runner.cleanup()
        return channel, watched

    return asyncio.run(run())


async def three_readings(channel: Channel, watched: ServerWatch) -> None:
    await channel.until(lambda: len(channel.of(Steps)) >= 3)


async def for_ever(channel: Channel, watched: ServerWatch) -> None:
    await asyncio.sleep(20)


def serving(
    server: PageServer, path: str = "/metrics", other: dict[str, Any] | None = None
) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        server.asked.append(f"{request.method} {request.path}")
        if request.path == path:
            return web.Response(text=server.next_page())
        if request.path in (other or {}):
            return web.json_response((other or {})[request.path])
        return web.Response(status=404)

    return answer


@pytest.mark.parametrize(
    ("engine", "path", "tokens"),
    [
        ("vllm", "/metrics", 500),
        ("sglang", "/metrics", 500),
        ("tgi", "/metrics", 500),
        ("llama.cpp", "/metrics", 500),
        ("lmdeploy", "/metrics", 500),
        ("tensorrt-llm", "/prometheus/metrics", 500),
        ("triton", "/metrics", 0),
        ("ray-serve", "/metrics", 500),
        ("dynamo", "/metrics", 500),
    ],
)
def test_each_engine_is_watched_without_a_request_to_its_model(
    engine: str, path: str, tokens: int
) -> None:
    server = PageServer(engine, Load())
    channel, watched = watch(serving(server, path), three_readings)
    assert watched.failed == ""
    assert {line for line in server.asked if not line.startswith("GET ")} == set(), "only GETs"
    assert not any(
        word in line for line in server.asked for word in ("completions", "generate", "tokenize")
    )
    assert [step.tokens for event in channel.of(Steps) for step in event.steps][:3] == [tokens] * 3
    assert channel.of(Started)[0].knobs == {} and channel.of(ServerKnown)[0].facts.engine.value == {
        "ray-serve": "vllm"
    }.get(engine, engine)
    assert channel.of(ServerState)[0].gauges["requests_running"] == 4


def test_the_underscore_form_of_a_page_is_the_same_page() -> None:
    colon, underscore = (
        scraping.server_state(scraping.read_families(text, True), 0.0, buckets=True)
        for text in (
            page("sglang", Load(), 5),
            page("sglang", Load(), 5).replace("sglang:", "sglang_"),
        )
    )
    assert colon == underscore and colon.totals["generation_tokens"] == 2500


def test_an_old_and_a_new_name_on_one_page_count_once() -> None:
    """vLLM 0.10 has both: the sum of both was twice the truth."""
    old, new = (
        scraping.server_state(scraping.read_families(page(engine, Load(), 5)), 0.0).totals
        for engine in ("vllm 0.10", "vllm")
    )
    assert old == new and old["prefix_queries"] == 5 * 10 * 100


def test_parallel_parts_and_priorities_of_sglang_count_once_and_ttft_is_that_of_streams() -> None:
    state = scraping.server_state(scraping.read_families(page("sglang", Load(), 2)), 0.0)
    assert state.gauges["requests_running"] == 4 and state.totals["generation_tokens"] == 1000
    assert state.totals["ttft_s_sum"] / state.totals["ttft_s_count"] == pytest.approx(0.08)


def test_success_is_not_abort() -> None:
    totals = scraping.server_state(
        scraping.read_families(page("vllm", Load(aborted=3, failed=2), 2)), 0.0
    ).totals
    assert (totals["requests"], totals["requests_aborted"], totals["requests_failed"]) == (20, 6, 4)


def test_what_a_router_and_its_engine_both_report_counts_once() -> None:
    together, alone = (
        scraping.server_state(scraping.read_families(page(name, Load(), 2)), 0.0)
        for name in ("dynamo with worker", "vllm")
    )
    assert together.totals == alone.totals and together.gauges["requests_running"] == 4
    assert together.gauges["sequence_limit"] == 64, "what only the router reports is there"


def test_engines_and_models_on_one_page_are_added_up_and_one_model_can_be_chosen() -> None:
    text = page("vllm", Load(kv=0.2), 2)
    text += (
        text.replace('model_name="m"', 'model_name="other"')
        .replace('engine="0"', 'engine="1"')
        .replace("perc{", "perc{")
        .replace(" 0.2\n", " 0.6\n")
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text) if request.path == "/metrics" else web.Response(status=404)

    async def one_reading(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: bool(channel.of(ServerState)))

    channel, _ = watch(answer, one_reading)
    assert "2 models on the page, added up: m, other; --model NAME takes one" in [
        note.text for note in channel.of(Note)
    ]
    gauges = channel.of(ServerState)[0].gauges
    assert (
        gauges["requests_running"],
        gauges["kv_cache_usage_ratio"],
        gauges["kv_cache_mean_ratio"],
    ) == (8, 0.6, 0.4)
    channel, _ = watch(answer, one_reading, model="other")
    assert (
        channel.of(ServerState)[0].gauges["kv_cache_usage_ratio"] == 0.6
        and channel.of(ServerState)[0].gauges["requests_running"] == 4
    )
    _, watched = watch(answer, for_ever, model="third")
    assert watched.failed.endswith("has no metrics of the model third: it has m, other")


def test_a_replica_that_goes_or_comes_makes_no_jump_and_no_restart() -> None:
    """The sum over replicas falls when one goes. Counted from 0, as after a restart, its total
    would be the work of one interval."""
    both = {"now": True}
    server = PageServer("vllm")

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        text = server.next_page()
        other = text.replace('engine="0"', 'engine="1"')
        return web.Response(text=text + other if both["now"] else text)

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await three_readings(channel, watched)
        for now in (False, True):
            both["now"], count = now, len(channel.of(Steps))
            await channel.until(lambda count=count: len(channel.of(Steps)) >= count + 4)  # type: ignore[misc]

    channel, _ = watch(answer, use)
    tokens = [step.tokens for event in channel.of(Steps) for step in event.steps]
    assert set(tokens) <= {0, 500, 1000} and tokens.count(0) <= 2, tokens
    assert not [note for note in channel.of(Note) if "restarted" in note.text]


START = "process_start_time_seconds {}\n"


@pytest.mark.parametrize(
    ("engine", "turns"),
    [
        ("vllm", (0, 1)),
        ("vllm with its start", (0, 0, 1, 1, 0)),
        ("vllm with its start", (0, 1, 2)),
        ("sglang", (0, 1)),
        ("sglang", (0, 1, 2)),
        ("llama.cpp", (0, 0, 1, 1, 0)),
        ("tgi", (0, 1, 2)),
    ],
)
def test_two_servers_behind_one_address_have_no_rates_and_no_restarts(
    engine: str, turns: tuple[int, ...]
) -> None:
    """Each alternation added the whole counters of a server: 835 requests for 104."""
    name, _, with_start = engine.partition(" ")
    behind, asked = [PageServer(name, seconds=n) for n in (5000.0, 40.0, 800.0)], []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        which = turns[len(asked) % len(turns)]
        asked.append(which)
        text = [server.next_page() for server in behind][which]
        return web.Response(text=text + (START.format(1.7e9 + which) if with_start else ""))

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: len(channel.of(ServerState)) >= 14)

    channel, watched = watch(answer, use)
    assert watched.failed == ""
    warnings = [note.text for note in channel.of(Note) if note.level == "warning"]
    assert warnings == [watching.SEVERAL_SERVERS]
    known = [state for state in channel.of(ServerState) if "replicas" in state.gauges]
    assert len(known) >= 14 - 8
    assert known == channel.of(ServerState)[-len(known) :]
    assert not any(state.totals or state.buckets for state in known)
    assert known[-1].gauges["replicas"] == len(set(turns))
    record = ServingRecord(watched=True)
    for state in channel.of(ServerState):
        record.add_state(state)
    assert record.restarts == 0 and record.rates(0.0) == {}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
@pytest.mark.parametrize("other", ["falls once", "swings"])
def test_one_counter_that_falls_is_no_restart_and_no_other_server(engine: str, other: str) -> None:
    """The fault of an exporter was a restart of all: 352 requests for 79."""
    metric = "tokens_predicted_total" if engine == "llama.cpp" else "generation_tokens_total"
    server = PageServer(engine, seconds=100)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        text = server.next_page()
        wrong = server.seconds == 108 if other == "falls once" else server.seconds % 2
        if wrong:
            lines = [
                f"{line.rpartition(' ')[0]} 3" if metric in line.partition("{")[0] else line
                for line in text.splitlines()
            ]
            text = "\n".join(lines) + "\n"
        return web.Response(text=text)

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: len(channel.of(ServerState)) >= 16)

    channel, _ = watch(answer, use)
    assert [note.text for note in channel.of(Note) if note.level == "warning"] == []
    record = ServingRecord(watched=True)
    for state in channel.of(ServerState):
        assert "replicas" not in state.gauges
        record.add_state(state)
    assert record.restarts == 0
    if engine == "vllm":
        first, last = record.states[0], record.states[-1]
        gained = record.rates(0.0)["requests"] * (last.t - first.t)
        assert gained == pytest.approx(10 * (len(record.states) - 1), rel=0.01)


def test_a_process_that_names_its_start_has_restarted_when_another_start_is_there() -> None:
    """A young server may have counted more after its restart than before."""
    servers = [PageServer("vllm", seconds=2), PageServer("vllm", seconds=2)]

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        second = servers[0].seconds >= 8
        text = servers[second].next_page()
        servers[1].seconds += 20 * (not second)
        return web.Response(text=text + START.format(1.7e9 + 50 * second))

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: len(channel.of(ServerState)) >= 16)

    channel, _ = watch(answer, use)
    assert [note.text for note in channel.of(Note) if note.level == "warning"] == [
        "the server has restarted: its counters began again"
    ]
    record = ServingRecord(watched=True)
    for state in channel.of(ServerState):
        record.add_state(state)
    assert record.restarts == 1


def test_the_address_of_the_page_itself_will_do() -> None:
    channel, watched = watch(
        serving(PageServer("vllm")), three_readings, server_url="{url}/metrics"
    )
    assert watched.failed == "" and len(channel.of(Steps)) >= 3


def test_sglang_without_metrics_is_read_from_its_loads() -> None:
    loads = {
        "loads": [
            {
                "dp_rank": 0,
                "num_running_reqs": 3,
                "num_waiting_reqs": 2,
                "token_usage": 0.4,
                "max_running_requests": 8,
            }
        ]
    }

    async def one_reading(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: bool(channel.of(ServerState)))

    channel, _ = watch(serving(PageServer("vllm"), "/nowhere", {"/v1/loads": loads}), one_reading)
    own = {
        "requests_running": 3,
        "requests_waiting": 2,
        "sequence_limit": 8,
        "kv_cache_usage_ratio": 0.4,
    }
    assert (channel.of(ServerState)[0].gauges, channel.of(ServerState)[0].engines) == (own, {})
    loads["loads"] += [loads["loads"][0] | {"dp_rank": 1, "token_usage": 0.6}]
    channel, _ = watch(serving(PageServer("vllm"), "/nowhere", {"/v1/loads": loads}), one_reading)
    assert channel.of(ServerState)[0].gauges == {
        "requests_running": 6,
        "requests_waiting": 4,
        "sequence_limit": 8,
        "kv_cache_usage_ratio": 0.6,
        "engines": 2,
    }
    assert channel.of(ServerState)[0].engines == {
        "dp_rank 0": own,
        "dp_rank 1": own | {"kv_cache_usage_ratio": 0.6},
    }
    assert channel.of(ServerKnown)[0].facts.engine.value == "sglang"


def test_ollama_is_read_from_its_loaded_models() -> None:
    loaded = {
        "models": [
            {"name": "llama", "size": 6591830464, "size_vram": 5333539264, "context_length": 4096}
        ]
    }

    async def one_reading(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: bool(channel.of(ServerState)))

    channel, _ = watch(serving(PageServer("vllm"), "/nowhere", {"/api/ps": loaded}), one_reading)
    assert channel.of(ServerState)[0].gauges == {
        "models_loaded": 1,
        "on_gpu_ratio": pytest.approx(0.809, abs=0.001),
    }
    assert channel.of(ServerKnown)[0].facts.engine.value == "ollama"


def test_the_processes_of_a_server_on_this_machine_are_found() -> None:
    words = [sys.executable, "-m", "tests.fakes.server_pages", "vllm", "few"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[1]
        assert watching.processes_at(url) == [server.pid], (
            "not those of the program that has started it"
        )
        port = url.rpartition(":")[2]
        for entry in psutil.net_if_addrs()["lo"]:  # a server may listen at an address of its own
            if entry.family == socket.AF_INET:
                assert watching.is_here(f"http://{entry.address}:{port}") is True
        server.kill()
    assert watching.processes_at("http://192.0.2.1:8000") == [], "not this machine"


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://192.0.2.1:8000", False),
        ("http://no.such.host.invalid:8000", None),
    ],
)
def test_a_server_is_here_where_its_address_is_one_of_this_machine(
    url: str, here: bool | None
) -> None:
    assert watching.is_here(url) is here


def test_a_server_behind_a_tunnel_is_not_here(tmp_path: Path) -> None:
    """The port of `ssh -L` is on this machine, and the server is not."""
    ssh = tmp_path / "ssh"
    ssh.symlink_to(sys.executable)
    words = [
        str(ssh),
        "-c",
        "import ctypes, socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "ctypes.CDLL(None).prctl(15, b'ssh'); print(s.getsockname()[1], flush=True);"
        "time.sleep(30)",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tunnel:
        assert tunnel.stdout is not None
        url = f"http://127.0.0.1:{tunnel.stdout.readline().strip()}"
        assert watching.is_here(url) is False and watching.processes_at(url) == []
        tunnel.kill()


def test_the_facts_tell_whether_the_server_is_here() -> None:
    channel, _ = watch(serving(PageServer("vllm")), three_readings)
    facts = channel.of(ServerKnown)[0].facts
    assert facts.here is True and "here" not in facts.known() and "here" not in facts.numbers()


# --- faults ---------------------------------------------------------------------------------------


def models(owner: str) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": owner}]}}


@pytest.mark.parametrize(
    ("owner", "flag"),
    [
        ("vllm", "start vLLM without --disable-log-stats"),
        ("sglang", "start SGLang with --enable-metrics"),
        ("llamacpp", "--metrics"),
    ],
)
def test_metrics_that_are_off_are_named_with_the_flag_that_turns_them_on(
    owner: str, flag: str
) -> None:
    _, watched = watch(serving(PageServer("vllm"), "/nowhere", models(owner)), for_ever)
    assert flag in watched.failed and "\n" not in watched.failed


def test_the_json_of_trtllm_serve_is_known_as_such() -> None:
    _, watched = watch(
        serving(PageServer("vllm"), "/nowhere", {"/metrics": [{"iter": 1}]}), for_ever
    )
    assert watched.failed.endswith(
        "is TensorRT-LLM and shows no metrics: set return_perf_metrics: true and"
        " enable_iter_perf_stats: true in trtllm-serve's options"
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "<!DOCTYPE html><html><body>Welcome</body></html>",
            "/metrics answers with a web page (HTML), not with metrics: give the address of the"
            " engine itself, such as http://host:8000",
        ),
        ("\n <html></html>", "answers with a web page (HTML), not with metrics"),
        ("", "/metrics answers, and the page is empty: give the address of the engine itself"),
        ("\n", "the page is empty"),
    ],
)
def test_a_page_of_an_ingress_is_named_and_not_taken_for_an_engine_without_metrics(
    body: str, line: str
) -> None:
    """It was: `is vLLM and shows no metrics: start vLLM without --disable-log-stats`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response(models("vllm")["/v1/models"])
        return web.Response(text=body, content_type="text/html")

    _, watched = watch(answer, for_ever)
    assert line in watched.failed and "--disable-log-stats" not in watched.failed


def test_a_server_that_is_nothing_we_know_is_named_with_what_was_tried() -> None:
    _, watched = watch(serving(PageServer("vllm"), "/nowhere"), for_ever)
    assert (
        "/metrics answers HTTP 404" in watched.failed
        and "no metrics of a known model server" in watched.failed
    )


async def _locked(request: web.Request) -> web.StreamResponse:
    return (
        web.Response(text=page("vllm", Load(), 1))
        if request.headers.get("Authorization") == "Bearer sesame"
        else web.Response(status=401)
    )


def test_a_server_behind_a_key() -> None:
    assert "needs an API key (HTTP 401)" in watch(_locked, for_ever)[1].failed
    assert "rejects the API key (HTTP 401)" in watch(_locked, for_ever, key="wrong")[1].failed
    assert watch(_locked, three_readings, key="sesame")[1].failed == ""


HOSTILE = {
    "one long line": "vllm:num_requests_running" + "x" * (7 * 2**20) + "\n",
    "a known metric with a label of 7 MiB": 'vllm:num_requests_running{a="'
    + "\\" * (7 * 2**20)
    + '"} 1\n',
    "a known metric without an end": 'vllm:num_requests_running{a="' + '"' * (7 * 2**20),
    "many lines of a known metric": "vllm:num_requests_running 1\n" * (7 * 2**20 // 28),
    "more than 8 MiB": "#" * (9 * 2**20),
    "bytes that are no text": "\udcff" * 1000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_page_costs_one_line_and_little_time(name: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return (
            web.Response(body=HOSTILE[name].encode(errors="surrogateescape"))
            if request.path == "/metrics"
            else web.Response(status=404)
        )

    _, watched = watch(answer, for_ever)
    assert watched.failed and "\n" not in watched.failed and len(watched.failed) < 700


def test_a_server_that_falls_silent_and_comes_back_with_new_counters() -> None:
    server, mode = PageServer("vllm"), {"now": "up"}

    async def answer(request: web.Request) -> web.StreamResponse:
        if mode["now"] == "down":
            return web.Response(status=503)
        return await serving(server)(request)

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await three_readings(channel, watched)
        mode["now"] = "down"
        await channel.until(lambda: bool(channel.of(Requests)))
        server.seconds, mode["now"] = 0, "up"
        await channel.until(lambda: any(not event.down for event in channel.of(Requests)))
        count = len(channel.of(Steps))
        await channel.until(lambda: len(channel.of(Steps)) > count + 1)

    channel, watched = watch(answer, use)
    assert watched.failed == ""
    assert "HTTP 503" in channel.of(Requests)[0].down
    assert [note.text for note in channel.of(Note) if "restarted" in note.text] == [
        "the server has restarted: its counters began again"
    ]
    assert min(step.tokens for event in channel.of(Steps) for step in event.steps) >= 0


def test_a_slow_page_is_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SLOW_S", 0.05)

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return web.Response(text=page("vllm", Load(), 1))

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await channel.until(lambda: any("takes" in note.text for note in channel.of(Note)))

    channel, _ = watch(answer, use)
    said = [note.text for note in channel.of(Note) if "takes" in note.text]
    assert len(said) == 1, said
    assert float(said[0].split(" s,")[0].rpartition(" ")[2]) >= 0.1


def test_a_page_that_is_slow_from_the_start_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An overloaded server answers late; --wait was needed for a page slower than 4 s."""
    monkeypatch.setattr(watching, "SLOW_S", 0.2)
    begun: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        begun.append(request.path)
        await asyncio.sleep(2 * servers.ASK_EVERY_S + servers.PATIENCE_S if len(begun) == 1 else 0)
        return web.Response(text=page("vllm", Load(), len(begun)))

    channel, watched = watch(answer, three_readings)
    assert watched.failed == ""
    notes = [note.text for note in channel.of(Note) if note.text.startswith("the page took")]
    assert len(notes) == 1 and notes[0].endswith(" s to answer")


def test_a_change_is_refused() -> None:
    async def use(channel: Channel, watched: ServerWatch) -> None:
        await three_readings(channel, watched)
        await watched.serve(SetKnobs(1, {"max_num_seqs": 4}))

    channel, _ = watch(serving(PageServer("vllm")), use)
    assert [event.error for event in channel.events if type(event).__name__ == "KnobsSet"] == [
        NO_CHANGE
    ]


def test_the_list_of_names_fits_into_the_address_of_a_request() -> None:
    """aiohttp, and so the embedded server, takes lines of 8190 bytes."""
    assert sum(len(f"name%5B%5D={name}&") for name in scraping._requested_metrics(True)) < 8000
    assert json.dumps(scraping._requested_metrics(False)) != json.dumps(
        scraping._requested_metrics(True)
    )


@pytest.mark.parametrize(
    "other", ["http://127.0.0.1:{port}/metrics", "http://localhost:{port}/metrics"]
)
def test_a_page_of_another_origin_gets_no_key(other: str) -> None:
    """The attack: the address of the page begins with the characters of the server's address, and
    another user listens at the other port."""
    seen: list[tuple[str, str]] = []

    async def run() -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            seen.append((request.host, request.headers.get("Authorization", "")))
            return web.Response(text=PageServer("vllm").next_page())

        runner = web.AppRunner(app := web.Application(), shutdown_timeout=0.1)
        app.router.add_route("*", "/{path:.*}", answer)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port, channel = runner.addresses[0][1], Channel()
        page = other.format(port=port)
        options = {"server_url": f"http://127.0.0.1:{port // 10}", "metrics_url": page}
        try:
            async with await connect("sk-KEY") as session, await connect("") as elsewhere:
                start = Start(WATCHED, {}, "cpu", options=options)
                watched = ServerWatch(channel, start, session, elsewhere)  # type: ignore[arg-type]
                running = asyncio.create_task(watched.run())
                await channel.until(lambda: bool(channel.of(ServerState)))
                await watched.serve(Stop())
                await running
        finally:
            await runner.cleanup()

    asyncio.run(run())
    assert seen and all(not key for host, key in seen), seen


@pytest.mark.parametrize(
    ("page", "same"),
    [
        ("http://box:9400/metrics", False),
        ("http://box/metrics", True),
        ("http://BOX/metrics", True),
        ("https://box/metrics", False),
        ("http://box.example.org/metrics", False),
        ("http://boxer/metrics", False),
        ("http://box@evil/metrics", False),
    ],
)
def test_the_origin_is_scheme_host_and_port(page: str, same: bool) -> None:
    assert same_origin(page, "http://box") is same
