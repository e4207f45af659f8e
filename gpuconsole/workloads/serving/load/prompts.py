"""Prompts of a requested length, cut from real text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from importlib.resources import files
from typing import Literal

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.recorded import RecordedPrompt

Variant = Literal["plain", "salted", "cut"]
FIRST_GUESS = 4.0
"""Initial estimate of characters per token of English text, until the server reports a count."""
LEARNING = 0.2
BOUNDS = (0.25, 16.0)
"""Bounds for characters per token. They stop prompts from growing without limit if a server counts wrong."""


class Prompts:
    """Windows of the King James Bible. The number of characters per token follows from the server's token counts.

    With `shared_prefix_ratio` this share of each prompt is the same prefix, like a system prompt. Probe P13 uses two variants: `salted`
    adds a unique prefix to each prompt, so that no cache can match, and `cut` removes the shared prefix.
    """

    def __init__(self, seed: int, characters_per_token: float = FIRST_GUESS, recorded: Sequence[RecordedPrompt] = ()) -> None:
        """`recorded`: prompts to send unchanged in a cycle instead of generated prompts."""
        self._recorded = itertools.cycle(recorded) if recorded else None
        self._text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self.characters_per_token = characters_per_token
        self.variant: Variant = "plain"

    def next(self, knobs: Knobs) -> tuple[str, int]:
        """A prompt and the number of output tokens to request. Both lengths are uniform within `length_spread` around the knobs."""
        if self._recorded is not None:
            return self._next_recorded(next(self._recorded), knobs)
        characters = max(1, round(self._length(int(knobs["prompt_tokens"]), knobs) * self.characters_per_token))
        shared = round(characters * float(knobs["shared_prefix_ratio"]))
        own = characters - shared
        prompt = self._varied(self._cut(0, shared) + self._cut(self._random.randrange(len(self._text)), own), shared)
        return prompt, self._length(int(knobs["output_tokens"]), knobs)

    def _next_recorded(self, one: RecordedPrompt, knobs: Knobs) -> tuple[str, int]:
        tokens = one.output_tokens if one.output_tokens is not None else self._length(int(knobs["output_tokens"]), knobs)
        return self._varied(one.text, one.shared), tokens

    def _varied(self, prompt: str, shared: int) -> str:
        """The requested variant of `prompt`, whose first `shared` characters other prompts have too."""
        if self.variant == "cut":
            return prompt[shared:] or " "
        if self.variant == "salted":
            return (f"{self._random.getrandbits(64):016x} " + prompt)[: len(prompt)]
        return prompt

    def learn(self, prompt: str, tokens: int) -> None:
        """Update the characters per token: the server counted `tokens` in `prompt`."""
        if tokens > 0:
            seen = min(BOUNDS[1], max(BOUNDS[0], len(prompt) / tokens))
            self.characters_per_token += LEARNING * (seen - self.characters_per_token)

    def _length(self, middle: int, knobs: Knobs) -> int:
        spread = float(knobs["length_spread"])
        return max(1, round(middle * self._random.uniform(1 - spread, 1 + spread)))

    def _cut(self, begin: int, characters: int) -> str:
        """`characters` characters from `begin`; the text repeats at its end."""
        whole = self._text * (1 + (begin + characters) // len(self._text))
        return whole[begin : begin + characters]
