"""`gpuconsole run`."""

from __future__ import annotations

import argparse
import importlib.util

from gpuconsole.cli import options
from gpuconsole.cli.job import run_job
from gpuconsole.cli.options import UsageError
from gpuconsole.cli.scenario import (
    assignments,
    check_nodes,
    check_server,
    scenario,
    scenario_of,
    server_of,
)
from gpuconsole.cli.values import check_folder, writable
from gpuconsole.tui.terminal import why_no_terminal

HELP = "run a scenario or your own training job (-- COMMAND)"
DESCRIPTION = """Run a scenario, or your own training job (-- COMMAND ARGS...): on the screen, or
without a terminal (--headless).

Your own job needs no changed line. On the screen it has a terminal of its own, and key o shows its
output. With --headless its output passes through, and the summary goes to stderr. The exit code is
that of the job. The job continues when the console ends.

--duration counts from the first step. Ctrl-C ends the run; the command keeps what was measured and
still writes the snapshot. Each run is compared with the baseline of the same scenario, settings,
hardware and software, if there is one. --save-baseline keeps a run as a baseline (see
`gpuconsole baselines`).

A serving run has a verdict: valid, degraded (the client lacked CPU time, the server did not answer
for some time, or more than 1 % of the requests failed) or invalid (most requests failed, or none
was answered). The report and stderr name the verdict with its reasons.

Exit code 1: the run failed, the numbers are invalid, --require-valid and the numbers are degraded,
or --fail-on-regression found a regression."""

EXAMPLES = """examples:
  gpuconsole run -- python train.py
      your own job; also python -m, torchrun, accelerate launch, a script
  gpuconsole run --output job.txt -- torchrun --nproc-per-node 2 train.py
  gpuconsole run train-gpt
  gpuconsole run train-gpt --set batch_size=16 --set precision=bf16
  gpuconsole run data-starved --headless --duration 60 --apply-top --snapshot out.json
  gpuconsole run train-gpt --headless --try precision=bf16 --json > session.json
  gpuconsole run train-gpt --headless --duration 30 --profile --profile-dir traces
  gpuconsole run ./my-scenario.toml --record session.jsonl
  gpuconsole run serve-chat --set concurrency=32 --slo ttft=0.5,tpot=0.05
  gpuconsole run serve-chat --url http://10.0.0.2:8000 --api-key-env MY_KEY
      a server that runs already
  gpuconsole run ddp-small-batch --nnodes 2 --rdzv-endpoint 10.0.0.1:29500
  gpuconsole run train-gpt --headless --save-baseline
      run it three times, to measure the spread between runs
  gpuconsole run --headless --restart-knob 'batch_size={--bs}' --try batch_size=8 -- python train.py
  gpuconsole run --headless --memory -- python train.py    also the lines that hold most GPU memory
  gpuconsole run --headless --try num_workers=4 --allow-loader --snapshot s.json -- python train.py
  gpuconsole run --log-to wandb --log-to tensorboard=logs -- python train.py
  gpuconsole run --control -- python train.py    an agent may connect: gpuconsole mcp --connect
  gpuconsole run train-gpt --headless --fail-on-regression
      in CI: exit code 1 if slower than the baseline
"""

OPTIONS = (
    options.SCENARIO,
    options.SET,
    options.DURATION,
    options.HEADLESS,
    options.SNAPSHOT,
    options.JSON._replace(help="print only the snapshot on stdout (implies --headless)"),
    options.APPLY_TOP,
    options.TRY,
    options.SAVE_BASELINE,
    options.FAIL_ON_REGRESSION,
    options.REQUIRE_VALID,
    options.OWN_JOB,
    options.PROFILE,
    options.PROFILE_DIR,
    options.NODES,
    options.SERVING,
    options.LOG_TO,
    options.LOG_COMMAND,
    options.CONTROL,
    options.WATCHING_ON_SCREEN,
)


def run(args: argparse.Namespace) -> int:
    if args.job:
        return run_job(args)
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    tries = assignments(args.tries, chosen)
    writable(args, "--snapshot")
    writable(args, "--record")
    check_server(args, chosen.workload, server_of(chosen, knobs))
    check_nodes(args, chosen.workload)
    check_folder(args.profile_dir)
    if args.save_baseline:
        _check_baselines()
    if not chosen.workload.serves and importlib.util.find_spec("torch") is None:
        from gpuconsole.engine.children.serving import no_torch

        raise UsageError(no_torch())
    if args.headless or args.json:
        from gpuconsole.cli.headless import HeadlessRun

        return HeadlessRun(args, knobs, tries, chosen.workload.serves).run()
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.cli.console import open_console

    return open_console(args, scenario=args.scenario, knobs=knobs)


def _check_baselines() -> None:
    """Raises UsageError now if the run could not be kept at its end."""
    from gpuconsole.experiments.baselines import BaselineError, baselines_folder, check_folder

    try:
        check_folder(baselines_folder())
    except BaselineError as error:
        raise UsageError(f"--save-baseline: {error}") from None
