"""A knob that is a flag of the user's command: `batch_size={--per_device_train_batch_size}`."""

from __future__ import annotations

from typing import NamedTuple

from gpuconsole.model.knobs.catalogue import CATALOGUE, find
from gpuconsole.model.knobs.knob import KnobError, Value


class RestartKnob(NamedTuple):
    """`flag` is followed by the value: as the next word, or in the same word where the flag ends with `=` or `:`."""

    knob: str
    flag: str

    @property
    def joined(self) -> bool:
        return self.flag[-1] in "=:"

    def value_in(self, words: tuple[str, ...]) -> str | None:
        """The value in the command; None where the command does not have the flag."""
        at = self._place(words)
        if at is None:
            return None
        word = words[at]
        if self.joined or "=" in word:
            return word[len(self.flag) + (not self.joined) :]
        return words[at + 1] if at + 1 < len(words) else None

    def applied(self, words: tuple[str, ...], value: Value) -> tuple[str, ...]:
        """The command with another value; at the end where the command does not have the flag."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        at = self._place(words)
        if self.joined:
            new: tuple[str, ...] = (f"{self.flag}{text}",)
        elif at is not None and "=" in words[at]:
            new = (f"{self.flag}={text}",)
        else:
            new = (self.flag, text)
        if at is None:
            return words + new
        return words[:at] + new + words[at + (2 if len(new) == 2 else 1) :]

    def _place(self, words: tuple[str, ...]) -> int | None:
        """The last word with the flag: a later flag wins, as in argparse."""
        found = [
            n
            for n, word in enumerate(words)
            if (word.startswith(self.flag) if self.joined else word == self.flag or word.startswith(f"{self.flag}="))
        ]
        return found[-1] if found else None


def parse_restart_knob(text: str) -> RestartKnob:
    """`KNOB={FLAG}` as typed. Raises KnobError."""
    name, _, flag = text.partition("=")
    if not (flag.startswith("{") and flag.endswith("}") and len(flag) > 2):
        raise KnobError(f"{text}: expected KNOB={{FLAG}}, such as batch_size={{--per_device_train_batch_size}}")
    find(name, tuple(CATALOGUE), "the catalogue")
    return RestartKnob(name, flag[1:-1])
