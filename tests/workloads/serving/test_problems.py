"""The words for a connection that fails, from real sockets."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from gpuconsole.workloads.serving.http import explain

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def refuses_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.close()


async def closes_in_the_middle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    writer.close()


async def sends_a_tls_alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"\x15\x03\x01\x00\x02\x02\x46\r\n")
    writer.close()


async def speaks_ssh(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    writer.close()


def words(
    scheme: str,
    handler: Handler | None,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> str:
    """The words for a request to a server of one kind; without a handler no server listens."""

    async def ask() -> str:
        server = await asyncio.start_server(handler or closes, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        if handler is None:
            server.close()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{scheme}://{host}:{port}/", json={}) as answer,
            ):
                await answer.read()
            return "answered"
        except (aiohttp.ClientError, OSError) as problem:
            return explain(problem)
        finally:
            server.close()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("scheme", "handler", "expected"),
    [
        ("http", None, "connection refused"),
        ("https", refuses_http, "the server speaks plain http: use http://"),
        ("http", sends_a_tls_alert, "the server speaks TLS: use https://"),
        ("http", closes, "the server closed the connection without an answer"),
        ("https", closes, "the server reset the connection"),
        (
            "http",
            closes_in_the_middle,
            "the server closed the connection in the middle of an answer",
        ),
        ("http", speaks_ssh, "not HTTP: Bad status line"),
    ],
)
def test_a_failed_connection_has_plain_words(
    scheme: str, handler: Handler | None, expected: str
) -> None:
    assert words(scheme, handler).startswith(expected)


def test_a_host_name_that_nobody_has() -> None:
    assert (
        words("http", closes, host="no-such-host.invalid")
        == "the host name no-such-host.invalid cannot be resolved"
    )


def test_a_certificate_that_nobody_signed(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path))
    assert (
        words("https", closes, tls=context)
        == "the TLS certificate is not accepted: self-signed certificate; "
        "set SSL_CERT_FILE=FILE to the file with this certificate, or with that of its issuer"
    )


def self_signed(folder: Path) -> Path:
    """A file with a key and its certificate."""
    file, openssl = folder / "both.pem", shutil.which("openssl")
    if openssl is None:
        pytest.skip("the program openssl is not installed")
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    subprocess.run(
        [*command, "-keyout", str(file), "-out", str(folder / "certificate.pem")],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + (folder / "certificate.pem").read_text())
    return file
