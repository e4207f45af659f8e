"""The interface of an adapter for another tool, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagbench.cases import TRAINING, Half
from benchmarks.diagbench.peers.verdict import HEALTHY, Meaning, Said

LEFT_OUT = tuple(case.id for case in TRAINING if case.family == "comm" or case.offer)
"""Jobs of several processes: each tool has its own way to start those, and the plain script has
none. And those in which nothing is wrong and yet a knob gains."""
CASES = tuple(case for case in TRAINING if case.id not in LEFT_OUT)

SCRIPT = '''"""A case of the benchmark as a script of its own."""

from benchmarks.diagbench.peers.plain import main as train


def main():
    train({arguments!r})


if __name__ == "__main__":
    main()
'''


@dataclass(frozen=True)
class Job:
    """One run of a case under a tool. `folder` is empty at the start; every command runs in it."""

    python: str
    folder: Path
    case: str
    half: Half
    seed: int
    seconds: float
    """Seconds for which the tool watches, from the first step."""
    limit_s: float
    """Seconds after which everything is ended."""

    def script(self, hook: str = "none", seconds: float | None = None, steps: int = 0) -> str:
        """Write the case as a script outside of this package and return its path. Inside, the
        script would import the adapters instead of the tools with the same names.
        """
        arguments = [
            "--case",
            self.case,
            "--half",
            self.half,
            "--seed",
            str(self.seed),
            "--hook",
            hook,
        ]
        arguments += [
            "--seconds",
            str(self.seconds if seconds is None else seconds),
            "--steps",
            str(steps),
        ]
        path = self.folder / "train.py"
        path.write_text(SCRIPT.format(arguments=arguments), encoding="utf-8")
        return str(path)


@dataclass(frozen=True)
class Peer:
    """A tool: its commands, the place of its verdict, and the meaning of its words.

    `commands` run one after the other; `output.txt` has the output of the last command. `read` gets
    the job's folder and returns the findings, the tool's first finding first; it raises OSError,
    ValueError or KeyError if there is no verdict.
    """

    name: str
    package: str
    tested: str
    """The version that the mapping was made from."""
    needs: str
    """Packages in addition to torch, numpy, pillow and msgspec."""
    meanings: Mapping[str, Meaning]
    commands: Callable[[Job], list[list[str]]]
    read: Callable[[Path], list[Said]]

    def families(self) -> frozenset[str]:
        """The families that the tool has words for on a CPU."""
        return frozenset(family for one in self._on_a_cpu() for family in one.families) - {HEALTHY}

    def causes(self) -> frozenset[str]:
        """The causes that the tool has words for on a CPU."""
        return frozenset(cause for one in self._on_a_cpu() for cause in one.causes)

    def _on_a_cpu(self) -> list[Meaning]:
        return [meaning for meaning in self.meanings.values() if not meaning.gpu_only]
