"""What a live change of a user's job is: a knob with its observed value, and how to set it between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...protocol import Value

if TYPE_CHECKING:
    from ..watch import Watch

SAME_BITS, SAME_SAMPLES, CHANGES_NUMERICS = "same bits", "same samples", "changes numerics"
"""Effects of a change on what the program computes. SAME_SAMPLES: the same batches in the same order, but other rounding is possible."""


class Refused(Exception):
    """The change is not possible in this program. The message is the reason, in one line."""


class Change:
    """One knob of a user's job. All methods run on the training thread, between two steps."""

    knob: ClassVar[str]
    """A name of the knob catalogue."""
    effect: ClassVar[str]

    def effect_here(self, watch: Watch) -> str:
        """What the change does to the numbers of this program, as far as it is known."""
        return self.effect

    def read(self, watch: Watch) -> Value | None:
        """The value in force, as observed; None where it is not known or does not exist in this program."""
        raise NotImplementedError

    def why_fixed(self, watch: Watch) -> str:
        """Why the knob cannot change while the program runs, in one line; empty where it can."""
        return ""

    def set(self, watch: Watch, value: Value) -> None:
        """Put `value` in force from the next step on. Raises Refused; everything is then as before."""
        raise NotImplementedError

    def pending(self, watch: Watch) -> bool:
        """Whether a change that `set` began is still under way. Called between two steps. Raises Refused where the change failed."""
        return False
