"""Prompts of a wanted length, cut from real text."""

from __future__ import annotations

import random
from importlib.resources import files

from gpuconsole.model.knobs import Knobs

FIRST_GUESS = 4.0
"""Characters per token of English in the usual vocabularies, until the server's own count says better."""
LEARNING = 0.2
BOUNDS = (0.25, 16.0)
"""No vocabulary is outside of these; a server that counts wrong must not make prompts grow for ever."""


class Prompts:
    """Windows of the King James Bible. How many characters make a token is learnt from what the server counts.

    With `shared_prefix_ratio` each prompt begins with the same text, for that share of its length: a system prompt.
    """

    def __init__(self, seed: int, characters_per_token: float = FIRST_GUESS) -> None:
        self._text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
        self._random = random.Random(seed)
        self.characters_per_token = characters_per_token

    def next(self, knobs: Knobs) -> tuple[str, int]:
        """A prompt and the output tokens to ask for, both with lengths drawn evenly within `length_spread` of the knobs' values."""
        characters = max(1, round(self._length(int(knobs["prompt_tokens"]), knobs) * self.characters_per_token))
        shared = round(characters * float(knobs["shared_prefix_ratio"]))
        own = characters - shared
        begin = self._random.randrange(len(self._text))
        return self._cut(0, shared) + self._cut(begin, own), self._length(int(knobs["output_tokens"]), knobs)

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
