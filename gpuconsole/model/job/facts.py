"""The user's own training job, as the agent inside its processes describes it."""

from __future__ import annotations

import msgspec

JOB = "job"
"""The workload of a run of the user's own job."""
AGENT = "agent"
"""The key in `Run.unavailable` that says why the agent does not watch the job any more."""
FIXED = "fixed: "
"""Prefix of the agent's notes about knobs that cannot change while the job runs; the note holds the reason."""

EFFECT = "effect: "
"""Prefix of the agent's notes about knobs that can change while the job runs; the note holds one of EFFECTS."""
SAME_BITS, SAME_SAMPLES, CHANGES_NUMERICS = "same bits", "same samples", "changes numerics"
EFFECTS = {
    SAME_BITS: "the job computes exactly what it would compute without the change",
    SAME_SAMPLES: "the same batches in the same order; results may differ by rounding",
    CHANGES_NUMERICS: "losses and weights differ from those without the change",
}
"""What a change does to the numbers of the job, the mildest first."""


class Site(msgspec.Struct, frozen=True, omit_defaults=True):
    """The line of the user's program that made an object: where a patch would change something.

    `kind`: `loader`, `optimizer`, `ddp` or `compile`. `file` is the path that Python has, `line` the first line of the call (from 1).
    `function`: the function around the line. `call`: the source text of the call; empty where the file is not readable. `settings`: the
    knobs that this object decides, and their values. `library`: the package (for example `transformers`) where no line of the program
    itself made the object.
    """

    kind: str
    file: str
    line: int
    function: str = ""
    call: str = ""
    settings: dict[str, bool | int | float | str] = {}
    library: str = ""


class JobFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about the program. `script`: the name of the file without its folder. `frameworks`: name and version of the libraries that
    drive the loop (transformers, lightning, accelerate). `device`: `cpu` or `cuda:N`, where the parameters are. `device_uuid`: the uuid of that GPU
    as CUDA has it, without the prefix `GPU-` or `MIG-`; N counts only the GPUs that the process sees.
    """

    script: str
    python: str = ""
    torch: str = ""
    device: str = ""
    device_uuid: str = ""
    frameworks: dict[str, str] = {}
    sites: list[Site] = []
