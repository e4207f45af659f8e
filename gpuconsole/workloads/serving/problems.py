"""Failures of a connection to a model server, in plain words, and which of them a later request can solve."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import ssl
from typing import Literal

import aiohttp
from yarl import URL

from gpuconsole.model.text import visible

MOST_CHARACTERS = 160
PLAIN_HTTP = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")
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
TLS_PROBE_S = 1.0

Outlook = Literal["never", "refused", "later"]
"""What a later request can do. `never`: the error stays. `refused`: nothing listens yet; only the start of a server helps. `later`: the server
is busy, silent or closed the connection."""


def explain(problem: BaseException) -> str:
    """Why a server did not answer, in one line: refused, reset, unknown host name, TLS, closed, and otherwise the text of `problem`."""
    if isinstance(problem, aiohttp.ClientConnectorDNSError):
        return f"the host name {problem.host} cannot be resolved"
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        return f"the TLS certificate is not accepted: {_tls_reason(problem.certificate_error)}"
    if isinstance(problem, aiohttp.ClientSSLError):
        reason = _tls_reason(problem.os_error)
        return "the server speaks plain http: use http://" if reason in PLAIN_HTTP else f"TLS failed: {reason}"
    if isinstance(problem, aiohttp.ServerDisconnectedError):
        return "the server closed the connection without an answer"
    if isinstance(problem, aiohttp.ClientResponseError):
        if any(word in problem.message for word in TLS_RECORDS):
            return "the server speaks TLS: use https://"
        return f"not HTTP: {visible(' '.join(problem.message.split()))[:MOST_CHARACTERS]}"
    if isinstance(problem, aiohttp.ClientPayloadError):
        return "the server closed the connection in the middle of an answer"
    if isinstance(problem, aiohttp.InvalidURL):
        return f"not an address: {visible(str(problem.url))[:MOST_CHARACTERS]}"
    if isinstance(problem, TimeoutError):
        return "no answer"
    if isinstance(problem, OSError):
        cause = problem.os_error if isinstance(problem, aiohttp.ClientConnectorError) else problem
        if isinstance(cause, ConnectionResetError):  # asyncio sets no errno where the peer ends a TLS handshake
            return BY_ERRNO[errno.ECONNRESET]
        return BY_ERRNO.get(_errno(cause)) or visible(cause.strerror or str(cause) or type(cause).__name__)[:MOST_CHARACTERS]
    return visible(" ".join(str(problem).split()))[:MOST_CHARACTERS] or type(problem).__name__


def outlook(problem: BaseException) -> Outlook:
    """Whether a later request can succeed where a request failed with `problem`."""
    never = (aiohttp.ClientConnectorDNSError, aiohttp.ClientSSLError, aiohttp.ClientResponseError, aiohttp.InvalidURL)
    if isinstance(problem, never):
        return "never"
    refused = isinstance(problem, aiohttp.ClientConnectorError) and _errno(problem.os_error) == errno.ECONNREFUSED
    return "refused" if refused else "later"


async def speaks_tls(url: str) -> bool:
    """Whether the server at `url` completes a TLS handshake on the port of a plain http address. Takes at most TLS_PROBE_S."""
    address = URL(url)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the handshake alone answers the question; no data is sent
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(TLS_PROBE_S):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
        writer.transport.abort()
        return True
    return False


def _errno(problem: OSError) -> int:
    """The number of an OSError. The error of a host with several addresses has the numbers in its text only."""
    found = re.search(r"\[Errno (\d+)\]", str(problem)) if problem.errno is None else None
    return int(found.group(1)) if found else problem.errno or 0


def _tls_reason(problem: BaseException) -> str:
    """OpenSSL's name of the failure, or the reason why a certificate is not accepted."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return problem.verify_message
    return str(getattr(problem, "reason", None) or problem)
