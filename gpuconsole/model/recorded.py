"""Recorded prompts: a file with one JSON object per line, in the format of `vllm bench serve --dataset-name custom`."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import msgspec


class RecordedPrompt(msgspec.Struct, frozen=True):
    """`output_tokens`: number of output tokens to request; None: the knob decides. `shared`: number of leading characters that another
    prompt has too."""

    text: str
    output_tokens: int | None = None
    shared: int = 0


class _Message(msgspec.Struct):
    content: str
    role: str = "user"


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Message] = []
    output_tokens: int | None = None
    max_tokens: int | None = None


def parse_recorded(text: str) -> list[RecordedPrompt]:
    """Parse lines of `{"prompt": ...}` or `{"messages": [...]}`, each with an optional `output_tokens` (or `max_tokens`).

    Messages are joined to one text. Raises ValueError with a one-line message that names the line of the file.
    """
    requests: list[tuple[str, int | None]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise ValueError(f"line {number}: {problem}") from None
        prompt = read.prompt or "\n".join(f"{message.role}: {message.content}" for message in read.messages)
        tokens = read.output_tokens if read.output_tokens is not None else read.max_tokens
        if not prompt:
            raise ValueError(f'line {number}: neither "prompt" nor "messages" has a text')
        if tokens is not None and tokens < 1:
            raise ValueError(f"line {number}: output_tokens {tokens} must be 1 or more")
        requests.append((prompt, tokens))
    if not requests:
        raise ValueError("there is no prompt in it")
    shared = shared_beginnings([prompt for prompt, _ in requests])
    return [RecordedPrompt(prompt, tokens, shared[prompt]) for prompt, tokens in requests]


def shared_ratio(texts: Sequence[str]) -> float:
    """Share of the prompt text that a perfect prefix cache would hold from another prompt, 0..1."""
    shared = shared_beginnings(texts)
    return sum(shared[text] for text in texts) / sum(map(len, texts))


def shared_beginnings(texts: Sequence[str]) -> dict[str, int]:
    """For each text, the length in characters of the longest prefix that another text shares. After sorting, that other text is adjacent."""
    ordered = sorted(texts)
    shared = dict.fromkeys(ordered, 0)
    for before, other in itertools.pairwise(ordered):
        common = bisect.bisect_left(range(1, min(len(before), len(other)) + 1), True, key=lambda n: before[:n] != other[:n])
        for text in (before, other):
            shared[text] = max(shared[text], common)
    return shared
