"""What a tool said, and what that means in the words of our rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

HEALTHY = "healthy"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finding, in the tool's own key for it; `detail` is its severity or score as the tool gives it."""

    word: str
    detail: str = ""


@dataclass(frozen=True)
class Meaning:
    """What one word of a tool stands for.

    `families`: of our rules; `healthy` where the word says that all is well, none where it blames nobody. `causes`: ids of our rules, where the
    word says as much as they do. `gpu_only`: never said of a run on a CPU. `abstains`: the tool says that it cannot tell.
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
"""Advice or a remark that is made of healthy runs too: counted neither for the tool nor against it."""
CANNOT_TELL = Meaning(abstains=True)


def names(*causes: str, gpu_only: bool = False) -> Meaning:
    """A word that names causes: any of them, where it makes no difference between them."""
    return Meaning(tuple(dict.fromkeys(cause.partition(".")[0] for cause in causes)), causes, gpu_only)


def points_to(*families: str, gpu_only: bool = False) -> Meaning:
    """A word that tells where the time goes, but not why."""
    return Meaning(families, gpu_only=gpu_only)


@dataclass(frozen=True)
class Verdict:
    """`families`: `healthy` where nothing is blamed, empty where the tool abstained. `unknown`: words without a meaning yet."""

    families: tuple[str, ...]
    causes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def blames(self) -> bool:
        return bool(self.families) and HEALTHY not in self.families


def judge(said: Sequence[Said], meanings: Mapping[str, Meaning]) -> Verdict:
    """The first finding that blames something is the verdict, as the first one of ours is.

    One that names no cause may be made precise by a later one of the same family. A tool that blames nothing calls the run healthy,
    unless it says that it cannot tell.
    """
    unknown = tuple(one.word for one in said if one.word not in meanings)
    known = [meanings[one.word] for one in said if one.word in meanings]
    blaming = [meaning for meaning in known if meaning.blames]
    if blaming:
        families = blaming[0].families
        causes = next((one.causes for one in blaming if one.causes and set(one.families) & set(families)), ())
        return Verdict(families, causes, unknown)
    return Verdict(() if any(meaning.abstains for meaning in known) else (HEALTHY,), unknown=unknown)
