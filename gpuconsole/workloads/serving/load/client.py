"""One streamed request to an OpenAI-compatible server, its times, and its fields beyond OpenAI's
API, which a server may refuse."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable, Set
from typing import Any

import aiohttp

from gpuconsole.agent.clock import now
from gpuconsole.model.serving import Request
from gpuconsole.workloads.serving.http import explain, pieces, read_json, redirection
from gpuconsole.workloads.serving.load.answer import (
    BROKE_OFF_EARLY,
    FIRST_GUESS,
    NO_REASON,
    Arrivals,
    Body,
    RequestFailed,
    gaps_between,
    in_one_line,
    in_one_piece,
    read_chunk,
)

# --- requests -------------------------------------------------------------------------------------

MAX_EXTRA_TOKENS = 64
"""Tokens beyond the requested number after which the client ends a request."""
MAX_ERROR_BYTES = 4096
CANNOT_CONNECT, BROKE_OFF = "cannot connect: ", "the connection broke off: "
CLOSED_S = 0.5
"""A kept connection that the server has closed fails within this time. A later failure is a failure
of the server."""
END_S = 0.05
"""After an answer its connection has this time to end. A new connection serves the next request
otherwise."""
SHORT_AFTER, SHORT_RATIO = 5, 0.8
"""So many answers with less than this share of the tokens asked for are reported."""
NO_COMPLETIONS = re.compile(
    r"chat|not support|unsupported|not (found|implemented|available|allowed)"
)
"""The words with which a server that only chats refuses a completion by HTTP 400 or 422."""


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


class Client:
    """A client of one server. `note` receives one line about each thing that makes figures less
    exact: extra fields that the server refuses, which later requests leave out; answers without
    token counts; answers that are shorter than asked.

    `last_data_t`: the time of the last data of any answer. `characters_per_token`: of answers, as
    far as they are known, otherwise of prompts.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        *,
        chat: bool | None,
        timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        """`chat`: None asks for completions, and for chats where the server has only those."""
        self._session, self._model, self._note = session, model, note
        self._url, self._chat = f"{url.rstrip('/')}/v1/", chat
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s)
        self._timeout_s = timeout_s
        self._received: dict[aiohttp.ClientResponse, float] = {}
        self._silent: set[aiohttp.ClientResponse] = set()
        self._refused: frozenset[str] = frozenset()
        self._noted: set[str] = set()
        self._answers = self._tokens = self._asked = 0
        self._tokens_per_chunk = 1.0
        self.characters_per_token = FIRST_GUESS
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
        self, prompt: str, max_tokens: int, due: float, on_tokens: Callable[[float], None]
    ) -> Request:
        """Send a request; returns the finished or failed request. `due`: the due time of the
        request. `on_tokens` receives the probable number of tokens of each chunk, and at the end
        the difference to the known number."""
        arrivals, sent = Arrivals(self._tokens_per_chunk), now()
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
        answer = arrivals.settled(max_tokens, self.characters_per_token)
        first: float | None = None
        last: float | None = None
        gaps, counts = gaps_between(answer.times), tuple(answer.counts[1:])
        if answer.times:
            first, last = answer.times[0] - sent, answer.times[-1] - sent
            if in_one_piece(answer.tokens, answer.times, sent):
                first, gaps, counts = None, (), ()
        if not error:
            on_tokens(answer.tokens - arrivals.told)
            self._learn(arrivals, answer.tokens, max_tokens, estimated=answer.estimated)
        return Request(
            now(),
            max(0.0, sent - due),
            first,
            last,
            arrivals.prompt_tokens,
            answer.tokens,
            gaps,
            counts,
            error,
        )

    def _learn(self, arrivals: Arrivals, tokens: int, asked: int, *, estimated: bool) -> None:
        """What a whole answer shows about the answers of this server."""
        self._tokens_per_chunk = tokens / arrivals.texts
        if not estimated:
            self.characters_per_token = max(1, arrivals.characters) / tokens
        if not arrivals.counted and "stream_options" not in self._refused:
            self._note_once(
                "counts",
                "the server does not count the tokens of its answers (no usage): an answer that"
                " ends by its length has those that were asked for, any other is estimated from"
                f" its text, {self.characters_per_token:.1f} characters per token",
            )
        if arrivals.sequences > 1:
            self._note_once(
                "sequences",
                f"the server gives {arrivals.sequences} answers to a request: their tokens count"
                " together",
            )
        self._answers += 1
        self._tokens += tokens
        self._asked += asked
        if self._answers >= SHORT_AFTER and self._tokens < SHORT_RATIO * self._asked:
            self._note_once(
                "short",
                f"answers end early: {self._tokens / self._answers:.0f} of"
                f" {self._asked / self._answers:.0f} tokens, mean of {self._answers} answers"
                + ("" if "ignore_eos" in self._refused else ", although ignore_eos was asked for"),
            )

    def _note_once(self, subject: str, text: str) -> None:
        if subject not in self._noted:
            self._noted.add(subject)
            self._note(text)

    async def _send(
        self, prompt: str, max_tokens: int, arrivals: Arrivals, on_tokens: Callable[[float], None]
    ) -> float:
        """Send the request with the extra fields that the server accepts, and read it to its end;
        returns the time of sending."""
        refused: frozenset[str] = frozenset()
        no_completions = ""
        while True:
            refused |= self._refused
            chat = bool(self._chat or no_completions)
            said = (
                {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
            )
            body = {
                "model": self._model,
                **said,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                **extra_fields(refused),
            }
            response, sent = await self._post("chat/completions" if chat else "completions", body)
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
                    if self._chat is None and not no_completions and lacks(response.status, text):
                        no_completions = reason
                        continue
                    raise RequestFailed(no_completions or reason)
                self._leave_out(refused)
                if self._chat is None:
                    self._choose(no_completions)
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

    def _choose(self, no_completions: str) -> None:
        """Keep to the API that has answered."""
        self._chat = bool(no_completions)
        if no_completions:
            self._note_once(
                "chat",
                f"the server takes no completions ({no_completions}): requests go to"
                " /v1/chat/completions",
            )

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[aiohttp.ClientResponse, float]:
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
                        self._url + path, json=body, timeout=self._timeout, allow_redirects=False
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
        on_tokens: Callable[[float], None],
    ) -> None:
        body, t, blocks = Body(), now(), pieces(response)
        async for block in blocks:
            if not block:
                continue
            self._received[response] = self.last_data_t = t = now()
            for value in body.feed(block):
                on_tokens(arrivals.add(read_chunk(value), t))
            most = max(1, arrivals.sequences) * max_tokens + MAX_EXTRA_TOKENS
            if arrivals.at_least > most:
                raise RequestFailed(
                    f"{arrivals.at_least:.0f} tokens and no end, asked for {max_tokens}"
                )
            if body.done:
                break
        if body.done:  # a connection that ends in time can be used again
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                async with asyncio.timeout(END_S):
                    async for _ in blocks:
                        pass
        for value in body.end():
            on_tokens(arrivals.add(read_chunk(value), t))
        if problem := arrivals.problem(max_tokens):
            raise RequestFailed(problem)
        if not body.done and not arrivals.finished:
            raise RequestFailed(BROKE_OFF_EARLY)


def lacks(status: int, text: str) -> bool:
    """Whether a refusal with this `status` and `text` says that the server has no such API."""
    return status in (404, 405, 501) or (
        status in (400, 422) and bool(NO_COMPLETIONS.search(text.lower()))
    )


async def refusal_text(response: aiohttp.ClientResponse) -> str:
    """The body of a refusal, up to MAX_ERROR_BYTES."""
    return (await response.content.read(MAX_ERROR_BYTES)).decode(errors="replace")


async def refusal(response: aiohttp.ClientResponse) -> str:
    """The status and the server's reason for a refusal, in one line."""
    reason = in_one_line(await refusal_text(response)) or response.reason or NO_REASON
    return redirection(response) or f"HTTP {response.status}: {reason}"


async def post_json(
    session: aiohttp.ClientSession, address: str, body: dict[str, Any], timeout_s: float
) -> Any:
    """Return the JSON answer to a request without streaming. Raises RequestFailed."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(address, json=body, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise RequestFailed(await refusal(response))
            return await read_json(response)
    except TimeoutError:
        raise RequestFailed(f"no answer for {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise RequestFailed(explain(problem)) from None


# --- the fields of a request beyond OpenAI's API, and the refusal of such a field by a server -----

EFFECTS = {
    "ignore_eos": "answers may end before the requested number of tokens",
    "continuous_usage_stats": (
        "the tokens of each chunk are estimated from the total at the end of the answer"
    ),
    "stream_options": (
        "without usage in the stream, the tokens of an answer are those that were asked for, or an"
        " estimate from its text"
    ),
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
