"""Options of serving scenarios: which server, which prompts, and the latency limits of goodput."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from gpuconsole.cli.options.network import check_url
from gpuconsole.cli.options.usage import UsageError, given, refuse_given, written
from gpuconsole.model.knobs.catalogue import Value
from gpuconsole.model.recorded import parse_recorded
from gpuconsole.model.scenario import Workload
from gpuconsole.model.serving import Objective, parse_objective

OPTIONS = ("url", "model", "api_key_env", "metrics_url", "wait", "vllm_python", "vllm_args", "request_timeout", "slo", "prompts")


def add_serving_options(parser: argparse.ArgumentParser, load: bool = True) -> None:
    """`load`: the command sends load to the server and reads its metrics."""
    group = parser.add_argument_group("serving scenarios")
    group.add_argument("--url", metavar="URL", help="an OpenAI-compatible server that runs already (vLLM, SGLang, TGI, llama.cpp, ...)")
    group.add_argument("--model", metavar="NAME", help="with --url: the model to ask for; with server=vllm: a model name or a folder")
    group.add_argument("--api-key-env", metavar="VARIABLE", help="the environment variable that holds the server's key")
    group.add_argument("--wait", type=float, metavar="S", help="with --url: wait up to S seconds for a server that is starting (default 0)")
    group.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PATH",
        help="with server=vllm: the Python that has vLLM (default: this Python, or the Python of the program `vllm` on the PATH)",
    )
    group.add_argument("--vllm-args", metavar="ARGS", help='further flags for vLLM: --vllm-args="--block-size 32 --seed 1"')
    if not load:
        return
    group.add_argument("--metrics-url", metavar="URL", help="address of the server's /metrics (default: on the server itself)")
    group.add_argument(
        "--request-timeout", type=float, metavar="S", help="a request without any data for this time has failed (default 120)"
    )
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="send recorded prompts: each line is a JSON object with prompt or messages, and output_tokens if known",
    )
    group.add_argument("--slo", type=_objective, metavar="ttft=S,tpot=S,e2e=S", help="count requests within these bounds as goodput")


def server_options(args: argparse.Namespace) -> dict[str, str]:
    """The options for the serving worker, by name. They contain no key, only the name of the variable that holds the key."""
    options = {
        "server_url": getattr(args, "url", None),
        "model": getattr(args, "model", None),
        "api_key_env": getattr(args, "api_key_env", None),
        "metrics_url": getattr(args, "metrics_url", None),
        "wait_s": getattr(args, "wait", None),
        "vllm_python": getattr(args, "vllm_python", None),
        "vllm_args": getattr(args, "vllm_args", None),
        "prompts": getattr(args, "prompts", None),
        "timeout_s": getattr(args, "request_timeout", None),
    }
    return {name: str(value) for name, value in options.items() if value is not None}


def objective(args: argparse.Namespace) -> Objective | None:
    found: Objective | None = getattr(args, "slo", None)
    return found


def check_server(args: argparse.Namespace, workload: Workload, server: Value = "") -> None:
    """Raises UsageError for options that do not fit the workload or have bad values, so the command fails before it starts work. `server`: the
    value of the knob; empty: not known."""
    found = [written(name) for name in OPTIONS if given(args, name)]
    if found and not workload.serves:
        raise UsageError(f"{', '.join(found)}: only for serving scenarios; {workload.name} is a training workload")
    if args.url is not None:
        refuse_given(args, "is for a vLLM that gpuconsole starts; the server at --url runs already", "vllm_python", "vllm_args")
    elif server == "embedded":
        refuse_given(args, "needs --set server=vllm", "vllm_python", "vllm_args")
        refuse_given(args, "needs --url, or --set server=vllm", "model", "api_key_env")
    for option, url in (("--url", args.url), ("--metrics-url", getattr(args, "metrics_url", None))):
        check_url(url, option, "http://127.0.0.1:8000")
    timeout_s: float | None = getattr(args, "request_timeout", None)
    if timeout_s is not None and not timeout_s > 0:
        raise UsageError(f"--request-timeout {timeout_s:g}: must be more than 0 s")
    if args.wait is not None and not 0 <= args.wait < math.inf:
        raise UsageError(f"--wait {args.wait:g}: must be 0 s or more")
    if args.wait is not None and args.url is None:
        raise UsageError("--wait needs --url")
    if args.api_key_env is not None and not os.environ.get(args.api_key_env):
        raise UsageError(f"--api-key-env {args.api_key_env}: this environment variable does not exist or is empty")
    if getattr(args, "prompts", None) is not None:
        try:
            args.prompts = args.prompts.absolute()
            parse_recorded(args.prompts.read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise UsageError(f"--prompts {args.prompts}: {getattr(problem, 'strerror', None) or problem}") from None
    if args.vllm_python is not None and not os.access(args.vllm_python, os.X_OK):
        raise UsageError(f"--vllm-python {args.vllm_python}: is not a program that can be run")


def _objective(text: str) -> Objective:
    try:
        return parse_objective(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
