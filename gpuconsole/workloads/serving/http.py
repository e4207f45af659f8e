"""HTTP as a client of a model server that may be anybody's: no redirects, and answers of bounded size.

A redirect would send prompts to an address that the user did not name. A compressed answer of 200 KB can take 200 MB of memory, so nobody asks for
compression; an answer that is compressed all the same is unpacked piece by piece.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from gpuconsole.model.text import visible

MOST_BYTES = 8 * 1024 * 1024
"""The largest answer that is read. The /metrics page of vLLM 0.32 has 49 KB."""
KEEP_IDLE_S = 4.0
"""Servers close idle connections (uvicorn after 5 s). A client that keeps them longer sends requests into connections that are being closed."""
SERVER_KEY = "GPUCONSOLE_SERVER_KEY"
"""The variable with the API key of a server that was started here. Without a key every user of the machine could send it requests."""
MOST_CHARACTERS = 160
PIECE_BYTES = 2**18
GZIP_OR_ZLIB = 47
"""zlib's `wbits` for a header of gzip or of zlib."""


async def connect(api_key: str) -> aiohttp.ClientSession:
    """An HTTP session without a limit of connections. `api_key`: empty for a server without one.

    Requests must name `allow_redirects=False`.
    """
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S)
    return aiohttp.ClientSession(connector=connector, headers=headers, read_bufsize=2**18, auto_decompress=False)


def api_key(options: Mapping[str, str]) -> str:
    """The API key of the server in the options of a run: of the variable that the user named, or of a server that was started here; or empty."""
    return os.environ.get(options.get("api_key_env") or SERVER_KEY, "")


def make_key(options: Mapping[str, str]) -> None:
    """Choose the API key of a server that starts here, unless the user names one: for this process and its children, in the environment."""
    os.environ.pop(SERVER_KEY, None)
    if not options.get("server_url") and not options.get("api_key_env"):
        os.environ[SERVER_KEY] = secrets.token_urlsafe(24)


async def pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body of `answer` as it arrives, in pieces of at most PIECE_BYTES where it is compressed. Raises ValueError, and aiohttp's errors."""
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise ValueError(f"the answer is compressed by {visible(encoding)[:20]}, which nobody asked for")
    unpacker = None if encoding == "identity" else zlib.decompressobj(GZIP_OR_ZLIB)
    while block := await answer.content.readany():
        if unpacker is None:
            yield block
            continue
        try:
            while block:
                yield unpacker.decompress(block, PIECE_BYTES)
                block = unpacker.unconsumed_tail
            if unpacker.eof:  # what follows is no part of the answer, and would be kept
                return
        except zlib.error:
            raise ValueError("the answer is not compressed as it says") from None


async def read_body(answer: aiohttp.ClientResponse, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole body of `answer`. Raises ValueError for a larger body, and aiohttp's errors."""
    body = bytearray()
    async for piece in pieces(answer):
        body += piece
        if len(body) > most_bytes:
            raise ValueError(f"the answer has more than {most_bytes / 2**20:g} MiB")
    return bytes(body)


async def read_json(answer: aiohttp.ClientResponse) -> Any:
    """The JSON value in the body of `answer`. Raises ValueError, and aiohttp's errors."""
    body = await read_body(answer)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None


def redirection(answer: aiohttp.ClientResponse) -> str:
    """One line that names the status and the target of a redirect; empty where `answer` is no redirect."""
    if not 300 <= answer.status < 400:
        return ""
    target = visible(answer.headers.get("Location", ""))[:MOST_CHARACTERS]
    return f"HTTP {answer.status}: redirects are not followed" + (f"; name the address itself: {target}" if target else "")
