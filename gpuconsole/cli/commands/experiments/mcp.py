"""`gpuconsole mcp`."""

from __future__ import annotations

import argparse
import importlib.util

from gpuconsole.cli import options
from gpuconsole.cli.job import check_job, run_if_possible
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
from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import Knobs

HELP = "one session as an MCP server, for an agent (-- COMMAND)"
DESCRIPTION = """Run a scenario, or your own training job (-- COMMAND ARGS...), as an MCP server on
stdin and stdout: an agent reads the diagnosis, tries changes, keeps proven wins, and gets the
patch. You choose the command; the agent cannot start another one.

--probe, --allow-numerics and --allow-loader let the agent use these permissions; without them it
cannot. The output of the job goes to a file (--output). When the client goes, a trial that is not
decided is taken back and your job continues; a scenario ends. `gpuconsole skill` prints how an
agent should work with it.

--connect works on a console that is open in another terminal (gpuconsole run --control ...): you
see on its screen what the agent tries, and key c takes the control back."""

EXAMPLES = """examples:
  gpuconsole mcp -- python train.py
  gpuconsole mcp --probe --allow-numerics -- torchrun --nproc-per-node 2 train.py
  gpuconsole mcp --output job.txt --patch faster.patch --snapshot session.json -- python train.py
  gpuconsole mcp data-starved
  gpuconsole mcp --connect
      a console that you have opened with: gpuconsole run --control -- python train.py
"""


def _pid(text: str) -> int:
    """A process id. Raises ValueError."""
    if not text.isascii() or not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise ValueError(f"{text}: is no pid")
    return int(text)


CONNECT = options.Option(
    "--connect",
    (
        "work on the session of a console that is open on this machine (gpuconsole run --control);"
        " PID: which one"
    ),
    "PID",
    _pid,
    {"job": "goes without a command: the console has one"},
    nargs="?",
    const=0,
)

OPTIONS = (
    options.SCENARIO,
    options.SET,
    options.SNAPSHOT,
    options.PROFILE_DIR._replace(refused={}),
    options.Group(
        "a job of your own (-- COMMAND ARGS...)",
        (
            options.OUTPUT._replace(
                help=(
                    "append all output of the job to FILE (default: a dated file in the current"
                    " directory)"
                )
            ),
            options.STORE_COMMAND,
            options.PROBE._replace(
                dest="may_probe",
                help=(
                    "the agent may allow probes in the job: extra passes on copies of its last"
                    " batch"
                ),
            ),
            options.ALLOW_NUMERICS._replace(
                dest="may_change_numerics",
                help="the agent may allow changes that alter the numbers of the job",
            ),
            options.ALLOW_LOADER._replace(
                dest="may_change_loader",
                help="the agent may allow new workers of the job's DataLoader",
            ),
            options.MEMORY,
            options.PATCH,
        ),
    ),
    options.Group("an open console", (CONNECT,)),
    options.SERVING,
    options.WATCHING,
)


def run(args: argparse.Namespace) -> int:
    if importlib.util.find_spec("mcp") is None:
        raise UsageError(f"the MCP SDK is not installed: {install_command('mcp')}")
    if args.connect is not None:
        return _connect(args)
    check_folder(args.profile_dir)
    if args.job:
        check_job(args)
        return run_if_possible(args, lambda: _serve(args, {}))
    chosen = scenario(scenario_of(args))
    knobs = assignments(args.knobs, chosen)
    writable(args, "--snapshot")
    writable(args, "--record")
    check_server(args, chosen.workload, server_of(chosen, knobs))
    check_nodes(args, chosen.workload)
    if not chosen.workload.serves and importlib.util.find_spec("torch") is None:
        from gpuconsole.engine.children.serving import no_torch

        raise UsageError(no_torch())
    return _serve(args, knobs)


def _serve(args: argparse.Namespace, knobs: Knobs) -> int:
    from gpuconsole.cli.agents import AgentSession  # bad usage does not wait for the SDK

    return AgentSession(args, knobs).run()


def _connect(args: argparse.Namespace) -> int:
    from gpuconsole.mcp.control import NoConsole, choose_console

    others = [
        option.name
        for option in options.each(OPTIONS)
        if option.name != CONNECT.name and option.given(args)
    ]
    if others:
        raise UsageError(f"--connect goes without {', '.join(others)}: the console has its own")
    try:
        path = choose_console(args.connect)
    except NoConsole as problem:
        raise UsageError(f"--connect: {problem}") from None
    from gpuconsole.cli.agents import connect

    return connect(path)
