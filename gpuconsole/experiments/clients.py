"""Runs that another client has measured: what must be equal for a comparison, and what their files
cannot tell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gpuconsole.model.comparison import Difference
from gpuconsole.model.knobs.knob import show
from gpuconsole.model.run import Run
from gpuconsole.model.units import NA, plain

LENGTHS_DIFFER = 0.05
MAX_CHANCE_DIFFERENCE = 0.20
ERRORS = 4.5
"""Prompts or answers whose mean lengths differ by more than 5 % are another load. With few
requests, drawn lengths differ more by chance: four and a half standard errors of the difference are
allowed, up to 20 %. A difference that is allowed counts as a doubt of its size (see `excuse`)."""
LENGTHS_MATTER = 0.02
"""A smaller difference counts as none, as in a trial."""
LENGTHS = {"prompt_tokens_mean": "prompt tokens", "output_tokens_mean": "output tokens"}
PACED = ("trace", "fixed_schedule", "user_centric")
"""Arrivals that follow a plan, and not the answers, besides those with a rate."""
PLACE = (
    "the machine, the GPU, the version and the settings of the server, and what its prefix cache"
    " held: the same is assumed"
)
REASONS = ("workload.load", "workload.intervals", "workload.started", "workload.failed_requests")
OPEN_LOOP = (
    "open loop: the client sets the throughput, and chance the arrivals: several runs of each side,"
    " measured in turn, show the noise (--fail-below)"
)


def of_client(*runs: Run) -> bool:
    """Whether another client measured one of the runs."""
    return any(run.client for run in runs)


def is_open(run: Run) -> bool:
    """Whether requests are sent independent of the answers: then the client sets the throughput, as
    long as the server keeps up."""
    return run.serves and (
        bool(run.knobs.get("request_rate")) or run.knobs.get("arrivals") in PACED
    )


def unlike(before: Run, after: Run) -> list[Difference]:
    """The differences of client, model, load and lengths. With any of them, two runs do not measure
    the same."""
    if before.scenario != after.scenario:
        return [
            Difference(
                "client",
                *(
                    run.scenario if run.client else f"gpuconsole ({run.scenario})"
                    for run in (before, after)
                ),
            )
        ]
    found = []
    if (models := _models(before, after)) and models[0] != models[1]:
        found.append(Difference("model", *models))
    for name in (
        dict.fromkeys((*before.knobs, *after.knobs)) if before.knobs and after.knobs else ()
    ):
        old, new = (show(run.knobs[name]) if name in run.knobs else NA for run in (before, after))
        if old != new:
            found.append(Difference(name, old, new))
    for name, words in LENGTHS.items():
        errors = [run.facts.get(name.replace("_mean", "_error"), 0.0) for run in (before, after)]
        if abs(length_difference(before, after, name)) > max(
            LENGTHS_DIFFER, min(MAX_CHANCE_DIFFERENCE, ERRORS * math.hypot(*errors))
        ):
            found.append(Difference(words, *(plain(run.facts[name]) for run in (before, after))))
    return found


def engines(before: Run, after: Run) -> list[Difference]:
    """The difference of the engines that the clients name: two engines may be compared under one
    load."""
    old, new = (
        str(run.server.engine.value)
        if run.server is not None and run.server.engine is not None
        else NA
        for run in (before, after)
    )
    return [Difference("engine", old, new)] if of_client(before, after) and old != new else []


def length_difference(before: Run, after: Run, name: str) -> float:
    """By which share a mean length is larger after than before; 0 where it is not known."""
    old, new = (run.facts.get(name) for run in (before, after))
    return new / old - 1 if old and new else 0.0


def excuse(before: Sequence[Run], after: Sequence[Run]) -> tuple[float, str]:
    """The largest difference of the mean lengths of the two sides, which may explain a difference
    of its own size, and the difference in words; 0 where none matters."""
    worst: tuple[float, str] = (0.0, "")
    for name, words in LENGTHS.items() if of_client(*before) else ():
        sides = [[run.facts[name] for run in runs if name in run.facts] for runs in (before, after)]
        if not all(sides):
            continue
        old, new = map(statistics.fmean, sides)
        if abs(new / old - 1) > max(LENGTHS_MATTER, worst[0]):
            worst = (
                abs(new / old - 1),
                f"{words} of a request: {plain(new)} ({plain(old)} in the baseline)",
            )
    return worst


def load_unknown(run: Run) -> str:
    """Why it is not known that another run had the same load; empty where it is known."""
    return run.unavailable.get("workload.load", "") if run.client else ""


def cannot_tell(before: Run, after: Run) -> list[str]:
    """What the files of the two runs cannot tell, each once."""
    if not of_client(before, after):
        return []
    lines = [PLACE]
    for reason in REASONS:
        sides = {
            side: run.unavailable[reason]
            for side, run in (("before", before), ("after", after))
            if reason in run.unavailable
        }
        both = len(set(sides.values())) == 1 and len(sides) > 1
        lines += (
            list(dict.fromkeys(sides.values()))
            if both
            else [f"{side}: {why}" for side, why in sides.items()]
        )
    if not _models(before, after):
        lines.append("the model of a run: the file does not name it")
    return lines


def _models(before: Run, after: Run) -> tuple[str, ...]:
    """The models of both runs; empty where one is not known."""
    models = [
        run.server.model
        for run in (before, after)
        if run.server is not None and run.server.model is not None
    ]
    return tuple(str(model.value) for model in models) if len(models) > 1 else ()
