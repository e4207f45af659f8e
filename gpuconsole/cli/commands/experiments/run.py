"""`gpuconsole run`."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from gpuconsole.cli.job import run_job
from gpuconsole.cli.options.console import add_console_options, record_path
from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.job import NO_SCREEN, add_job_options, refuse_job_options
from gpuconsole.cli.options.nodes import add_node_options, check_nodes
from gpuconsole.cli.options.profile import add_profile_options, check_folder
from gpuconsole.cli.options.scenario import add_scenario, assignments, scenario, scenario_of, server_of
from gpuconsole.cli.options.serving import add_serving_options, check_server
from gpuconsole.cli.options.usage import UsageError, refuse_given, seconds
from gpuconsole.tui.terminal import why_no_terminal

DESCRIPTION = """Run a scenario, or your own training job (-- COMMAND ARGS...): on the screen, or without a terminal (--headless).

Your own job needs no changed line. On the screen it has a terminal of its own, and key o shows its output. With --headless its output passes
through, and the summary goes to stderr. The exit code is that of the job. The job continues when the console ends.

--duration counts from the first step. Ctrl-C ends the run; the command keeps what was measured and still writes the snapshot.
Each run is compared with the baseline of the same scenario, knobs, hardware and software, if there is one. --save-baseline keeps a
run as a baseline (see `gpuconsole baselines`).

A serving run has a verdict: valid, degraded (the client lacked CPU time, the server did not answer for some time, or more than 1 % of the
requests failed) or invalid (most requests failed, or none was answered). The report and stderr name the verdict with its reasons.

Exit code 1: the workload failed, the figures are invalid, --require-valid and the figures are degraded, or --fail-on-regression found a
regression."""

EXAMPLES = """examples:
  gpuconsole run -- python train.py                             your own job; also python -m, torchrun, accelerate launch, a script
  gpuconsole run --output job.txt -- torchrun --nproc-per-node 2 train.py
  gpuconsole run train-gpt
  gpuconsole run train-gpt --set batch_size=16 --set precision=bf16
  gpuconsole run data-starved --headless --duration 60 --apply-top --snapshot out.json
  gpuconsole run train-gpt --headless --try precision=bf16 --json > session.json
  gpuconsole run train-gpt --headless --duration 30 --profile --profile-dir traces
  gpuconsole run ./my-scenario.toml --record session.jsonl
  gpuconsole run serve-chat --set concurrency=32 --slo ttft=0.5,tpot=0.05
  gpuconsole run serve-chat --url http://10.0.0.2:8000 --api-key-env MY_KEY      a server that runs already
  gpuconsole run ddp-small-batch --nnodes 2 --rdzv-endpoint 10.0.0.1:29500
  gpuconsole run train-gpt --headless --save-baseline           run it three times, to measure the spread between runs
  gpuconsole run --headless --restart-knob 'batch_size={--per_device_train_batch_size}' --try batch_size=16 -- python train.py
  gpuconsole run --headless --try num_workers=4 --snapshot out.json -- python train.py
  gpuconsole run train-gpt --headless --fail-on-regression      in CI: exit code 1 if slower than the baseline
"""

NOT_FOR = {False: "require_valid", True: "profile"}
"""Options that a training run (False) or a serving run (True) would ignore."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run", help="run a scenario or your own training job (-- COMMAND)", description=DESCRIPTION, epilog=EXAMPLES
    )
    add_scenario(parser)
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help="set a knob; may be repeated")
    parser.add_argument("--duration", type=seconds, metavar="S", help="seconds from the first step (headless default: 60)")
    parser.add_argument("--headless", action="store_true", help="no screen: progress on stderr, the summary on stdout")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help="write the session as JSON when it ends")
    parser.add_argument("--json", action="store_true", help="print the snapshot on stdout, and nothing else there (implies --headless)")
    parser.add_argument("--apply-top", action="store_true", help="try the top suggestion; keep it if it wins")
    parser.add_argument(
        "--try", action="append", default=[], metavar="KNOB=VALUE", dest="tries", help="try this change; keep it if it wins"
    )
    parser.add_argument(
        "--save-baseline",
        action="store_true",
        help="keep each run of the session as a baseline for later runs (the last 20)",
    )
    parser.add_argument(
        "--fail-on-regression",
        action="store_true",
        help="exit code 1 if a run is slower than its baseline beyond noise; --save-baseline does not keep such a run",
    )
    parser.add_argument(
        "--require-valid",
        action="store_true",
        help="exit code 1 unless the figures of a serving run are valid (degraded figures alone give 0)",
    )
    add_job_options(parser)
    add_profile_options(parser)
    add_node_options(parser)
    add_serving_options(parser)
    add_console_options(parser.add_argument_group("watching devices"), screen=True)
    parser.set_defaults(handler=run)


def run(args: argparse.Namespace) -> int:
    if args.job:
        return run_job(args)
    refuse_job_options(args)
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    if args.tries:
        refuse_given(args, "does not go with --try, which names the change", "apply_top")
    refuse_given(args, f"is for {'training' if chosen.workload.serves else 'serving'} scenarios", NOT_FOR[chosen.workload.serves])
    tries = assignments(args.tries, chosen)
    snapshot = writable(args.snapshot, "--snapshot")
    recording = record_path(args)
    check_nodes(args, chosen.workload)
    check_server(args, chosen.workload, server_of(chosen, knobs))
    check_folder(args.profile_dir)
    if args.save_baseline:
        _check_baselines()
    if not chosen.workload.serves and importlib.util.find_spec("torch") is None:
        from gpuconsole.engine.children.serving import NO_TORCH

        raise UsageError(NO_TORCH)
    if args.headless or args.json:
        refuse_given(args, NO_SCREEN, "eco")
        if not args.profile:
            refuse_given(args, "needs --profile", "profile_dir")
        from gpuconsole.cli.headless import HeadlessRun

        return HeadlessRun(args, knobs, tries, snapshot, recording, chosen.workload.serves).run()
    refuse_given(args, "goes with --headless", "require_valid", "fail_on_regression")
    if args.profile:
        raise UsageError("--profile goes with --headless; on the screen, press f")
    if args.apply_top or args.tries:
        raise UsageError("--apply-top and --try go with --headless; on the screen, press Enter on a suggestion")
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.cli.console import open_console

    return open_console(args, scenario=args.scenario, knobs=knobs, duration=args.duration, snapshot=snapshot, recording=recording)


def _check_baselines() -> None:
    """Raises UsageError now if the run could not be kept at its end."""
    from gpuconsole.experiments.baselines import BaselineError, baselines_folder, check_folder

    try:
        check_folder(baselines_folder())
    except BaselineError as error:
        raise UsageError(f"--save-baseline: {error}") from None
