"""M7: a hostile model server cannot use up our memory, cannot redirect our prompts, and cannot end
a worker."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TypeVar

import msgspec
import pytest
from aiohttp import web

from gpuconsole.agent.clock import now
from gpuconsole.model.serving import ServerFacts
from gpuconsole.workloads.serving.facts import ask_facts
from gpuconsole.workloads.serving.http import connect
from gpuconsole.workloads.serving.load.answer import RequestFailed
from gpuconsole.workloads.serving.load.client import Client
from gpuconsole.workloads.serving.load.quality import perplexity
from gpuconsole.workloads.serving.load.traffic import ask_tokenizer
from gpuconsole.workloads.serving.scraping import Scraper
from gpuconsole.workloads.serving.servers import ServerFailed, served_models
from gpuconsole.workloads.serving.watching import LOADED, LOADS, JsonReader, of_loaded, of_loads

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@cache
def bomb_bytes() -> bytes:
    """200 MB of JSON, compressed to 200 KB."""
    return gzip.compress(b'{"data": ["' + b"x" * 200 * 2**20 + b'"]}', 9)


def against(handler: Handler, ask: Callable[[str], Awaitable[T]]) -> T:
    """The result of `ask(url)` while a server answers every request by `handler`."""

    async def body() -> T:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            return await ask(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    return asyncio.run(body())


async def bomb(request: web.Request) -> web.Response:
    return web.Response(
        body=bomb_bytes(), headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
    )


async def models(url: str) -> str:
    async with await connect("") as session:
        try:
            return (await served_models(session, url, ""))[0]
        except ServerFailed as problem:
            return str(problem)


async def page(url: str) -> str:
    async with await connect("") as session:
        try:
            await Scraper(session, f"{url}/metrics").read()
        except ValueError as problem:
            return str(problem)
    return ""


async def facts(url: str) -> ServerFacts:
    async with await connect("") as session:
        return await ask_facts(session, url)


@pytest.mark.parametrize("ask", [models, page, facts])
def test_a_small_answer_that_unpacks_to_much_takes_no_memory(
    ask: Callable[[str], Awaitable[object]],
) -> None:
    """237 KB took 257 MB."""
    bomb_bytes()  # its own compression is not to be measured
    tracemalloc.start()
    try:
        said = against(bomb, ask)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 2**20, f"{peak / 2**20:.0f} MB"
    assert said == ServerFacts() or "more than 8 MiB" in str(said)


def test_what_follows_a_compressed_answer_is_not_kept() -> None:
    """zlib keeps what comes after the end of a stream, however much that is."""

    async def trailer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"})
        await response.prepare(request)
        await response.write(gzip.compress(b'{"data": [{"id": "small"}]}'))
        for _ in range(100):
            await response.write(b"x" * 2**20)
        return response

    tracemalloc.start()
    try:
        assert against(trailer, models) == "small"
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()


def test_a_refusal_of_many_levels_is_a_failed_request() -> None:
    async def refused(request: web.Request) -> web.Response:
        return web.Response(status=400, text="[" * 4096)

    async def request(url: str) -> str:
        async with await connect("") as session:
            client = Client(session, url, "m", chat=False, timeout_s=5.0, note=lambda text: None)
            return (await client.ask("a prompt", 6, now(), lambda new: None)).error

    assert "HTTP 400" in against(refused, request)


def test_an_honest_compressed_answer_is_read() -> None:
    async def listed(request: web.Request) -> web.Response:
        return web.Response(
            body=gzip.compress(b'{"data": [{"id": "small"}]}'), headers={"Content-Encoding": "gzip"}
        )

    assert against(listed, models) == "small"


@pytest.mark.parametrize("ask", [models, facts])
def test_an_answer_of_many_levels_ends_no_worker(ask: Callable[[str], Awaitable[object]]) -> None:
    async def deep(request: web.Request) -> web.Response:
        return web.Response(text="[" * 200_000 + "]" * 200_000, content_type="application/json")

    said = against(deep, ask)
    assert said == ServerFacts() or "the answer is not JSON" in str(said)


ODD = (
    "1" + "0" * 401, "9" * 5000, "1e308", "-1e300", "NaN", "Infinity", "[]", "{}", "[[1]]", "null",
    "true", '"x"', '"' + "9" * 400 + '"', '"' + "m" * 50_000 + '"',
)  # fmt: skip
FIELDS = (
    "id", "owned_by", "max_model_len", "meta", "size", "size_vram", "num_running_reqs",
    "token_usage", "max_total_num_tokens", "internal_states", "version",
    "default_generation_settings",
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: f"{odd[:9]} of {len(odd)}")
@pytest.mark.parametrize("honest", [True, False])
def test_an_odd_value_of_any_field_ends_no_worker(odd: str, honest: bool) -> None:
    """Overflow and types: a list of models with `max_model_len` of 401 digits ended the worker."""
    fields = ", ".join(f'"{name}": {odd}' for name in (FIELDS[2:] if honest else FIELDS))
    entry = f'{{"id": "small", {fields}}}' if honest else f"{{{fields}}}"

    async def answer(request: web.Request) -> web.Response:
        text = f'{{"data": [{entry}], "models": [{entry}], "loads": [{entry}], {fields}}}'
        return web.Response(text=text, content_type="application/json")

    async def all_of_them(url: str) -> list[object]:
        said: list[object] = [await models(url)]
        async with await connect("") as session:
            for path, parse in ((LOADS, of_loads), (LOADED, of_loaded)):
                try:
                    said.append((await JsonReader(session, url + path, "", parse).read())[0])
                except ValueError as problem:
                    said.append(str(problem))
            said.append(await ask_facts(session, url))
        return said

    for told in against(answer, all_of_them):
        assert len(msgspec.json.encode(told)) < 5000
        assert not isinstance(told, str) or "\n" not in told
        if isinstance(told, ServerFacts):
            msgspec.json.decode(msgspec.json.encode(told), type=ServerFacts)


class Elsewhere:
    """A server that sends every request to another path, and keeps what arrives there."""

    def __init__(self) -> None:
        self.arrived: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/elsewhere"):
            self.arrived.append(await request.text())
            return web.json_response(
                {"data": [{"id": "elsewhere"}], "choices": [{}], "usage": {"prompt_tokens": 3}}
            )
        return web.Response(status=307, headers={"Location": f"/elsewhere{request.path}"})


def test_no_request_follows_a_redirect() -> None:
    async def all_of_them(url: str) -> list[str]:
        said = [await models(url), await page(url)]
        assert await facts(url) == ServerFacts()
        async with await connect("") as session:
            for ask in (
                ask_tokenizer(
                    session, url, "m", lambda size: "x" * size, chat=False, timeout_s=5.0
                ),
                perplexity(session, url, "m"),
            ):
                with pytest.raises(RequestFailed, match="redirects are not followed"):
                    await ask
            client = Client(session, url, "m", chat=False, timeout_s=5.0, note=lambda text: None)
            request = await client.ask("a prompt", 6, now(), lambda new: None)
        return [*said, request.error]

    elsewhere = Elsewhere()
    told = against(elsewhere, all_of_them)
    assert elsewhere.arrived == []
    assert all(
        "HTTP 307: redirects are not followed; name the address itself: /elsewhere/" in line
        for line in told
    ), told


@pytest.mark.parametrize("number", ["1" * 401, "1e300", "-" + "9" * 350])
def test_a_number_out_of_range_on_a_page_is_one_line(number: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:num_requests_running{{model_name="m"}} {number}\n')

    assert "a number on the page is out of range" in against(answer, page)
