"""The user's own job: bare and watched. Output, exit code and results are the same, and the account
is right.

A program that does not run bare says nothing about gpuconsole: such a check is not run, and the
reason is the program's last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.gpu_day.check import Day, NotHereError, add, check
from benchmarks.gpu_day.tools import read
from benchmarks.headless import last_line
from gpuconsole.diagnosis.engine import why_no_claim
from gpuconsole.model.job import AGENT
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Snapshot, decode

PROGRAMS = Path(__file__).parents[1] / "programs"
TIMEOUT_S = 170.0
POINTS = 3.0
"""Largest difference between the account and the program's own CUDA events, in percent points of
forward, backward and optimizer."""
JOB_S = 8.0
"""Seconds of a watched job: enough to be steady (2 s), and for some readings of the GPU at 1 Hz. A
GPU makes hundreds of steps in half a second."""
PROBED_S, TRIED_S = 25.0, 45.0
MISSING = 3
"""The exit code of a program that lacks a package."""


class Ended(NamedTuple):
    """How a program has ended. `snapshot`: of the watching console; None where the program ran
    bare."""

    code: int
    output: str
    errors: str
    seconds: float
    snapshot: Snapshot | None = None


def bare(day: Day, program: str, *arguments: str) -> Ended:
    """The program alone. Raises NotHereError where it does not run to its end."""
    ended = _run(day, [sys.executable, str(PROGRAMS / program), *arguments], {})
    if ended.code:
        raise NotHereError(f"{program} does not run here: {last_line(ended.errors)}")
    return ended


def watched(
    day: Day, program: str, *arguments: str, options: tuple[str, ...] = (), **environment: str
) -> Ended:
    """The same program under `gpuconsole run`; what gpuconsole says goes to a file, and `errors`
    are those of the program."""
    name = f"own-job-{'-'.join((program.removesuffix('.py'), *arguments))}".replace(
        ":", "-"
    ).replace("--", "-")
    snapshot, summary = day.folder / f"{name}.json", day.folder / f"{name}.txt"
    snapshot.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        str(snapshot),
        "--summary",
        str(summary),
        *options,
    ]
    ended = _run(
        day, [*command, "--", sys.executable, str(PROGRAMS / program), *arguments], environment
    )
    if not snapshot.exists():
        raise RuntimeError(f"no snapshot: {last_line(ended.errors)}")
    return ended._replace(snapshot=decode(snapshot.read_bytes()))


def _run(day: Day, command: list[str], environment: dict[str, str]) -> Ended:
    begun = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        cwd=day.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - begun)


def is_unharmed(day: Day, alone: Ended, ended: Ended, errors: bool = False) -> Run:
    """Keep whether the watched program did what the bare one did. Returns its run. `errors`:
    compare stderr, too."""
    day.require(
        "exit code",
        ended.code == alone.code,
        f"{ended.code}, bare {alone.code}" + (f": {last_line(ended.errors)}" if ended.code else ""),
    )
    same = ended.output == alone.output and (not errors or ended.errors == alone.errors)
    day.require(
        "output",
        same,
        f"{len(ended.output.splitlines())} lines, the same"
        if same
        else _first_difference(alone, ended),
    )
    assert ended.snapshot is not None
    run = ended.snapshot.runs[-1]
    day.require(
        "the agent", AGENT not in run.unavailable, run.unavailable.get(AGENT, "watched to the end")
    )
    day.data["phases_ratio"] = run.summary.phases_ratio
    return run


def _first_difference(alone: Ended, ended: Ended) -> str:
    for before, after in zip(alone.output.splitlines(), ended.output.splitlines(), strict=False):
        if before != after:
            return f"{after[:80]!r}, bare {before[:80]!r}"
    return f"{len(ended.output.splitlines())} lines, bare {len(alone.output.splitlines())}"


def has_conclusion(day: Day, run: Run, *rules: str) -> None:
    """The run was steady and has readings of its GPU, and these rules have concluded: without that
    what a check finds, or does not find, says nothing."""
    count = run.summary.steps or 0
    steady = run.steady_from_s is not None and count > 0
    day.require("steady steps", steady, f"{count}" if steady else why_no_claim(run))
    day.require(
        "readings of the GPU",
        "gpu.util_ratio" in run.signals,
        "there" if "gpu.util_ratio" in run.signals else "none in its steady steps",
    )
    states = {finding.rule: finding for finding in run.findings}
    for rule in rules:
        found = states.get(rule)
        day.require(
            f"{rule} concludes",
            found is not None and found.state != "cant_tell",
            "not run" if found is None else f"{found.state}: {found.summary}",
        )


@check(value=378, seconds=45, limit_s=240)
def own_job_loader(day: Day) -> None:
    """A job with loader workers, two epochs and a validation: unharmed, and its phases are those of
    its own CUDA events."""
    alone = bare(day, "loader.py")
    stamps = day.folder / "own-job-stamps.json"
    run = is_unharmed(day, alone, watched(day, "loader.py", STAMPS=str(stamps)))
    has_conclusion(day, run)
    by_hand, phases = json.loads(stamps.read_text()), run.summary.phases_ratio or {}
    passes = sum(phases.get(name, 0.0) for name in by_hand)
    for name, share in by_hand.items():
        ours = phases.get(name, 0.0) / passes if passes else None
        day.expect(
            f"{name}: account less events",
            None if ours is None else 100 * (ours - share),
            "points",
            low=-POINTS,
            high=POINTS,
        )
    day.data["events"] = by_hand


@check(value=160, seconds=20, limit_s=240)
def own_job_graph(day: Day) -> None:
    """A step that is captured whole in a CUDA graph: unharmed."""
    alone = bare(day, "graphed.py", "0")
    run = is_unharmed(day, alone, watched(day, "graphed.py", f"{JOB_S:.0f}"))
    has_conclusion(day, run)


@check(value=118, seconds=65, limit_s=240)
def own_job_live_workers(day: Day) -> None:
    """The number of loader workers changes while the job runs, in a trial: the job is unharmed, and
    the trial has a verdict."""
    alone = bare(day, "loader.py", "--workers", "1")
    arguments = ("--workers", "1", "--seconds", f"{TRIED_S:.0f}")
    ended = watched(day, "loader.py", *arguments, options=("--try", "num_workers=3"))
    is_unharmed(day, alone, ended)
    trials = ended.snapshot.trials if ended.snapshot is not None else []
    day.require("a trial", bool(trials), f"{len(trials)}")
    for trial in trials:
        day.require(
            "its end",
            trial.state == "done",
            f"{trial.state} {trial.verdict or ''} {trial.error or ''}".strip(),
        )


@check(value=117, seconds=30, limit_s=240)
def own_job_hf_tf32(day: Day) -> None:
    """Hugging Face's Trainer with tf32=True and loader workers: unharmed, with steps."""
    alone = _run(day, [sys.executable, str(PROGRAMS / "hf_tf32.py")], {})
    if alone.code:
        why = "transformers is missing" if alone.code == MISSING else "hf_tf32.py does not run here"
        raise NotHereError(f"{why}: {last_line(alone.errors)}")
    run = is_unharmed(day, alone, watched(day, "hf_tf32.py"))
    has_conclusion(day, run)
    day.note("precision", str(run.knobs.get("precision", "n/a")))


@check(value=195, seconds=25, limit_s=240)
def own_job_out_of_memory(day: Day) -> None:
    """A job that runs out of GPU memory ends as it would alone, and the summary says that it
    did."""
    alone = _run(day, [sys.executable, str(PROGRAMS / "out_of_memory.py")], {})
    if "OutOfMemoryError" not in alone.errors:
        raise NotHereError(
            f"out_of_memory.py did not run out of memory here: {last_line(alone.errors)}"
        )
    run = is_unharmed(day, alone, watched(day, "out_of_memory.py"))
    day.require("state of the run", run.state == "failed", f"{run.state}: {run.error or ''}")
    summary = (day.folder / "own-job-out_of_memory.txt").read_text(errors="replace").splitlines()
    explained = [
        line.strip() for line in summary if line.strip().startswith(("owners", "would fit"))
    ]
    day.require(
        "the line that asked is named",
        "out_of_memory.py:" in (run.error or ""),
        run.error or "no error",
    )
    day.require(
        "owners and what would fit are named",
        len(explained) >= 2,
        " / ".join(explained) or "nothing",
    )


@check(value=115, seconds=60, limit_s=240)
def own_job_probes(day: Day) -> None:
    """With --probe the job's results are the same, and most rules conclude."""
    alone = bare(day, "loader.py")
    run = is_unharmed(
        day, alone, watched(day, "loader.py", "--seconds", f"{PROBED_S:.0f}", options=("--probe",))
    )
    unknown = [finding.rule for finding in run.findings if finding.state == "cant_tell"]
    day.note("rules that conclude", f"{len(run.findings) - len(unknown)} of {len(run.findings)}")
    day.note("rules that cannot tell", ", ".join(unknown) or "none")
    day.note(
        "findings",
        ", ".join(finding.rule for finding in run.findings if finding.state == "fires") or "none",
    )


@check(value=114, seconds=35, limit_s=240)
def own_job_second_gpu(day: Day) -> None:
    """A job on cuda:1 whose current device is cuda:0: timed on its own GPU, and no context of it is
    on the first."""
    gpus = [device.id for device in read().state.devices if device.is_gpu and not device.is_mig]
    if len(gpus) < 2:
        raise NotHereError("here is one GPU")
    stamps = day.folder / "own-job-stamps-second.json"
    arguments = ("--device", "cuda:1", "--seconds", "8")
    snapshot = day.folder / "own-job-second.json"
    snapshot.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--snapshot",
        str(snapshot),
        "--",
    ]
    command += [sys.executable, str(PROGRAMS / "loader.py"), *arguments]
    alone = bare(day, "loader.py", "--device", "cuda:1")
    process = subprocess.Popen(
        command,
        env={**os.environ, "STAMPS": str(stamps)},
        cwd=day.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    places: set[str] = set()
    while process.poll() is None:
        own = (
            {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
            if psutil.pid_exists(process.pid)
            else set()
        )
        places |= {one.device for one in read(0.3).state.processes if one.pid in own}
    output, errors = process.communicate()
    ended = Ended(process.returncode, output, errors, 0.0, decode(snapshot.read_bytes()))
    run = is_unharmed(day, alone, ended)
    day.require("device of the run", run.device == gpus[1], run.device)
    if places:
        day.require(
            "GPUs on which the driver sees the job", places == {gpus[1]}, ", ".join(sorted(places))
        )
    else:
        day.note(
            "GPUs on which the driver sees the job",
            "n/a: its process list does not hold pids of this container",
        )
    by_hand, phases = json.loads(stamps.read_text()), run.summary.phases_ratio or {}
    passes = sum(phases.get(name, 0.0) for name in by_hand)
    for name, share in by_hand.items():
        ours = phases.get(name, 0.0) / passes if passes else None
        day.expect(
            f"{name}: account less events",
            None if ours is None else 100 * (ours - share),
            "points",
            low=-POINTS,
            high=POINTS,
        )


def is_unharmed_and_known(
    program: str, arguments: tuple[str, ...], precision: str, day: Day
) -> Run:
    """A job that is unharmed, has steps, and whose MFU is none or below 100 %. `precision`: the
    number type of its products; empty: not checked."""
    mode, *more = (*arguments, "") if arguments else ("",)
    words = {seconds: [*filter(None, (mode, seconds, *more))] for seconds in ("0", f"{JOB_S:.0f}")}
    alone, ended = bare(day, program, *words["0"]), watched(day, program, *words[f"{JOB_S:.0f}"])
    run = is_unharmed(day, alone, ended)
    has_conclusion(day, run)
    mfu = run.summary.mfu_ratio
    day.require(
        "MFU",
        mfu is None or 0 < mfu <= 1,
        f"{mfu:.3f} of {run.summary.mfu_peak_source}" if mfu is not None else "n/a",
    )
    day.require("device of the run", run.device != "cpu", run.device)
    if precision:
        types = [
            name
            for name, share in (run.facts or {}).items()
            if name.startswith("flops_") and name.endswith("_ratio") and share > 1 / 2
        ]
        found = (
            types[0].removeprefix("flops_").removesuffix("_ratio")
            if types
            else str(run.knobs.get("precision", "n/a"))
        )
        day.require("precision", found == precision, found)
    day.note(
        "findings",
        ", ".join(
            finding.rule
            for finding in run.findings
            if finding.state == "fires" and not finding.note
        )
        or "none",
    )
    return run


def masked(day: Day) -> None:
    """A hidden wait is no launch-bound."""
    run = is_unharmed_and_known("masked.py", (), "bf16", day)
    has_conclusion(day, run, "host.launch_bound")
    accused = [
        finding.rule for finding in run.findings if finding.state == "fires" and not finding.note
    ]
    day.require(
        "not called launch-bound",
        "host.launch_bound" not in accused,
        ", ".join(accused) or "no fault",
    )


for _name, _title, _value, _check in (
    (
        "own_job_compiled.default",
        "torch.compile, mode default",
        100,
        partial(is_unharmed_and_known, "compiled.py", ("default",), ""),
    ),
    (
        "own_job_compiled.reduce-overhead",
        "torch.compile, mode reduce-overhead",
        95,
        partial(is_unharmed_and_known, "compiled.py", ("reduce-overhead",), ""),
    ),
    (
        "own_job_compiled.fullgraph",
        "torch.compile(fullgraph=True)",
        301,
        partial(is_unharmed_and_known, "compiled.py", ("default", "fullgraph"), ""),
    ),
    (
        "own_job_accelerate_bf16",
        "accelerate and its bf16",
        315,
        partial(is_unharmed_and_known, "accelerated.py", (), "bf16"),
    ),
    (
        "own_job_fsdp2.mixed",
        "FSDP2 with mixed precision",
        308,
        partial(is_unharmed_and_known, "sharded.py", ("mixed",), "bf16"),
    ),
    (
        "own_job_fsdp2.offload",
        "FSDP2 with parameters on the host",
        110,
        partial(is_unharmed_and_known, "sharded.py", ("offload",), "bf16"),
    ),
    ("own_job_masked", "a loss over the rows that a mask keeps", 287, masked),
):
    add(
        _name,
        f"A job with {_title}: unharmed, with steps and an MFU of at most 100 %",
        _value,
        35,
        _check,
        240,
    )


LIVE = (
    "precision=bf16",
    "precision=tf32",
    "optim=adamw_fused",
    "torch_compile=default",
    "torch_compile=reduce-overhead",
)
FIRST_LIVE = LIVE[0]
LIVE_S, LOSS = 40.0, 0.05
"""Seconds of a job with a live change; largest relative difference of its losses."""


def is_kept_alive(change: str, day: Day) -> None:
    """A trial of `change` has a verdict, and the losses of the first steps are those of the bare
    job within LOSS: a change alters the last bits."""
    alone = bare(day, "live.py", "0")
    ended = watched(day, "live.py", f"{LIVE_S:.0f}", options=("--try", change, "--allow-numerics"))
    day.require(
        "exit code",
        ended.code == 0,
        f"{ended.code}" + (f": {last_line(ended.errors)}" if ended.code else ""),
    )
    pairs = list(zip(_losses(alone), _losses(ended), strict=False))[:-1]
    apart = max(
        (abs(after - before) / (abs(before) or 1.0) for before, after in pairs), default=None
    )
    day.expect("losses, watched over bare, less 1", apart, "ratio", high=LOSS)
    trials = ended.snapshot.trials if ended.snapshot is not None else []
    day.require("a trial", bool(trials), f"{len(trials)}")
    for trial in trials:
        refused = trial.state == "failed" and bool(trial.error)
        day.require(
            "its end",
            trial.state == "done" or refused,
            f"{trial.state} {trial.verdict or ''} {trial.error or ''}".strip(),
        )
        day.note("speedup", trial.speedup.estimate if trial.speedup is not None else "n/a")


def _losses(ended: Ended) -> list[float]:
    return [
        float(line.rpartition(" ")[2]) for line in ended.output.splitlines() if ": loss " in line
    ]


for _place, _change in enumerate(LIVE):
    add(
        f"own_job_live.{_change}",
        f"A live trial of {_change} in a job of the user's own: a verdict, the same losses",
        455 if _change == FIRST_LIVE else 111 - _place,
        70,
        partial(is_kept_alive, _change),
        240,
    )
