"""The answer to one request: its events are read leniently, and its tokens and times follow from
them.

Servers and gateways differ in the form of a chunk. A field that is not needed, or that has an
unusual type, never fails a request. What the server says about a failure always fails it.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from gpuconsole.model.text import visible

FIRST_GUESS = 4.0
"""Characters per token of English text, until the server reports a count."""
NO_REASON = "no reason given"
NO_TOKEN = "the answer ended without a token"
BROKE_OFF_EARLY = "the answer broke off before its end"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""The longest line of an answer, and the largest answer that is no stream."""
MAX_CHARACTERS = 160
MAX_LINES = 256
"""The most lines of data in one event: each is tried as the end of a value."""
SHOWN_BYTES = 60


class RequestFailed(RuntimeError):
    """The request failed or did not finish; the message is one short line."""


# --- what a server says about a failure -----------------------------------------------------------

TAGS = re.compile(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>")
REASONS = ("error", "errors", "detail", "message", "msg", "error_message")
"""Where a server writes its reason: OpenAI, FastAPI and gateways."""


def in_one_line(text: str) -> str:
    """The server's reason in the body of a refusal; empty for an empty body. Known forms: the
    fields in REASONS at any depth, a page of HTML, a plain text."""
    decoded = _decode(text.encode())
    reason = text if decoded is None else _reason(decoded)
    if re.match(r"(?i)\s*<(!doctype|html|head|body)\b", reason):
        reason = TAGS.sub(" ", reason)
    return visible(" ".join(reason.split()))[:MAX_CHARACTERS]


def _reason(said: Any) -> str:
    if isinstance(said, list) and said:
        return _reason(said[0])
    if not isinstance(said, dict):
        return str(said)
    inner = next((said[name] for name in REASONS if said.get(name)), None)
    reason = str(said) if inner is None else _reason(inner)
    where = said.get("loc")
    return f"{reason}: {'.'.join(map(str, where))}" if isinstance(where, list) else reason


def _decode(data: bytes) -> Any:
    """The JSON value of `data`; None where `data` is no JSON. NaN and damaged characters pass."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            return json.loads(data.decode(errors="replace"))
        except (ValueError, RecursionError):
            return None


# --- the events of a body -------------------------------------------------------------------------


class Body:
    """Splits the body of an answer into JSON values: server-sent events, or one JSON value in place
    of them.

    An event may have several lines of data, and several events may lack the empty line between
    them: a value is complete as soon as its lines are JSON. Raises RequestFailed for an event that
    is an error, for data that is not JSON, and for a body that is neither.
    """

    def __init__(self) -> None:
        self.done = False
        """Whether the server has said that the answer is complete."""
        self._first = True
        self._ended_in_cr = False
        self._pending = b""
        self._held = b""  # lines of data that are not a JSON value yet
        self._said = b""  # the data of the present event
        self._lines = 0
        self._is_error = False
        self._other = b""  # lines that are no part of an event
        self._has_events = False

    def feed(self, block: bytes) -> list[Any]:
        """The values that `block` completes."""
        if self._first and block:
            self._first, block = False, block.removeprefix(b"\xef\xbb\xbf")
        if self._ended_in_cr:
            block = block.removeprefix(b"\n")
        self._ended_in_cr = block.endswith(b"\r")
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._pending = (self._pending + block).split(b"\n")
        if len(self._pending) + len(self._said) + len(self._other) > MAX_BODY_BYTES:
            raise RequestFailed(f"a line of more than {MAX_BODY_BYTES // 2**20} MB")
        return [value for line in lines if (value := self._read(line)) is not None]

    def end(self) -> list[Any]:
        """The values that the end of the body completes."""
        last, self._pending = self._pending, b""
        values = [value for value in (self._read(last),) if value is not None]
        if self._held and not self._is_error:
            raise RequestFailed(BROKE_OFF_EARLY)
        self._read(b"")
        if self._has_events or not self._other.strip():
            return values
        if isinstance(whole := _decode(self._other), dict):
            self.done = True
            return [whole]
        words = in_one_line(self._other.decode(errors="replace")) or NO_REASON
        raise RequestFailed(f"the answer is no answer of the OpenAI API: {words}")

    def _read(self, line: bytes) -> Any:
        """The value that `line` completes, or None."""
        if not line:
            if self._held or self._is_error:
                self._end_event()
            self._said = b""
            return None
        name, _, data = line.partition(b":")
        if name == b"data":
            return self._read_data(data.strip())
        if name == b"event":
            self._is_error = b"error" in data.lower()
        elif name not in (b"", b"id", b"retry"):
            self._other += line + b"\n"
        return None

    def _read_data(self, data: bytes) -> Any:
        if data == b"[DONE]":
            self._end_event()
            self.done = self._has_events = True
            return None
        if self._held or self._is_error:
            self._said += b"\n" + data
        else:
            self._said, self._lines = data, 0
        self._lines += 1
        if self._is_error or not data:
            return None
        self._held = self._said
        value = _decode(self._held) if self._lines <= MAX_LINES else None
        if value is not None:
            self._held, self._has_events = b"", True
        return value

    def _end_event(self) -> None:
        said, is_error, held = self._said, self._is_error, self._held
        self._said, self._is_error = b"", False
        if is_error:
            raise RequestFailed(_reported(said))
        if held:
            raise RequestFailed(_not_of_the_api(held))


def _reported(said: bytes) -> str:
    return f"the server reports an error: {in_one_line(said.decode(errors='replace')) or NO_REASON}"


def _not_of_the_api(said: bytes) -> str:
    return f"not JSON of the OpenAI API: {visible(said[:SHOWN_BYTES].decode(errors='replace'))}"


# --- one chunk ------------------------------------------------------------------------------------

NOT_SPOKEN = frozenset(
    {
        "role", "name", "id", "type", "index", "object", "model", "format", "status", "signature",
        "created", "provider", "provider_specific_fields",
    }
)  # fmt: skip
"""Fields of a message that are not text of the model. All others are: servers name reasoning and
calls of tools in several ways."""
OF_PROMPT = ("prompt_tokens", "input_tokens", "prompt_n")
OF_ANSWER = ("completion_tokens", "output_tokens", "predicted_n")
"""Counts of tokens in `usage` (OpenAI), and in `timings` (llama.cpp)."""


class Chunk(NamedTuple):
    """What is needed of one chunk. `characters`: of the text in it. `sequences`: how many answers
    the server gives at once; 0 for a chunk without a choice. `tokens`: the output tokens so far, by
    the server; None where it does not say."""

    characters: int
    sequences: int
    finish: str
    prompt_tokens: int
    tokens: float | None


def read_chunk(value: Any) -> Chunk:
    """The chunk in a JSON value. Raises RequestFailed for an error of the server, and where `value`
    is no object."""
    if not isinstance(value, dict):
        raise RequestFailed(_not_of_the_api(str(value).encode()))
    if _is_error(value):
        raise RequestFailed(_reported(json.dumps(value).encode()))
    choices = value.get("choices")
    characters, sequences, finish, prompt = 0, 0, "", 0
    tokens: float | None = None
    if value.get("usage") or value.get("timings"):
        prompt, tokens = _counts(value)
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        if choice.get("error"):
            raise RequestFailed(_reported(json.dumps(choice).encode()))
        characters += _characters(
            choice.get("text") or choice.get("delta") or choice.get("message")
        )
        index = choice.get("index")
        sequences = max(sequences, 1 + int(_number(index) or 0) if index else 1)
        if reason := choice.get("finish_reason"):
            finish = _finish(reason)
        if tokens is None and choice.get("usage"):
            prompt, tokens = _counts(choice)
    return Chunk(characters, sequences, finish, prompt, tokens)


def _is_error(value: Mapping[str, Any]) -> bool:
    """Whether an event is an error: it says so, or it has a reason in place of an answer."""
    if value.get("error") or value.get("object") == "error" or value.get("type") == "error":
        return True
    return "choices" not in value and "usage" not in value and any(map(value.get, REASONS))


def _counts(said: Mapping[str, Any]) -> tuple[int, float | None]:
    """The tokens of the prompt, 0 where they are not told, and those of the answer so far."""
    prompt: int = 0
    tokens: float | None = None
    usage = said.get("usage")
    if isinstance(usage, dict):  # the usual form, which each token of vLLM has
        prompt, tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens")
        if type(prompt) is int and type(tokens) is int and prompt >= 0 and tokens >= 0:
            return prompt, tokens
        prompt, tokens = 0, None
    for counts in (usage, said.get("timings")):
        if isinstance(counts, dict):
            prompt = prompt or int(_first(counts, OF_PROMPT) or 0)
            tokens = _first(counts, OF_ANSWER) if tokens is None else tokens
            # llama.cpp counts what its cache holds apart
            prompt += int(_number(counts.get("cache_n")) or 0) if "prompt_n" in counts else 0
    return prompt, tokens


def _first(counts: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        if name in counts and (number := _number(counts[name])) is not None:
            return number
    return None


def _characters(said: Any) -> int:
    """The characters of text in a text, a message, a list of parts, or a call of a tool."""
    if isinstance(said, str):
        return len(said)
    if isinstance(said, list):
        return sum(map(_characters, said))
    if not isinstance(said, dict):
        return 0
    if "arguments" in said:  # a call of a tool
        return _characters(said["arguments"]) + _characters(said.get("name"))
    most = 0  # one text may stand in two fields: `reasoning` and `reasoning_content`
    for name, part in said.items():
        if part and name not in NOT_SPOKEN:
            most = max(most, _characters(part))
    return most


def _finish(said: Any) -> str:
    """The reason of the end. SGLang's own form is an object with a type and a message."""
    if isinstance(said, dict):
        words = [str(said[name]) for name in ("type", "reason", "message") if said.get(name)]
        return ": ".join(words) or "an object"
    return str(said) if said else ""


def _number(said: Any) -> float | None:
    """A count of 0 or more, whatever its type; None where it is none."""
    if type(said) is int and said >= 0:
        return said
    try:
        number = float(said) if isinstance(said, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf and not isinstance(said, bool) else None


# --- tokens and times -----------------------------------------------------------------------------

WHOLE = frozenset(
    {
        "stop", "length", "tool_calls", "function_call", "tool_use", "eos", "eos_token",
        "stop_sequence", "stop_token", "end_turn", "max_tokens", "model_length",
    }
)  # fmt: skip
"""The reasons with which a complete answer ends."""
BROKEN = re.compile(r"abort|error|cancel|fail|filter|timeout")
"""Reasons that are a failure whatever the number of tokens. Any other reason beyond WHOLE is one
where the answer has fewer tokens than the request asked for."""
FEW_TOKENS = 4
AT_ONCE_S, AT_ONCE_EACH_S, AT_ONCE_RATIO = 0.002, 0.0002, 0.05
"""An answer of more than FEW_TOKENS tokens comes in one piece where all come in AT_ONCE_S, or in
AT_ONCE_EACH_S each (no model decodes 5000 tokens a second for one request), and in a small part of
its whole time."""
TEXT, EMPTY, END = range(3)
"""What a chunk with a choice has: text; nothing; nothing and the reason of the end."""


class Settled(NamedTuple):
    """Output tokens; the times of the chunks that have tokens, with their tokens. `estimated`:
    neither the server nor the end of the answer tells the number."""

    tokens: int
    estimated: bool
    times: list[float]
    counts: list[float]


class Arrivals:
    """The chunks of one answer. Chunks of one read count as one chunk.

    The server's own counts decide: of every chunk where all have one, otherwise the last one,
    spread over the chunks. Without any count an answer that ended by its length has the tokens that
    it was asked for, and another has those that its text makes probable.
    """

    def __init__(self, tokens_per_chunk: float = 1.0) -> None:
        """`tokens_per_chunk`: of the answers before."""
        self.prompt_tokens = 0
        self.finished = ""
        self.characters = self.texts = self.sequences = 0
        self.told = 0.0
        """The tokens that `add` has returned."""
        self.at_least = 0.0
        """The tokens that are certain before the end: a chunk with text has one."""
        self._tokens_per_chunk = tokens_per_chunk
        self._total: float | None = None
        self._chunks: list[tuple[float, int, float | None]] = []

    def add(self, chunk: Chunk, t: float) -> float:
        """Add a chunk that arrived at `t`; returns its probable number of tokens."""
        self.prompt_tokens = chunk.prompt_tokens or self.prompt_tokens
        self.finished = chunk.finish or self.finished
        if chunk.tokens is not None:
            self._total = chunk.tokens
        if not chunk.sequences:
            return 0.0
        kind = TEXT if chunk.characters else END if chunk.finish else EMPTY
        if kind == TEXT and chunk.tokens is None:
            self._total = None  # a count before this text is out of date
        self._chunks.append((t, kind, chunk.tokens))
        self.characters += chunk.characters
        self.texts += kind == TEXT
        self.sequences = max(self.sequences, chunk.sequences)
        self.at_least = max(self.at_least, float(self.texts), chunk.tokens or 0.0)
        if chunk.tokens is not None:
            new = max(0.0, chunk.tokens - self.told)
        else:
            new = self._tokens_per_chunk if kind == TEXT else 0.0
        self.told += new
        return new

    @property
    def counted(self) -> bool:
        """Whether the server has counted the tokens."""
        return bool(self._total)

    def problem(self, asked: int) -> str:
        """Why the answer of at most `asked` tokens is not whole; empty where it is."""
        reason = self.finished.partition(":")[0].lower()
        short = (self._total or self.told) < asked
        if reason and reason not in WHOLE and (short or BROKEN.search(reason)):
            said = visible(" ".join(self.finished.split()))[:MAX_CHARACTERS]
            return f"the server ended the answer early: finish_reason {said}"
        return "" if self.texts else NO_TOKEN

    def settled(self, asked: int, characters_per_token: float) -> Settled:
        """Tokens and times of the answer, after its last chunk."""
        if not self.texts:
            return Settled(0, False, [], [])
        estimated, most = False, float(asked * self.sequences)
        counts = self._counted(most)
        if counts is None:
            total = self._total
            if not total and self.finished.lower() == "length" and self.texts <= most:
                total = most
            elif not total:
                estimated = True
                total = max(float(self.texts), round(self.characters / characters_per_token))
            counts = self._spread(total)
        times: list[float] = []
        merged: list[float] = []
        for (t, _, _), count in zip(self._chunks, counts, strict=True):
            if count <= 0:
                continue
            if times and t == times[-1]:
                merged[-1] += count
            else:
                times.append(t)
                merged.append(count)
        return Settled(round(sum(counts)), estimated, times, merged)

    def _counted(self, most: float) -> list[float] | None:
        """The tokens of each chunk by the server's count in it; None where a chunk with text has no
        count, the first has 0, or the last count says that more tokens came. `most`: the tokens
        that were asked for."""
        told = [tokens for _, kind, tokens in self._chunks if kind == TEXT]
        if None in told or not self._total or not told[0]:
            return None
        alone = [(tokens or 0.0) if kind == TEXT else 0.0 for _, kind, tokens in self._chunks]
        grown, before = [], 0.0
        for _, _, tokens in self._chunks:
            now = before if tokens is None else tokens
            grown.append(now - before if now >= before else now)  # a lower count begins again
            before = now
        constant = set(told) == {self._total} and sum(alone) <= most
        if sum(alone) == self._total or constant:
            return alone  # each count is of its chunk alone
        return grown if sum(grown) >= self._total else None

    def _spread(self, total: float) -> list[float]:
        """`total` tokens over the chunks: one for the first, which a server sends as soon as it has
        it, and the same for each other.

        Chunks without text count where there are more tokens than chunks with text: tokens may be
        a part of a character, or hidden. So does the end, where it alone is missing.
        """
        first = next(n for n, (_, kind, _) in enumerate(self._chunks) if kind == TEXT)
        empty = sum(kind == EMPTY for _, kind, _ in self._chunks[first:])
        last = EMPTY if total > self.texts else TEXT
        if total == self.texts + empty + 1:
            last = END
        has = [n >= first and kind <= last for n, (_, kind, _) in enumerate(self._chunks)]
        others = sum(has) - 1
        each = (total - 1) / others if others else 0.0
        counts = [each if counted else 0.0 for counted in has]
        counts[first] = 1.0 if others else total
        return counts


def in_one_piece(tokens: int, times: list[float], sent: float) -> bool:
    """Whether an answer of `tokens` tokens was held back until it was whole."""
    span, whole = times[-1] - times[0], times[-1] - sent
    return (
        tokens > FEW_TOKENS
        and span <= max(AT_ONCE_S, AT_ONCE_EACH_S * (tokens - 1))
        and span <= AT_ONCE_RATIO * whole
    )


def gaps_between(times: list[float]) -> tuple[float, ...]:
    """The seconds between the chunks."""
    return tuple(later - earlier for earlier, later in itertools.pairwise(times))
