"""The words of a tool, and their meaning in the words of our rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

HEALTHY = "healthy"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding, with the tool's own key; `detail` is the severity or score of the tool."""

    word: str
    detail: str = ""


@dataclass(frozen=True)
class Meaning:
    """The meaning of one word of a tool.

    `families`: families of our rules; `healthy` if the word means that nothing is wrong, empty if
    the word blames nothing. `causes`: ids of our rules, if the word is as specific as they are.
    `gpu_only`: the tool never uses the word for a CPU. `abstains`: the tool reports that it cannot
    decide.
    """

    families: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    gpu_only: bool = False
    abstains: bool = False

    @property
    def blames(self) -> bool:
        return bool(self.families) and HEALTHY not in self.families


FINE = Meaning((HEALTHY,))
NOTE = Meaning()
"""Advice or a remark that is made of healthy runs too: counted neither for the tool nor against
it."""
CANNOT_TELL = Meaning(abstains=True)


def names(*causes: str, gpu_only: bool = False) -> Meaning:
    """A word that names causes; any of them if the tool does not distinguish them."""
    return Meaning(
        tuple(dict.fromkeys(cause.partition(".")[0] for cause in causes)), causes, gpu_only
    )


def points_to(*families: str, gpu_only: bool = False) -> Meaning:
    """A word that names the part of the step, but no cause."""
    return Meaning(families, gpu_only=gpu_only)


@dataclass(frozen=True)
class Verdict:
    """`families`: `healthy` if the tool blames nothing, empty if the tool abstained. `unknown`:
    words without a meaning yet."""

    families: tuple[str, ...]
    causes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def blames(self) -> bool:
        return bool(self.families) and HEALTHY not in self.families


def judge(said: Sequence[Said], meanings: Mapping[str, Meaning]) -> Verdict:
    """The verdict is the first finding that blames something, as for our own findings.

    A later finding of the same family may add a cause to a finding without one. If a tool blames
    nothing, its verdict is healthy, unless the tool reports that it cannot decide.
    """
    unknown = tuple(one.word for one in said if one.word not in meanings)
    known = [meanings[one.word] for one in said if one.word in meanings]
    blaming = [meaning for meaning in known if meaning.blames]
    if blaming:
        families = blaming[0].families
        causes = next(
            (one.causes for one in blaming if one.causes and set(one.families) & set(families)), ()
        )
        return Verdict(families, causes, unknown)
    return Verdict(
        () if any(meaning.abstains for meaning in known) else (HEALTHY,), unknown=unknown
    )
