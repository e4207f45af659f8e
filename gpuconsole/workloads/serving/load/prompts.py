"""Prompts of a wanted length, cut from real text."""

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
"""Characters per token of English in the usual vocabularies, until the server's own count says better."""
LEARNING = 0.2
BOUNDS = (0.25, 16.0)
"""No vocabulary is outside of these; a server that counts wrong must not make prompts grow for ever."""


class Prompts:
    """Windows of the King James Bible. How many characters make a token is learnt from what the server counts.

    With `shared_prefix_ratio` each prompt begins with the same text, for that share of its length: a system prompt. For probe P13 there
    are two variants of them: `salted`, the same but for a beginning of its own, so that no cache knows it, and `cut`, without what is shared.
    """

    def __init__(self, seed: int, characters_per_token: float = FIRST_GUESS, recorded: Sequence[RecordedPrompt] = ()) -> None:
        """`recorded`: prompts to send as they are, one after the other and again from the first, in place of made ones."""
        self._recorded = itertools.cycle(recorded) if recorded else None
        self._text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self.characters_per_token = characters_per_token
        self.variant: Variant = "plain"

    def next(self, knobs: Knobs) -> tuple[str, int]:
        """A prompt and the output tokens to ask for, both with lengths drawn evenly within `length_spread` of the knobs' values."""
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
        """`prompt`, whose first `shared` characters others have too, in the variant that is wanted."""
        if self.variant == "cut":
            return prompt[shared:] or " "
        if self.variant == "salted":
            return (f"{self._random.getrandbits(64):016x} " + prompt)[: len(prompt)]
        return prompt

    def learn(self, prompt: str, tokens: int) -> None:
        """The server counted `tokens` in `prompt`."""
        if tokens > 0:
            seen = min(BOUNDS[1], max(BOUNDS[0], len(prompt) / tokens))
            self.characters_per_token += LEARNING * (seen - self.characters_per_token)

    def _length(self, middle: int, knobs: Knobs) -> int:
        spread = float(knobs["length_spread"])
        return max(1, round(middle * self._random.uniform(1 - spread, 1 + spread)))

    def _cut(self, begin: int, characters: int) -> str:
        """`characters` from `begin` on; the text goes round and round."""
        whole = self._text * (1 + (begin + characters) // len(self._text))
        return whole[begin : begin + characters]
