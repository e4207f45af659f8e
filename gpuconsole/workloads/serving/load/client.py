"""One streamed request to an OpenAI-compatible server, its times, and its fields beyond OpenAI's
API, which a server may refuse."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Set
from typing import Any

import aiohttp
import msgspec

from gpuconsole.agent.clock import now
from gpuconsole.model.serving import Request
from gpuconsole.model.text import visible
from gpuconsole.workloads.serving.http import explain, pieces, redirection

# --- requests -------------------------------------------------------------------------------------

MAX_EXTRA_TOKENS = 64
"""Tokens beyond the requested number after which the client ends a request."""
MAX_LINE_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 4096
CANNOT_CONNECT, BROKE_OFF = "cannot connect: ", "the connection broke off: "
CLOSED_S = 0.5
"""A kept connection that the server has closed fails within this time. A later failure is a failure
of the server."""
NO_REASON = "no reason given"


class RequestFailed(RuntimeError):
    """The request failed or did not finish; the message is one short line."""


def connection_problem(error: str) -> str | None:
    """The words of a failed connection in the `error` of a request; None where the request failed
    for another reason."""
    return next(
        (
            error.removeprefix(prefix)
            for prefix in (CANNOT_CONNECT, BROKE_OFF)
            if error.startswith(prefix)
        ),
        None,
    )


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Arrivals:
    """The received chunks of one request: arrival time and number of tokens of each chunk. The
    events of one read are one chunk.

    Token counts come from `usage`: from every chunk if the server reports it there
    (`continuous_usage_stats`), otherwise from the last chunk, spread evenly over the events.
    Without any usage an event counts as one token.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[float] = []
        self.tokens = 0
        self.prompt_tokens = 0
        self.finished = ""
        self._continuous = False
        self._total: int | None = None

    def add(self, chunk: _Chunk, t: float) -> int:
        """Add a chunk that arrived at `t`; returns its known number of tokens."""
        choice = chunk.choices[0] if chunk.choices else None
        usage = chunk.usage.completion_tokens if chunk.usage is not None else None
        if chunk.usage is not None and chunk.usage.prompt_tokens:
            self.prompt_tokens = chunk.usage.prompt_tokens
        if choice is not None and choice.finish_reason:
            self.finished = choice.finish_reason
        text = choice is not None and bool(
            choice.text
            or (choice.delta and (choice.delta.content or choice.delta.reasoning_content))
        )
        new = 1 if text else 0
        if usage is not None:
            self._total = usage
            if choice is not None and not self.finished:
                self._continuous = True
            if choice is not None and (self._continuous or not self.times):
                new = max(0, usage - self.tokens)
        if new and choice is not None:
            if self.times and t == self.times[-1]:
                self.counts[-1] += new
            else:
                self.times.append(t)
                self.counts.append(new)
            self.tokens += new
        return new

    def settled(self) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
        """Output tokens, gaps between chunks in seconds (all above 0), and the tokens of each chunk
        after the first."""
        gaps = tuple(
            later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)
        )
        total = self._total if self._total is not None else self.tokens
        if self._continuous or total == self.tokens or not gaps:
            return total, gaps, tuple(self.counts[1:])
        scale = max(0, total - 1) / sum(self.counts[1:])
        return total, gaps, tuple(scale * count for count in self.counts[1:])


class Client:
    """A client of one server. Extra fields that the server refuses are left out of later requests;
    `note` receives one line about them.

    `last_data_t`: the time of the last data of any answer.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        chat: bool,
        timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        self._session, self._model, self._chat, self._note = session, model, chat, note
        self._address = f"{url.rstrip('/')}/v1/{'chat/completions' if chat else 'completions'}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s)
        self._timeout_s = timeout_s
        self._received: dict[aiohttp.ClientResponse, float] = {}
        self._silent: set[aiohttp.ClientResponse] = set()
        self._refused: frozenset[str] = frozenset()
        self.last_data_t = 0.0

    @property
    def streams(self) -> int:
        """Number of requests whose answer has begun."""
        return len(self._received)

    def cancel_silent(self) -> None:
        """End the requests without data for `timeout_s`. Called at intervals.

        aiohttp's `sock_read` restarts a timer for every chunk, which takes a tenth of the CPU time
        of a token.
        """
        late = now() - self._timeout_s
        for response in [waiting for waiting, t in self._received.items() if t < late]:
            self._silent.add(response)
            response.close()

    async def ask(
        self, prompt: str, max_tokens: int, due: float, on_tokens: Callable[[int], None]
    ) -> Request:
        """Send a request; returns the finished or failed request. `due`: the due time of the
        request. `on_tokens` receives the number of tokens of each chunk."""
        arrivals, sent = Arrivals(), now()
        error = ""
        try:
            sent = await self._send(prompt, max_tokens, arrivals, on_tokens)
        except RequestFailed as problem:
            error = str(problem)
        except TimeoutError:
            error = f"no answer for {self._timeout_s:g} s"
        except aiohttp.ClientConnectorError as problem:
            error = CANNOT_CONNECT + explain(problem)
        except (aiohttp.ClientError, OSError) as problem:
            error = BROKE_OFF + explain(problem)
        total, gaps, counts = arrivals.settled()
        first, last = (
            (arrivals.times[0] - sent, arrivals.times[-1] - sent)
            if arrivals.times
            else (None, None)
        )
        return Request(
            now(),
            max(0.0, sent - due),
            first,
            last,
            arrivals.prompt_tokens,
            total,
            gaps,
            counts,
            error,
        )

    async def _send(
        self, prompt: str, max_tokens: int, arrivals: Arrivals, on_tokens: Callable[[int], None]
    ) -> float:
        """Send the request with the extra fields that the server accepts, and read it to its end;
        returns the time of sending."""
        refused: frozenset[str] = frozenset()
        while True:
            refused |= self._refused
            said = (
                {"messages": [{"role": "user", "content": prompt}]}
                if self._chat
                else {"prompt": prompt}
            )
            body = {
                "model": self._model,
                **said,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                **extra_fields(refused),
            }
            response, sent = await self._post(body)
            async with response:
                if response.status != 200:
                    async with asyncio.timeout(self._timeout_s):
                        text = await refusal_text(response)
                    about = (
                        refused_fields(EFFECTS.keys() - refused, text)
                        if response.status in (400, 422)
                        else None
                    )
                    if about:
                        refused |= about
                        continue
                    reason = redirection(response) or (
                        f"HTTP {response.status}:"
                        f" {in_one_line(text) or response.reason or NO_REASON}"
                    )
                    raise RequestFailed(reason)
                self._leave_out(refused)
                self._received[response] = now()
                try:
                    await self._follow(response, max_tokens, arrivals, on_tokens)
                except (aiohttp.ClientError, ConnectionError):
                    if response in self._silent:
                        raise TimeoutError from None
                    raise
                except ValueError as problem:  # compressed in an unknown way, or damaged
                    raise RequestFailed(str(problem)) from None
                finally:
                    del self._received[response]
                    self._silent.discard(response)
                return sent

    async def _post(self, body: dict[str, Any]) -> tuple[aiohttp.ClientResponse, float]:
        """Send a request; returns the answer and the time of sending.

        A server may close a kept connection at the moment in which the client uses it again. Such a
        request is sent once more.
        """
        again = False
        while True:
            sent = now()
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await self._session.post(
                        self._address, json=body, timeout=self._timeout, allow_redirects=False
                    ), sent
            except aiohttp.ClientConnectorError:
                raise
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                if again or now() - sent > CLOSED_S:
                    raise
                again = True

    def _leave_out(self, refused: frozenset[str]) -> None:
        """Leave out `refused` fields from now on: a request without them was accepted."""
        if new := refused - self._refused:
            self._refused |= new
            self._note(describe_refused(new))

    async def _follow(
        self,
        response: aiohttp.ClientResponse,
        max_tokens: int,
        arrivals: Arrivals,
        on_tokens: Callable[[int], None],
    ) -> None:
        pending, done = b"", False
        async for block in pieces(response):
            if not block:
                continue
            self._received[response] = self.last_data_t = t = now()
            *lines, pending = (pending + block).split(b"\n")
            if len(pending) > MAX_LINE_BYTES:
                raise RequestFailed(f"a line of more than {MAX_LINE_BYTES // 2**20} MB")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue  # comments, event names, empty lines
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    done = True
                    continue
                on_tokens(arrivals.add(_parse(payload), t))
            if arrivals.tokens > max_tokens + MAX_EXTRA_TOKENS:
                raise RequestFailed(f"{arrivals.tokens} tokens and no end, asked for {max_tokens}")
        if not arrivals.times:
            raise RequestFailed("the answer ended without a token")
        if not done and not arrivals.finished:
            raise RequestFailed("the answer broke off before its end")


def _parse(payload: bytes) -> _Chunk:
    try:
        chunk = _decode(payload)
    except (msgspec.DecodeError, RecursionError):
        raise RequestFailed(
            f"not JSON of the OpenAI API: {visible(payload[:60].decode(errors='replace'))}"
        ) from None
    if chunk.error is not None:
        raise RequestFailed(
            f"the server reports an error: {in_one_line(payload.decode(errors='replace'))}"
        )
    return chunk


async def refusal_text(response: aiohttp.ClientResponse) -> str:
    """The body of a refusal, up to MAX_ERROR_BYTES."""
    return (await response.content.read(MAX_ERROR_BYTES)).decode(errors="replace")


def in_one_line(text: str) -> str:
    """The server's reason in the body of a refusal; empty for an empty body. Known forms: OpenAI's
    `error`, FastAPI's `detail`, a plain text."""
    try:
        answer = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        answer = text
    if isinstance(answer, dict):
        answer = answer.get("error", answer.get("detail", answer))
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if isinstance(answer, dict):
        reason, where = answer.get("message", answer.get("msg", answer)), answer.get("loc")
        answer = f"{reason}: {'.'.join(map(str, where))}" if isinstance(where, list) else reason
    return visible(" ".join(str(answer).split()))[:160]


async def refusal(response: aiohttp.ClientResponse) -> str:
    """The status and the server's reason for a refusal, in one line."""
    reason = in_one_line(await refusal_text(response)) or response.reason or NO_REASON
    return redirection(response) or f"HTTP {response.status}: {reason}"


# --- the fields of a request beyond OpenAI's API, and the refusal of such a field by a server -----

EFFECTS = {
    "ignore_eos": "answers may end before the requested number of tokens",
    "continuous_usage_stats": (
        "the tokens of each chunk are estimated from the total at the end of the answer"
    ),
    "stream_options": "without usage in the stream, each chunk counts as one token",
}
"""The extra fields, each with what becomes less exact without the field. `continuous_usage_stats`
is a part of `stream_options`."""
LENGTH = re.compile(
    r"context (length|size|window)|max_model_len|max_new_tokens|model length|too"
    r" (long|large|many)|longer than|exceed|reduce the length"
)
"""The words for a length that does not fit: vLLM, SGLang, TGI and llama.cpp. Such a refusal may
repeat the request with all its fields."""
UNKNOWN = re.compile(
    r"\bextra\b|extra_forbidden|unexpected|unrecogni[sz]ed|unknown|not permitted|additional"
    r" propert|unsupported"
)
"""The words for a field that the server does not have: pydantic, TGI, llama.cpp,
`transformers serve`."""


def extra_fields(refused: frozenset[str]) -> dict[str, Any]:
    """The extra fields of a request, without the `refused` fields."""
    fields: dict[str, Any] = {} if "ignore_eos" in refused else {"ignore_eos": True}
    if "stream_options" not in refused:
        continuous = {} if "continuous_usage_stats" in refused else {"continuous_usage_stats": True}
        fields["stream_options"] = {"include_usage": True, **continuous}
    return fields


def refused_fields(sent: Set[str], text: str) -> frozenset[str]:
    """The fields among `sent` that a refusal (HTTP 400 or 422) with this `text` is about; empty
    where the refusal has another reason.

    A refusal without a name is first about the fields that only vLLM and SGLang have, then about
    all fields.
    """
    text = text.lower()
    if LENGTH.search(text):
        return frozenset()
    named = {
        field
        for field in sent
        if field in text or (field == "stream_options" and "include_usage" in text)
    }
    if "continuous_usage_stats" in named:
        named.discard("stream_options")
    if "stream_options" in named:
        named.add("continuous_usage_stats")
    if named or not UNKNOWN.search(text):
        return frozenset(named)
    return frozenset(sent & {"ignore_eos", "continuous_usage_stats"} or sent)


def describe_refused(fields: frozenset[str]) -> str:
    """One line for the user: the refused fields, and what becomes less exact."""
    shown = [
        field
        for field in EFFECTS
        if field in fields
        and not (field == "continuous_usage_stats" and "stream_options" in fields)
    ]
    return f"the server refuses {', '.join(shown)}: {'; '.join(EFFECTS[field] for field in shown)}"


# --- whether the server is down -------------------------------------------------------------------

SILENCE_S = 3.5
"""The shortest silence that is an outage: a message within 5 s needs a limit below 5 s."""
SILENCE_FACTOR = 2.0
REMEMBERED_S = 60.0
"""A silence that ends with a token is normal for this load: long prompts, compilation. For this
time the limit is SILENCE_FACTOR times that silence."""
FAILING_S = 2.0
FAILURES = 5
"""Failures in a row, over at least FAILING_S, after which every request fails. Fewer failures occur
by chance where half of the requests fail."""
STALLED_S = 1.0
"""A tick that is later than this time means that the generator itself stood still."""


class OutageTracker:
    """The state of a server from the times of tokens and failures: `since` is None while the server
    answers, otherwise `why` is one line. `failure`: the last failure since the last token.

    A failed connection without another open answer is an outage at once. The other causes are
    silence on all open requests, and failures of all requests. An outage ends with the next token.
    All times are seconds on the clock of `agent.clock`.
    """

    def __init__(self, t: float) -> None:
        self.since: float | None = None
        self.why = ""
        self._quiet_since = t
        self._silences: deque[tuple[float, float]] = deque()
        self._ticked = t
        self._failing_since: float | None = None
        self._failures = 0
        self.failure = ""

    def begin(self, t: float) -> None:
        """Forget all that was: the load begins, or begins again after a pause."""
        self.since, self.why = None, ""
        self._forget_failures()
        self._quiet_since = self._ticked = t

    def opened(self, t: float) -> None:
        """A request was sent while no request was open: silence begins here."""
        self._quiet_since = t

    def data(self, t: float) -> None:
        """Data without a token arrived, for example a comment that keeps the connection alive."""
        self._quiet_since = max(self._quiet_since, t)

    def token(self, t: float) -> bool:
        """A token arrived. Returns whether an outage ends."""
        silence, self._quiet_since = t - self._quiet_since, t
        if silence * SILENCE_FACTOR > SILENCE_S and connection_problem(self.failure) is None:
            self._silences.append((t, silence))
        if self._failures:
            self._forget_failures()
        ended = self.since is not None
        if ended:
            self.since, self.why = None, ""
        return ended

    def failed(self, t: float, error: str, streams: int) -> None:
        """A request failed with `error` while `streams` other answers were arriving."""
        if self._failing_since is None:
            self._failing_since = t
        self._failures += 1
        self.failure = error
        if not streams and (problem := connection_problem(error)):
            self._down(problem, self._failing_since)

    def failing_s(self, t: float) -> float:
        """Seconds since the first failure after the last token; 0 without such a failure."""
        return t - self._failing_since if self._failing_since is not None else 0.0

    def tick(
        self, t: float, waiting: int, oldest: float, streams: int, *, patient: bool = False
    ) -> None:
        """Decide anew. `waiting` requests are open, the first of them since `oldest`; `streams` of
        them receive an answer.

        `patient`: silence is no outage, because a probe changes the load.
        """
        stood, self._ticked = t - self._ticked, t
        if stood > STALLED_S:  # what arrived in this time is not read yet
            self._quiet_since += stood
            oldest += stood
        if patient:
            self._quiet_since = t
        silence = t - self._quiet_since
        silent = waiting > 0 and silence > self._limit(t)
        broken = connection_problem(self.failure) if self._failures and not streams else None
        if broken:
            self._down(broken, self._failing_since)
        elif self._all_fail(t) and (silent or not waiting or t - oldest < FAILING_S):
            self._down(f"every request fails: {self.failure}", self._failing_since)
        elif silent:
            self._down(
                (
                    f"{waiting} {'request waits' if waiting == 1 else 'requests wait'} without an"
                    " answer"
                ),
                self._quiet_since,
            )

    def _all_fail(self, t: float) -> bool:
        return self._failures >= FAILURES and self.failing_s(t) > FAILING_S

    def _forget_failures(self) -> None:
        self._failing_since, self._failures, self.failure = None, 0, ""

    def _limit(self, t: float) -> float:
        """The longest normal silence in seconds."""
        while self._silences and t - self._silences[0][0] > REMEMBERED_S:
            self._silences.popleft()
        return max(
            SILENCE_S, SILENCE_FACTOR * max((silence for _, silence in self._silences), default=0.0)
        )

    def _down(self, why: str, since: float | None) -> None:
        self.why = why
        if self.since is None:
            self.since = since
