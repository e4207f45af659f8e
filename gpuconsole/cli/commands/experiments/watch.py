"""The command `gpuconsole watch`: its help, its options, and how it starts."""

from __future__ import annotations

import argparse

from gpuconsole.cli import options
from gpuconsole.cli.options import Group, Option, UsageError, check
from gpuconsole.cli.scenario import check_api_key, check_wait
from gpuconsole.cli.values import check_url, writable
from gpuconsole.model.knobs.catalogue import KnobError, Knobs, parse_assignment
from gpuconsole.model.knobs.serving import LIVE_KNOBS
from gpuconsole.model.serving import PROBE_REQUESTS, parse_latency_bounds
from gpuconsole.tui.terminal import why_no_terminal

HELP = "watch a model server that runs already"
DESCRIPTION = """Watch a model server that runs already, under the load of its own clients: what
limits it, and which of its flags helps.

It reads the metrics page of the server, and the pages on which the server names its model and its
settings. It sends no request to a model unless you ask for a probe (P, or --probe), and changes
nothing, unless you try a limit: a vLLM on this machine that was started with our scheduler class
(one flag, see docs/serving.md) takes lower limits while it runs. --try changes the limit in random
blocks, compares tokens/s and latencies under the traffic that comes, and gives the limit back.
Known are vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM (trtllm-serve, Triton), LMDeploy, Ollama, Ray
Serve, Dynamo and the server of our scenarios. What an engine does not report reads n/a with the
reason. URL may also be the address of the metrics page itself.

--duration counts from the first reading. Ctrl-C ends the command; it keeps what was measured and
still writes the snapshot.

Exit code 1: the server did not answer for most of the time. Exit code 2: nothing could be read; one
line says why."""

EXAMPLES = """examples:
  gpuconsole watch http://127.0.0.1:8000
  gpuconsole watch http://127.0.0.1:8000 --headless --duration 60
  gpuconsole watch https://models.example.com --api-key-env MY_KEY --headless --probe
  gpuconsole watch http://127.0.0.1:8000 --json > session.json
  gpuconsole watch https://models.example.com --api-key-env MY_KEY --record session.jsonl
  gpuconsole watch http://127.0.0.1:8000 --headless --try max_num_seqs=32
  gpuconsole watch http://127.0.0.1:8000 --headless --try max_num_seqs=32 --slo ttft_p99=0.5
  gpuconsole watch http://10.0.0.2:8000 --metrics-url http://10.0.0.2:9400/metrics --model llama
"""

OPTIONS = (
    Option("url", "the address of the server, or of its metrics page", "URL"),
    options.DURATION._replace(help="seconds from the first reading (headless default: 60)"),
    options.HEADLESS,
    options.SNAPSHOT,
    options.TRY._replace(
        help=(
            "try a lower limit (max_num_seqs, max_num_batched_tokens)"
            " under the traffic that comes; it is taken back"
        )
    ),
    Option(
        "--probe",
        (
            f"send {PROBE_REQUESTS} small requests of ours, once:"
            " how long a client waits before the engine counts"
        ),
        refused={"screen": "goes with --headless; on the screen, press P"},
        dest="probe_server",
    ),
    Option(
        "--slo",
        (
            "latencies to keep, in seconds, of ttft, itl or e2e: mean, p50, p90, p95 or p99."
            " A limit that is tried wins only if it keeps them"
        ),
        "ttft_p99=S,itl_mean=S",
        parse_latency_bounds,
        refused={"headless, no --try": "goes with --try NAME=VALUE or the screen"},
        dest="bounds",
    ),
    options.JSON._replace(help="print only the snapshot on stdout (implies --headless)"),
    Group("the server", options.WATCHED_SERVER),
    options.WATCHING_ON_SCREEN,
)


def live_limits(texts: list[str]) -> Knobs:
    """Return the values of the options `--try NAME=VALUE`. Raise UsageError if one is not valid."""
    try:
        return dict(parse_assignment(text, LIVE_KNOBS, "a running server") for text in texts)
    except KnobError as error:
        raise UsageError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Watch the server, on the screen or without it, and return the exit code. Raise UsageError if
    an option is not valid."""
    check_url(args.url, "URL", "http://127.0.0.1:8000")
    check_url(args.metrics_url, "--metrics-url", "http://127.0.0.1:8000/metrics")
    check_api_key(args)
    check_wait(args)
    check(args)
    tries = live_limits(args.tries)
    writable(args, "--snapshot")
    writable(args, "--record")
    args.watch = "yes"
    if args.headless or args.json:
        from gpuconsole.cli.headless import WatchedRun

        return WatchedRun(args, tries).run()
    if why := why_no_terminal():
        raise UsageError(f"{why}; add --headless")
    from gpuconsole.cli.console import open_console

    return open_console(args, scenario=args.url)
