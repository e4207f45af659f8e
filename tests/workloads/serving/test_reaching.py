"""Servers at an address that cannot be used, or not yet: what is said, and how soon."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from gpuconsole.workloads.serving.http import connect
from gpuconsole.workloads.serving.servers import RemoteServer, ServerFailed
from tests.conftest import Cli
from tests.workloads.serving.test_problems import self_signed

LIMIT_S = 5.0
"""From the first request to the message."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate with its key, in one file."""
    return self_signed(tmp_path_factory.mktemp("tls"))


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    answer: Answer, port: int = 0, certificate: Path | None = None
) -> AsyncIterator[str]:
    """The address of a server whose every answer is `answer`'s."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def models(request: web.Request) -> web.Response:
    """Lists two models, and has no other address."""
    if request.path.endswith("/v1/models"):
        return web.json_response({"data": [{"id": "tiny"}, {"id": "large"}]})
    return web.Response(status=404)


async def only_completions(request: web.Request) -> web.Response:
    return web.Response(status=400 if request.path.endswith("/v1/completions") else 404)


async def silent(request: web.Request) -> web.Response:
    await asyncio.sleep(3600)
    return web.Response()


async def page(request: web.Request) -> web.Response:
    return web.Response(text="<html>welcome</html>")


async def key_is_wrong(request: web.Request) -> web.Response:
    return web.Response(status=401)


async def unavailable(request: web.Request) -> web.Response:
    return web.Response(status=503)


async def missing(request: web.Request) -> web.Response:
    return web.Response(status=404)


async def reach(url: str, model: str = "", wait_s: float = 0.0, key: str = "") -> tuple[str, float]:
    """The message of the failure (empty: the server is used), and its seconds."""
    async with await connect(key) as session:
        begun = time.monotonic()
        server = RemoteServer(lambda detail: None, url, model, wait_s)
        try:
            await server.start(session)
        except ServerFailed as problem:
            return str(problem), time.monotonic() - begun
        assert server.model
        return "", time.monotonic() - begun


def at_once(text: str, seconds: float) -> str:
    assert seconds < 1.5, f"{text}: after {seconds:.1f} s"
    return text


def test_nothing_listens() -> None:
    port = free_port()
    text = at_once(*asyncio.run(reach(f"http://127.0.0.1:{port}")))
    assert f"connection refused: nothing listens at 127.0.0.1:{port}" in text and "--wait" in text


def test_the_host_name_is_unknown_whatever_the_wait() -> None:
    text = at_once(*asyncio.run(reach("http://no-such-host.invalid:8000", wait_s=60)))
    assert "the host name no-such-host.invalid cannot be resolved" in text and "--wait" not in text


def test_tls_to_a_port_that_speaks_plain_http() -> None:
    async def ask() -> tuple[str, float]:
        async with serving(models) as url:
            return await reach(url.replace("http:", "https:"), wait_s=60)

    assert "the server speaks plain http: use http://" in at_once(*asyncio.run(ask()))


def test_plain_http_to_a_port_that_speaks_tls(certificate: Path) -> None:
    async def ask() -> tuple[str, float]:
        async with serving(models, certificate=certificate) as url:
            return await reach(url.replace("https:", "http:"), wait_s=60)

    assert "the server speaks TLS: use https://127.0.0.1:" in at_once(*asyncio.run(ask()))


def test_a_certificate_that_nobody_signed(certificate: Path) -> None:
    async def ask() -> tuple[str, float]:
        async with serving(models, certificate=certificate) as url:
            return await reach(url, wait_s=60)

    assert "self-signed certificate; set SSL_CERT_FILE=FILE to the file" in at_once(
        *asyncio.run(ask())
    )


@pytest.mark.parametrize(
    ("answer", "model", "key", "reason"),
    [
        (models, "huge", None, "does not serve the model huge: it serves tiny, large"),
        (key_is_wrong, "", None, "needs an API key (HTTP 401)"),
        (key_is_wrong, "", "secret", "rejects the API key (HTTP 401)"),
        (missing, "", None, "/v1/models answers HTTP 404"),
        (missing, "tiny", None, "/v1/models answers HTTP 404"),
        (page, "", None, "/v1/models: the answer is not JSON: not an OpenAI-compatible server"),
    ],
)
def test_a_refusal_that_lasts(answer: Answer, model: str, key: str | None, reason: str) -> None:
    async def ask() -> tuple[str, float]:
        async with serving(answer) as url:
            return await reach(url, model, wait_s=60, key=key)

    text = at_once(*asyncio.run(ask()))
    assert reason in text and "secret" not in text


@pytest.mark.parametrize(
    ("answer", "model"), [(models, "large"), (models, ""), (only_completions, "unlisted")]
)
def test_a_server_that_can_be_used(answer: Answer, model: str) -> None:
    async def ask() -> tuple[str, float]:
        async with serving(answer) as url:
            return await reach(url, model)

    assert at_once(*asyncio.run(ask())) == ""


@pytest.mark.parametrize(("model", "said"), [("", True), ("large", False)])
def test_of_several_models_the_one_that_is_asked_is_named(model: str, said: bool) -> None:
    async def ask() -> RemoteServer:
        async with serving(models) as url, await connect("") as session:
            server = RemoteServer(lambda detail: None, url, model, 0.0)
            await server.start(session)
            return server

    server = asyncio.run(ask())
    assert server.model == (model or "tiny") and len(server.notes) == said
    assert all("tiny" in note and "--model" in note and "large" in note for note in server.notes)


def test_a_server_that_accepts_and_does_not_answer_and_a_proxy_without_its_server() -> None:
    async def ask() -> list[tuple[str, float]]:
        async with serving(silent) as hangs, serving(unavailable) as proxy:
            return await asyncio.gather(reach(hangs), reach(proxy, "some-model"))

    (hangs, hangs_s), (proxy, proxy_s) = asyncio.run(ask())
    assert (
        "no answer after 4 s; --wait S waits for a server that is starting" in hangs
        and 3 < hangs_s < LIMIT_S
    )
    assert (
        "the server answers HTTP 503 after 4 s; --wait S waits" in proxy and 3 < proxy_s < LIMIT_S
    )


def test_wait_gives_a_server_time_to_start() -> None:
    port = free_port()

    async def ask() -> tuple[str, float]:
        waiting = asyncio.create_task(reach(f"http://127.0.0.1:{port}", wait_s=20))
        await asyncio.sleep(0.7)
        async with serving(models, port):
            return await waiting

    text, seconds = asyncio.run(ask())
    assert text == "" and 0.5 < seconds < LIMIT_S


def test_wait_ends() -> None:
    text, seconds = asyncio.run(reach(f"http://127.0.0.1:{free_port()}", wait_s=1.2))
    assert "connection refused" in text and "after 1 s" in text and seconds < 2


@pytest.mark.parametrize(
    "command",
    [("run", "serve-chat", "--headless", "--duration", "5"), ("quality", "--depths", "0.5")],
)
def test_the_command_ends_at_once_with_the_reason(cli: Cli, command: tuple[str, ...]) -> None:
    begun = time.monotonic()
    done = cli(
        *command, "--device", "cpu", "--url", "http://no-such-host.invalid:8000", "--model", "tiny"
    )
    assert (
        done.returncode == 1
        and "the host name no-such-host.invalid cannot be resolved" in done.stderr
    )
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--wait", "5"), "--wait needs --url"),
        (("--url", "http://a:1", "--wait", "-1"), "0 s or more"),
    ],
)
def test_a_wait_that_makes_no_sense_is_refused(
    cli: Cli, words: tuple[str, ...], reason: str
) -> None:
    done = cli("run", "serve-chat", "--headless", *words)
    assert done.returncode == 2 and reason in done.stderr
