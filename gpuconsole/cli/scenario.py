"""The scenario of a command: values for its knobs, its server, and the machines that it runs on."""

from __future__ import annotations

import argparse
import errno
import math
import os
import shutil
import socket
from typing import TYPE_CHECKING

from gpuconsole.cli.options import RDZV_ID, SERVING, UsageError, check
from gpuconsole.cli.values import check_url, parse_address
from gpuconsole.engine.catalog import find_scenario
from gpuconsole.host.files import read_limited
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, Value, parse_assignment
from gpuconsole.model.scenario import Scenario, ScenarioError, Workload

if TYPE_CHECKING:
    from gpuconsole.engine.children.torchrun import Launch

OWN_COMMAND = "a command of your own goes after --, as in: gpuconsole run -- python train.py"


def scenario_of(args: argparse.Namespace) -> str:
    """The scenario on the command line; raises UsageError where there is none."""
    if args.scenario is None:
        raise UsageError(
            f"{args.command} needs a SCENARIO, or a command of your own: gpuconsole {args.command}"
            " -- COMMAND ARGS..."
        )
    return str(args.scenario)


def scenario(name: str) -> Scenario:
    """The scenario with this name or path; raises UsageError."""
    try:
        return find_scenario(name)
    except ScenarioError as error:
        if name.endswith(".py") or shutil.which(name) is not None:
            raise UsageError(f"{name} is no scenario; {OWN_COMMAND}") from None
        raise UsageError(str(error)) from None


def assignments(texts: list[str], chosen: Scenario) -> Knobs:
    """The values of `NAME=VALUE` texts (`--set`, `--try`), checked against the scenario's workload;
    raises UsageError."""
    try:
        return dict(parse_assignment(text, chosen.workload.knobs, chosen.name) for text in texts)
    except KnobError as error:
        raise UsageError(str(error)) from None


def server_of(chosen: Scenario, knobs: Knobs) -> Value:
    """The value of the knob `server` in a serving scenario; empty in a training scenario."""
    return {**chosen.knobs_for("cpu"), **knobs}.get("server", "")


def server_options(args: argparse.Namespace) -> dict[str, str]:
    """The options for the serving worker, by name. They contain no key, only the name of the
    variable that holds the key."""
    keys = {option.key: option.key for option in SERVING.options if option.key != "slo"}
    keys |= {
        "url": "server_url",
        "wait": "wait_s",
        "request_timeout": "timeout_s",
        "watch": "watch",
    }
    return {
        name: str(value)
        for key, name in keys.items()
        if (value := getattr(args, key, None)) is not None
    }


def check_server(args: argparse.Namespace, workload: Workload, server: Value = "") -> None:
    """Raises UsageError for options that have no effect on the workload or have bad values, so the
    command fails before it starts work. `server`: the value of the knob; empty: not known."""
    given = [option.name for option in SERVING.options if option.given(args)]
    if given and not workload.serves:
        raise UsageError(f"{', '.join(given)}: only for serving scenarios; {workload.name} trains")
    check(args, "serving" if workload.serves else "training", f"{server} server")
    for option, url in (("--url", args.url), ("--metrics-url", getattr(args, "metrics_url", None))):
        check_url(url, option, "http://127.0.0.1:8000")
    timeout_s: float | None = getattr(args, "request_timeout", None)
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"--request-timeout {timeout_s:g}: must be more than 0 s")
    check_wait(args)
    check_api_key(args)
    if getattr(args, "prompts", None) is not None:
        from gpuconsole.model.serving import MAX_PROMPT_BYTES, parse_recorded

        try:
            args.prompts = args.prompts.absolute()
            parse_recorded(read_limited(args.prompts, MAX_PROMPT_BYTES).decode())
        except (OSError, ValueError) as problem:
            raise UsageError(
                f"--prompts {args.prompts}: {getattr(problem, 'strerror', None) or problem}"
            ) from None
    if args.vllm_python is not None and not os.access(args.vllm_python, os.X_OK):
        raise UsageError(f"--vllm-python {args.vllm_python}: is not a program that can be run")


def check_wait(args: argparse.Namespace) -> None:
    """Raises UsageError where --wait is no number of seconds."""
    if args.wait is not None and not 0 <= args.wait < math.inf:
        raise UsageError(f"--wait {args.wait:g}: must be 0 s or more")


def check_api_key(args: argparse.Namespace) -> None:
    """Raises UsageError where the variable of --api-key-env holds nothing."""
    if args.api_key_env is not None and not os.environ.get(args.api_key_env):
        raise UsageError(
            f"--api-key-env {args.api_key_env}: this environment variable does not exist or is"
            " empty"
        )


def check_nodes(args: argparse.Namespace, workload: Workload) -> None:
    """Raises UsageError where the options of several machines do not fit the workload or each
    other."""
    if "nproc" not in workload.knobs:
        check(args, "one process", workload=workload.name)
    launch_of(args)


def launch_of(args: argparse.Namespace) -> Launch | None:
    """The rendezvous of several machines; None for this machine alone. Raises UsageError."""
    nnodes: int | None = getattr(args, "nnodes", None)
    count = 1 if nnodes is None else nnodes
    endpoint: str | None = getattr(args, "rdzv_endpoint", None)
    if not 1 <= count <= 1024:
        raise UsageError(f"--nnodes {count}: allowed are 1 to 1024")
    if count == 1:
        check(args, "one machine")
        return None
    from gpuconsole.engine.children.torchrun import Launch

    if not endpoint:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint HOST:PORT, an address of this machine that the"
            " other machines can reach"
        )
    host, port = parse_address(endpoint, "--rdzv-endpoint")
    if port == 0:
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: the port must not be 0, because the other machines need"
            " it"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"--rdzv-endpoint {endpoint}: the port is taken") from None
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: not an address of this machine: {error.strerror}"
        ) from None
    number = str(address[0])
    launch = Launch(
        1,
        count,
        f"[{number}]:{port}" if ":" in number else f"{number}:{port}",
        args.rdzv_id or RDZV_ID,
    )
    if launch.on_loopback:
        raise UsageError(
            f"--rdzv-endpoint {endpoint}: {number} is a loopback address, which no other machine"
            " reaches; `hostname -I` prints others"
        )
    return launch
