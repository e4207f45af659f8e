"""The embedded server as a process: `python -m gpuconsole.workloads.serving.engine --knobs JSON`.

The server prints `serving http://127.0.0.1:PORT` when it is ready, and `progress ...` lines during
a long start. After a failure the last line of stderr is the cause.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.process import without_collections


def main() -> None:
    parser = argparse.ArgumentParser(description="the embedded model server of gpuconsole")
    parser.add_argument(
        "--knobs", type=json.loads, required=True, help="values of the server's settings, as JSON"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--live-limits",
        action="store_true",
        help="let `gpuconsole watch` change the limits of the scheduler",
    )
    args = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the console handles Ctrl-C
    try:
        asyncio.run(run_engine_server(args))
    except (OSError, RuntimeError, ValueError) as problem:
        print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
        sys.exit(1)


async def run_engine_server(args: argparse.Namespace) -> None:
    with without_collections():
        from aiohttp import web

        from gpuconsole.workloads.serving.engine.build import build

    server = build(
        args.knobs, args.device, args.seed, lambda text: print(f"progress {text}", flush=True)
    )
    if args.live_limits:
        server.offer_limits(args.knobs)
    runner = web.AppRunner(server.application(), access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", args.port)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"serving http://{host}:{port}", flush=True)
    await server.run_engine()


if __name__ == "__main__":
    main()
