"""The traffic of a load: prompts, and the arrival of requests from users that wait for each answer
(closed loop), or at a fixed rate (open loop)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from importlib.resources import files
from typing import Any, Literal

import aiohttp
import msgspec

from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.serving import RecordedPrompt
from gpuconsole.workloads.serving.load.answer import (
    FIRST_GUESS,
    RequestFailed,
    read_chunk,
)
from gpuconsole.workloads.serving.load.client import post_json

# --- prompts --------------------------------------------------------------------------------------

SAMPLE_CHARACTERS = 2000
LENGTHS = (80, 320)
"""Characters of the two prompts for a server that counts tokens in answers only. Both fit a small
context, with one token for each character."""
TOKENIZE_S = 5.0


class Tokenizer(msgspec.Struct, frozen=True):
    """`characters_per_token` of the sample text. `overhead`: tokens that the server adds to each
    prompt (chat template, first token).

    `max_model_len`: tokens of prompt and answer together, where the server reports the limit with a
    token count.
    """

    characters_per_token: float
    overhead: int = 0
    max_model_len: int | None = None


async def ask_tokenizer(
    session: aiohttp.ClientSession,
    url: str,
    model: str,
    sample: Callable[[int], str],
    *,
    chat: bool,
    timeout_s: float,
) -> Tokenizer:
    """The tokenizer of the server at `url`: by its `/tokenize`, otherwise by the usage of two
    requests for one token. Raises RequestFailed.

    `sample` returns a text of a length in characters. With `chat` two requests show the length of
    the chat template. Each request ends after `timeout_s` at the latest.
    """
    if not chat and (
        told := await _tokenize(
            session, url, model, sample(SAMPLE_CHARACTERS), min(TOKENIZE_S, timeout_s)
        )
    ):
        return told
    address = f"{url.rstrip('/')}/v1/{'chat/completions' if chat else 'completions'}"

    async def count(characters: int) -> int:
        text = sample(characters)
        said: dict[str, Any] = (
            {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        )
        body = {"model": model, **said, "max_tokens": 1, "temperature": 0}
        if tokens := read_chunk(await post_json(session, address, body, timeout_s)).prompt_tokens:
            return tokens
        raise RequestFailed("the answer has no count of prompt tokens")

    short, long = LENGTHS
    fewer = await count(short)
    try:
        more = await count(long)
    except RequestFailed:  # the longer prompt does not fit
        return Tokenizer(short / fewer)
    if more <= fewer:
        raise RequestFailed("it gives two prompts of different lengths the same count")
    characters_per_token = (long - short) / (more - fewer)
    return Tokenizer(characters_per_token, max(0, round(fewer - short / characters_per_token)))


async def _tokenize(
    session: aiohttp.ClientSession, url: str, model: str, text: str, timeout_s: float
) -> Tokenizer | None:
    """The answer of `/tokenize`; None where the server has none. The fields of one request: vLLM
    and SGLang, llama.cpp, TGI."""
    body = {"model": model, "prompt": text, "content": text, "inputs": text}
    try:
        told = await post_json(session, f"{url.rstrip('/')}/tokenize", body, timeout_s)
    except RequestFailed:
        return None
    named = told if isinstance(told, dict) else {"tokens": told}
    tokens, limit = named.get("tokens"), named.get("max_model_len")
    count = named.get("count", len(tokens) if isinstance(tokens, list) else 0)
    if not isinstance(count, int) or count <= 0:
        return None
    return Tokenizer(
        len(text) / count, max_model_len=limit if isinstance(limit, int) and limit > 0 else None
    )


# --- prompts of a requested length, cut from real text --------------------------------------------

Variant = Literal["plain", "salted", "cut"]
LEARNING = 0.2
FIT = 0.95
"""The part of `max_model_len` that a shortened prompt and its answer fill. The rest is for texts
with more tokens than average."""
DRAWS = 1000
"""Number of drawn lengths for the share of shortened prompts."""
BOUNDS = (0.25, 16.0)
"""Bounds for characters per token. They stop prompts from growing without limit if a server counts
wrong."""


class Prompts:
    """Windows of the King James Bible. The number of characters per token follows from the server's
    token counts.

    With `shared_prefix_ratio` this share of each prompt is the same prefix, like a system prompt.
    Probe P13 uses two variants: `salted` adds a unique prefix to each prompt, so that no cache can
    match, and `cut` removes the shared prefix.

    With `max_model_len` (tokens of prompt and answer together) a generated prompt is shortened
    until it fits. A prompt that does not fit would fail in a millisecond, and its user would send
    the next prompt: the server would then get another load than the load with these lengths.
    Recorded prompts stay as they are.
    """

    def __init__(
        self,
        seed: int,
        characters_per_token: float = FIRST_GUESS,
        recorded: Sequence[RecordedPrompt] = (),
    ) -> None:
        """`recorded`: prompts to send unchanged in a cycle instead of generated prompts."""
        self._recorded = itertools.cycle(recorded) if recorded else None
        self._text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self.characters_per_token = characters_per_token
        self.overhead = 0
        self.max_model_len: int | None = None
        self.variant: Variant = "plain"

    def next(self, knobs: Knobs) -> tuple[str, int]:
        """A prompt and the number of output tokens to request. Both lengths are uniform within
        `length_spread` around the knobs."""
        if self._recorded is not None:
            return self._next_recorded(next(self._recorded), knobs)
        wanted, output = self._lengths(self._random, knobs)
        tokens = min(wanted, self._most(output) or wanted)
        characters = max(1, round((tokens - self.overhead) * self.characters_per_token))
        shared = round(characters * float(knobs["shared_prefix_ratio"]))
        own = characters - shared
        prompt = self._varied(
            self._cut(0, shared) + self._cut(self._random.randrange(len(self._text)), own), shared
        )
        return prompt, output

    def sample(self, characters: int) -> str:
        """A text of `characters` characters, from anywhere."""
        return self._cut(self._random.randrange(len(self._text)), characters)

    def shortened_ratio(self, knobs: Knobs) -> float:
        """The share of generated prompts that are shortened to fit in `max_model_len`."""
        if self._recorded is not None:
            return 0.0
        draws = random.Random(0)
        lengths = [self._lengths(draws, knobs) for _ in range(DRAWS)]
        return sum(wanted > (self._most(output) or wanted) for wanted, output in lengths) / DRAWS

    def _next_recorded(self, recorded: RecordedPrompt, knobs: Knobs) -> tuple[str, int]:
        tokens = (
            recorded.output_tokens
            if recorded.output_tokens is not None
            else _length(self._random, int(knobs["output_tokens"]), knobs)
        )
        return self._varied(recorded.text, recorded.shared), tokens

    def _varied(self, prompt: str, shared: int) -> str:
        """The requested variant of `prompt`, whose first `shared` characters other prompts have
        too."""
        if self.variant == "cut":
            return prompt[shared:] or " "
        if self.variant == "salted":
            return (f"{self._random.getrandbits(64):016x} " + prompt)[: len(prompt)]
        return prompt

    def learn(self, prompt: str, tokens: int) -> None:
        """Update the characters per token: the server counted `tokens` in `prompt`."""
        if tokens > self.overhead:
            seen = min(BOUNDS[1], max(BOUNDS[0], len(prompt) / (tokens - self.overhead)))
            self.characters_per_token += LEARNING * (seen - self.characters_per_token)

    def _lengths(self, source: random.Random, knobs: Knobs) -> tuple[int, int]:
        """Tokens of a prompt and of its answer."""
        return _length(source, int(knobs["prompt_tokens"]), knobs), _length(
            source, int(knobs["output_tokens"]), knobs
        )

    def _most(self, output: int) -> int | None:
        """The most tokens of a prompt before an answer of `output` tokens; None without a limit,
        and where the answer alone does not fit."""
        if self.max_model_len is None or self.max_model_len <= output:
            return None
        return max(1, int(FIT * (self.max_model_len - output)))

    def _cut(self, begin: int, characters: int) -> str:
        """`characters` characters from `begin`; the text repeats at its end."""
        whole = self._text * (1 + (begin + characters) // len(self._text))
        return whole[begin : begin + characters]


def _length(source: random.Random, middle: int, knobs: Knobs) -> int:
    spread = float(knobs["length_spread"])
    return max(1, round(middle * source.uniform(1 - spread, 1 + spread)))


# --- arrivals -------------------------------------------------------------------------------------

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 1.0
TRIES_PER_S = 5.0
"""Mean number of requests per second of all users together while the server is down: few failures,
and the return of the server shows within 1 s."""


class Traffic:
    """Calls `ask(due)` for every request; `ask` returns whether the request succeeded. `knobs` may
    change at any time.

    Closed loop (`request_rate` 0): `concurrency` users; each sends the next request after the
    answer, or shortly after a failure. Open loop: `request_rate` requests per second with
    gamma-distributed intervals of mean 1/rate and shape `burstiness` (1: Poisson; lower: bursts;
    the definition of `vllm bench serve`), at most `max_concurrency` open requests.
    """

    def __init__(
        self, knobs: Knobs, ask: Callable[[float], Coroutine[None, None, bool]], seed: int
    ) -> None:
        self.knobs = knobs
        self._ask = ask
        self._random = random.Random(seed)
        self._users: dict[int, asyncio.Task[None]] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._changed = asyncio.Event()
        self._up = asyncio.Event()
        self._up.set()
        self.under_way: set[asyncio.Task[bool]] = set()

    async def run(self) -> None:
        """Run forever. Cancelling it cancels the open requests."""
        try:
            while True:
                await self._open.wait()
                if float(self.knobs["request_rate"]) > 0:
                    await self._arrivals()
                else:
                    self._start_users()
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self.cancel_open()

    def change(self, knobs: Knobs) -> None:
        """Use new knobs from the next request on."""
        self.knobs = knobs
        self._changed.set()

    def pause(self) -> None:
        """Stop sending, and cancel the open requests."""
        self._open.clear()
        self._changed.set()
        self.cancel_open()

    def resume(self) -> None:
        self._open.set()
        self._changed.set()

    def server_is_down(self) -> None:
        """Users whose requests fail now send about TRIES_PER_S requests together, until
        `server_is_up`."""
        self._up.clear()

    def server_is_up(self) -> None:
        """All users go on at once."""
        self._up.set()

    def cancel_open(self) -> None:
        for task in (*self._users.values(), *self.under_way):
            task.cancel()
        self._users.clear()

    def _start_users(self) -> None:
        self._users = {slot: user for slot, user in self._users.items() if not user.done()}
        for slot in range(int(self.knobs["concurrency"])):
            if slot not in self._users:
                self._users[slot] = asyncio.create_task(self._user(slot))

    def _has_slot(self, slot: int) -> bool:
        return (
            self._open.is_set()
            and not float(self.knobs["request_rate"])
            and slot < int(self.knobs["concurrency"])
        )

    async def _user(self, slot: int) -> None:
        backoff = FIRST_BACKOFF_S
        while self._has_slot(slot):
            if await self._launch(now()):
                backoff = FIRST_BACKOFF_S
            else:
                await self._wait_after_failure(backoff)
                backoff = min(MAX_BACKOFF_S, 2 * backoff)

    async def _wait_after_failure(self, backoff: float) -> None:
        pause_s = backoff * self._random.uniform(0.5, 1.0)
        if self._up.is_set():
            await asyncio.sleep(pause_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                max(pause_s, self._random.expovariate(TRIES_PER_S / len(self._users)))
            ):
                await self._up.wait()

    async def _arrivals(self) -> None:
        """Send requests in an open loop. Due times follow the clock, not the last sending time, so
        that lateness does not reduce the load."""
        self._changed.clear()
        due = now()
        while self._open.is_set() and (rate := float(self.knobs["request_rate"])) > 0:
            shape = float(self.knobs["burstiness"])
            due += self._random.gammavariate(shape, 1 / (rate * shape))
            if (wait := due - now()) > 0 and await self._changes_within(wait):
                continue
            while len(self.under_way) >= int(self.knobs["max_concurrency"]) and self._open.is_set():
                await asyncio.wait(self.under_way, return_when=asyncio.FIRST_COMPLETED)
            self._launch(due)
            await asyncio.sleep(0)

    async def _changes_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _launch(self, due: float) -> asyncio.Task[bool]:
        task = asyncio.create_task(self._ask(due))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task
