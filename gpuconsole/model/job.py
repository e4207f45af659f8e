"""The user's own training job: what the agent inside its processes reports, and settings that are
flags of its command (`batch_size={--per_device_train_batch_size}`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from gpuconsole.model.knobs.catalogue import CATALOGUE, find
from gpuconsole.model.knobs.knob import KnobError, Value

# --- the user's own training job, as the agent inside its processes describes it ------------------

JOB = "job"
"""The workload of a run of the user's own job."""
AGENT = "agent"
"""The key in `Run.unavailable` that says why the agent does not watch the job any more."""
FIXED = "fixed: "
"""Prefix of the agent's notes about knobs that cannot change while the job runs; the note holds the
reason."""

VARIES = "varies: "
"""Prefix of a note of the agent: the program changes this knob by itself."""
EFFECT = "effect: "
"""Prefix of the agent's notes about knobs that can change while the job runs; the note holds one of
EFFECTS."""
SAME_BITS, SAME_SAMPLES, MAY_DIFFER, CHANGES_NUMERICS = (
    "same bits",
    "same samples",
    "samples may differ",
    "changes numerics",
)
EFFECTS = {
    SAME_BITS: "the job computes exactly what it would compute without the change",
    SAME_SAMPLES: "the same batches in the same order; results may differ by rounding",
    MAY_DIFFER: (
        "workers load ahead, from copies of the dataset: samples that your loop changes meanwhile,"
        " random numbers and counters may differ"
    ),
    CHANGES_NUMERICS: "losses and weights differ from those without the change",
}
"""What a change does to the numbers of the job, the mildest first."""
NUMERICS, LOADER = "numerics", "loader"
PERMISSIONS = {CHANGES_NUMERICS: NUMERICS, MAY_DIFFER: LOADER}
"""The permission of the user that a change with this effect needs in a job of the user's own; the
option is `--allow-` with this word."""


class Site(msgspec.Struct, frozen=True, omit_defaults=True):
    """The line of the user's program that made an object: where a patch would change something.

    `kind`: `loader`, `optimizer`, `ddp`, `compile`, or `iterator`: a line that makes an iterator of
    a DataLoader for each batch. `file` is the path that Python has, `line` the first line of the
    call (from 1). `function`: the function around the line. `library`: the package (for example
    `transformers`) where no line of the program itself made the object. `again`: the line has made
    another one since the training began, as in each epoch.
    """

    kind: str
    file: str
    line: int
    function: str = ""
    library: str = ""
    again: bool = False


EDITED = "edited"
"""A value of `JobFacts.lines`."""


class JobFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about the program. `script`: the name of the file without its folder.
    `frameworks`: name and version of the libraries that drive the loop (transformers, lightning,
    accelerate). `device`: `cpu` or `cuda:N`, where the parameters are. `device_uuid`: the uuid of
    that GPU as CUDA has it, without the prefix `GPU-` or `MIG-`; `device_pci`: its address as
    domain:bus:device, in hexadecimal. N counts only the GPUs that the process sees. `lines`: for
    each file of `sites`, a checksum of each line, read when the job made its first object there. A
    checksum has four hexadecimal digits: the lower 16 bits of the CRC-32 of the line. White space
    at the end of a line does not count. EDITED: the file was written after the start of the job. A
    file whose lines are not known is left out.
    """

    script: str
    python: str = ""
    torch: str = ""
    device: str = ""
    device_uuid: str = ""
    device_pci: str = ""
    cores: str = ""
    """The cores on which the training thread may run, as `0-31,64-95`; empty where they are not
    known."""
    frameworks: dict[str, str] = {}
    sites: list[Site] = []
    lines: dict[str, str] = {}
    loop: str = ""
    """The framework that runs the training loop: `transformers` (its Trainer) or `lightning`; empty
    where the program does."""


# --- a knob that is a flag of the user's command --------------------------------------------------


class RestartKnob(NamedTuple):
    """`flag` is followed by the value: as the next word, or in the same word where the flag ends
    with `=` or `:`."""

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
        places = [
            n
            for n, word in enumerate(words)
            if (
                word.startswith(self.flag)
                if self.joined
                else word == self.flag or word.startswith(f"{self.flag}=")
            )
        ]
        return places[-1] if places else None


def parse_restart_knob(text: str) -> RestartKnob:
    """`NAME={FLAG}` as typed. Raises KnobError."""
    name, _, flag = text.partition("=")
    if not (flag.startswith("{") and flag.endswith("}") and len(flag) > 2):
        raise KnobError(
            f"{text}: expected NAME={{FLAG}}, such as batch_size={{--per_device_train_batch_size}}"
        )
    find(name, tuple(CATALOGUE), "the catalogue")
    return RestartKnob(name, flag[1:-1])
