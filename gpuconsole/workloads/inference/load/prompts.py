"""Prompts of a wanted length, cut from real text."""

from __future__ import annotations

import random
from importlib.resources import files
from typing import Literal

from gpuconsole.model.knobs import Knobs

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

    def __init__(self, seed: int, characters_per_token: float = FIRST_GUESS) -> None:
        self._text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self.characters_per_token = characters_per_token
        self.variant: Variant = "plain"

    def next(self, knobs: Knobs) -> tuple[str, int]:
        """A prompt and the output tokens to ask for, both with lengths drawn evenly within `length_spread` of the knobs' values."""
        characters = max(1, round(self._length(int(knobs["prompt_tokens"]), knobs) * self.characters_per_token))
        shared = round(characters * float(knobs["shared_prefix_ratio"]))
        own = characters - shared
        prompt = self._cut(self._random.randrange(len(self._text)), own)
        if self.variant != "cut":
            prompt = self._cut(0, shared) + prompt
        if self.variant == "salted":
            prompt = (f"{self._random.getrandbits(64):016x} " + prompt)[:characters]
        return prompt or " ", self._length(int(knobs["output_tokens"]), knobs)

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
