"""A model server that may be anybody's, as a client sees it: sessions without redirects, answers of
bounded size, and failures in plain words.

A redirect would send prompts to an address that the user did not name. A compressed answer of 200
KB can take 200 MB of memory, so nobody asks for compression; an answer that is compressed all the
same is unpacked piece by piece. Failures are those of the connection, with what a later request can
solve, and those of the server's process, from the last lines of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import re
import secrets
import ssl
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal

import aiohttp
from yarl import URL

from gpuconsole.model.encoding import has_large_number
from gpuconsole.model.text import visible

# --- sessions and answers -------------------------------------------------------------------------

MAX_BYTES = 8 * 1024 * 1024
"""The largest answer that is read. The /metrics page of vLLM 0.32 has 49 KB."""
KEEP_IDLE_S = 4.0
"""Servers close idle connections (uvicorn after 5 s). A client that keeps them longer sends
requests into connections that are being closed."""
SERVER_KEY = "GPUCONSOLE_SERVER_KEY"
"""The variable with the API key of a server that was started here. Without a key every user of the
machine could send it requests."""
OF_ANOTHER_KIND = (AttributeError, ArithmeticError, LookupError, TypeError, ValueError)
"""What reading an answer raises whose fields have other types: another program may answer."""
MAX_NAME_LENGTH = 1000
"""The longest name of a model that is taken."""
MAX_CHARACTERS = 160
PIECE_BYTES = 2**18
GZIP_OR_ZLIB = 47
"""zlib's `wbits` for a header of gzip or of zlib."""


async def connect(api_key: str) -> aiohttp.ClientSession:
    """An HTTP session without a limit of connections. `api_key`: empty for a server without one.

    Requests must name `allow_redirects=False`.
    """
    headers = {"Accept-Encoding": "identity"} | (
        {"Authorization": f"Bearer {api_key}"} if api_key else {}
    )
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S)
    return aiohttp.ClientSession(
        connector=connector, headers=headers, read_bufsize=2**18, auto_decompress=False
    )


def api_key(options: Mapping[str, str]) -> str:
    """The API key of the server in the options of a run: of the variable that the user named, or of
    a server that was started here; or empty."""
    return os.environ.get(options.get("api_key_env") or SERVER_KEY, "")


def same_origin(one: str, other: str) -> bool:
    """Return whether two addresses have the same scheme, host and port. The API key of `--url` goes
    to no other origin: there another user, or another program, may listen."""
    try:
        return URL(one).origin() == URL(other).origin()
    except ValueError:
        return False


def make_key(options: Mapping[str, str]) -> None:
    """Choose the API key of a server that starts here, unless the user names one: for this process
    and its children, in the environment."""
    os.environ.pop(SERVER_KEY, None)
    if not options.get("server_url") and not options.get("api_key_env"):
        os.environ[SERVER_KEY] = secrets.token_urlsafe(24)


async def pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body of `answer` as it arrives, in pieces of at most PIECE_BYTES where it is compressed.
    Raises ValueError, and aiohttp's errors."""
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise ValueError(
            f"the answer is compressed by {visible(encoding)[:20]}, which nobody asked for"
        )
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


async def read_body(answer: aiohttp.ClientResponse, most_bytes: int = MAX_BYTES) -> bytes:
    """The whole body of `answer`. Raises ValueError for a larger body, and aiohttp's errors."""
    body = bytearray()
    async for piece in pieces(answer):
        body += piece
        if len(body) > most_bytes:
            raise ValueError(f"the answer has more than {most_bytes / 2**20:g} MiB")
    return bytes(body)


async def read_json(answer: aiohttp.ClientResponse) -> Any:
    """The JSON value in the body of `answer`, with null for NaN and Infinity. Raises ValueError,
    also for a number that no arithmetic can take, and aiohttp's errors."""
    body = await read_body(answer)
    if has_large_number(body):
        raise ValueError("a number in the answer is out of range")
    try:
        return json.loads(body, parse_constant=lambda word: None)
    except (ValueError, RecursionError):
        raise ValueError("the answer is not JSON") from None


def redirection(answer: aiohttp.ClientResponse) -> str:
    """One line that names the status and the target of a redirect; empty where `answer` is no
    redirect."""
    if not 300 <= answer.status < 400:
        return ""
    target = visible(answer.headers.get("Location", ""))[:MAX_CHARACTERS]
    return f"HTTP {answer.status}: redirects are not followed" + (
        f"; name the address itself: {target}" if target else ""
    )


# --- failures of a connection to a model server, in plain words, and which of them a later request
# can solve ---

PLAIN_HTTP = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNEXPECTED_EOF_WHILE_READING",
    "RECORD_LAYER_FAILURE",
)
"""The reasons that OpenSSL names after a TLS handshake with a server that speaks plain http."""
TLS_RECORDS = ("\\x15\\x03", "\x15\x03")
"""The first bytes of a TLS alert. A TLS server sends an alert as the answer to plain http."""
BY_ERRNO = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "the server reset the connection",
    errno.EPIPE: "the server closed the connection without an answer",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "the network is unreachable",
    errno.ETIMEDOUT: "the host does not answer",
}
UNKNOWN_ISSUER = (18, 19, 20, 21)
"""OpenSSL's X509_V_ERR of a certificate that is signed by itself, or by an issuer that is not
known here."""
OWN_CERTIFICATE = (
    "set SSL_CERT_FILE=FILE to the file with this certificate, or with that of its issuer"
)
TLS_PROBE_S = 1.0

Outlook = Literal["never", "refused", "later"]
"""What a later request can do. `never`: the error stays. `refused`: nothing listens yet; only the
start of a server helps. `later`: the server is busy, silent or closed the connection."""


def explain(problem: BaseException) -> str:
    """Why a server did not answer, in one line: refused, reset, unknown host name, TLS, closed, and
    otherwise the text of `problem`."""
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        return f"the host name {problem.host} cannot be resolved"
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        error = problem.certificate_error
        unknown = getattr(error, "verify_code", 0) in UNKNOWN_ISSUER
        remedy = f"; {OWN_CERTIFICATE}" if unknown else ""
        return f"the TLS certificate is not accepted: {_tls_reason(error)}{remedy}"
    if isinstance(problem, aiohttp.ClientSSLError):
        reason = _tls_reason(problem.os_error)
        return (
            "the server speaks plain http: use http://"
            if reason in PLAIN_HTTP
            else f"TLS failed: {reason}"
        )
    if isinstance(problem, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    if isinstance(problem, aiohttp.ClientResponseError):
        if any(word in problem.message for word in TLS_RECORDS):
            return "the server speaks TLS: use https://"
        return f"not HTTP: {visible(' '.join(problem.message.split()))[:MAX_CHARACTERS]}"
    if isinstance(problem, aiohttp.ClientPayloadError):
        return "the server closed the connection in the middle of an answer"
    if isinstance(problem, aiohttp.InvalidURL):
        return f"not an address: {visible(str(problem.url))[:MAX_CHARACTERS]}"
    if isinstance(problem, TimeoutError):
        return "no answer"
    if isinstance(problem, OSError):
        cause = problem.os_error if isinstance(problem, aiohttp.ClientConnectorError) else problem
        # asyncio sets no errno where the peer ends a TLS handshake
        if isinstance(cause, ConnectionResetError):
            return BY_ERRNO[errno.ECONNRESET]
        return (
            BY_ERRNO.get(_errno(cause))
            or visible(cause.strerror or str(cause) or type(cause).__name__)[:MAX_CHARACTERS]
        )
    return visible(" ".join(str(problem).split()))[:MAX_CHARACTERS] or type(problem).__name__


def outlook(problem: BaseException) -> Outlook:
    """Whether a later request can succeed where a request failed with `problem`."""
    never = (
        aiohttp.ClientConnectorDNSError,
        aiohttp.ClientSSLError,
        aiohttp.ClientResponseError,
        aiohttp.InvalidURL,
    )
    if isinstance(problem, never):
        return "never"
    refused = (
        isinstance(problem, aiohttp.ClientConnectorError)
        and _errno(problem.os_error) == errno.ECONNREFUSED
    )
    return "refused" if refused else "later"


async def speaks_tls(url: str) -> bool:
    """Whether the server at `url` completes a TLS handshake on the port of a plain http address.
    Takes at most TLS_PROBE_S."""
    address = URL(url)
    context = ssl.create_default_context()
    # the handshake alone answers the question; no data is sent
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(TLS_PROBE_S):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        writer.transport.abort()
        return True
    return False


def _errno(problem: OSError) -> int:
    """The number of an OSError. The error of a host with several addresses has the numbers in its
    text only."""
    match = re.search(r"\[Errno (\d+)\]", str(problem)) if problem.errno is None else None
    return int(match.group(1)) if match else problem.errno or 0


def _tls_reason(problem: BaseException) -> str:
    """OpenSSL's name of the failure, or the reason why a certificate is not accepted."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return problem.verify_message
    return str(getattr(problem, "reason", None) or problem)


# --- the cause of a model server's end, from the last lines of its log ----------------------------

CAUSE_CHARACTERS = 300
PREFIX = re.compile(
    r"^\([\w-]+( [\w=]+)* pid=\d+\) ?|^(DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r" \[[^\]]*\] ?"
)
"""What vLLM writes before a message: the process, then level, date and place in the code."""
ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b\s*:\s*\S")
"""The last line of a traceback."""
USAGE = re.compile(r"^\S+: error: ")
"""argparse's message."""
FATAL = re.compile(
    r"(EngineCore|WorkerProc) (failed to|encountered a fatal error|hit an exception)|Worker failed"
    r" with error"
)
"""vLLM's message before the traceback of the process that failed first."""
ENGINE_FAILED = re.compile(r"EngineCore encountered a fatal error")
CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|EngineCore encountered an"
    r" issue|^(\w+\.)*(CancelledError|BrokenPipeError|EOFError)\b|cancelled$"
)
"""Errors of the processes that noticed the failure of another process."""
DIED = re.compile(
    r"engine core exited unexpectedly|Engine core proc \S+ died unexpectedly|Worker proc \S+ died"
    r" unexpectedly"
)
"""vLLM's messages about a process of its own that ended without an error."""
CHAINED = re.compile(
    r"^(The above exception was the direct cause of|During handling of the above exception)"
)
CHAIN_LINES = 3
"""Number of lines after an error within which Python announces a later error of the same
traceback."""
NOISE = re.compile(r"warn|resource_tracker", re.IGNORECASE)
DETAILS = re.compile(r"^\d+ validation errors? for \w+$")
"""pydantic's headline. The reason is on the next line."""
KILLED = (
    "its engine process exited unexpectedly without an error: it was killed, or it crashed (the"
    " kernel's out-of-memory killer does this)"
)


def cause(log: Iterable[str]) -> str:
    """The cause of the end in one line; empty for an empty log.

    vLLM has several processes. The error of the process that failed first is the cause, and the
    errors of the others follow from this error. Within one traceback the last error counts. Without
    any error: the message about a process that died, otherwise the last line that is no warning.
    """
    lines = [_message(line) for line in log]
    errors = [
        n for n, line in enumerate(lines) if _is_error(line) and not _leads_to_another(lines, n)
    ]
    marks = [n for n, line in enumerate(lines) if FATAL.search(line) and not ERROR.match(line)]
    if marks and (after := [n for n in errors if n > marks[0]]):
        return _text(lines, after[0])
    if any(DIED.search(line) for line in lines):
        return KILLED
    if errors:
        return _text(lines, errors[-1])
    rest = [line for line in lines if line and not NOISE.search(line)]
    return visible(rest[-1])[:CAUSE_CHARACTERS] if rest else ""


def is_fatal(line: str) -> bool:
    """Whether a line of the log says that the engine has failed. vLLM's API process answers for
    some seconds more, with errors."""
    return bool(DIED.search(line) or ENGINE_FAILED.search(line))


def _message(line: str) -> str:
    """`line` without the names of process, level and place."""
    line = line.rstrip()
    while match := PREFIX.match(line):
        line = line[match.end() :]
    return line.strip()


def _is_error(line: str) -> bool:
    return bool(ERROR.match(line) or USAGE.match(line)) and not CONSEQUENCE.search(line)


def _leads_to_another(lines: Sequence[str], n: int) -> bool:
    return any(CHAINED.match(line) for line in lines[n + 1 : n + 1 + CHAIN_LINES])


def _text(lines: Sequence[str], n: int) -> str:
    """The error in line `n`, with its reason where that is on the next line."""
    name, _, what = lines[n].partition(": ")
    if DETAILS.match(what) and n + 1 < len(lines):
        return visible(f"{name.rpartition('.')[2]}: {lines[n + 1].removeprefix('Value error, ')}")[
            :CAUSE_CHARACTERS
        ]
    return visible(lines[n])[:CAUSE_CHARACTERS]
