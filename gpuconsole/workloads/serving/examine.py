"""Examines the answers of a model server without a load: perplexity, and passkeys at several
lengths and depths.

The console starts it as `python -m gpuconsole.workloads.serving.examine --fd N`. The process ends
after it has sent all results.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable
from pathlib import Path

import aiohttp
import msgspec

from gpuconsole.agent.clock import now
from gpuconsole.model.finding import Signal
from gpuconsole.model.text import percent
from gpuconsole.wire.channel import ChildChannel, kill_own_group
from gpuconsole.wire.events import Failed, ProbeDone, Progress, Start
from gpuconsole.workloads.serving.http import api_key, connect, make_key
from gpuconsole.workloads.serving.load.answer import RequestFailed
from gpuconsole.workloads.serving.load.quality import finds_passkey, perplexity
from gpuconsole.workloads.serving.servers import ServerFailed
from gpuconsole.workloads.serving.worker import choose_server


async def examine(channel: ChildChannel, start: Start, scratch: Path) -> None:
    """Run all examinations in `start.options`: `lengths` in characters and `depths`, both as JSON.
    Raises ServerFailed."""
    make_key(start.options)
    lengths, depths = (
        msgspec.json.decode(start.options[name], type=list[float]) for name in ("lengths", "depths")
    )
    async with await connect(api_key(start.options)) as session:
        server = choose_server(
            start, lambda detail: channel.send(Progress(now(), "starting", detail)), scratch
        )
        try:
            await server.start(session)
            channel.send(Progress(now(), "measuring", "perplexity"))
            await _tell(channel, 0, "perplexity", perplexity(session, server.url, server.model))
            for number, (length, depth) in enumerate(
                ((length, depth) for length in lengths for depth in depths), 1
            ):
                channel.send(
                    Progress(
                        now(),
                        "measuring",
                        f"a passkey {percent(depth)} deep in {length:.0f} characters",
                    )
                )
                await _tell(
                    channel,
                    number,
                    "passkey",
                    _passkey(session, server.url, server.model, int(length), depth),
                )
        finally:
            await server.stop()


async def _tell(
    channel: ChildChannel, number: int, probe: str, measure: Awaitable[dict[str, Signal]]
) -> None:
    begun, error = now(), None
    signals: dict[str, Signal] = {}
    try:
        signals = await measure
    except RequestFailed as problem:
        error = str(problem)
    channel.send(ProbeDone(now(), number, probe, signals, error, now() - begun))


async def _passkey(
    session: aiohttp.ClientSession, url: str, model: str, length: int, depth: float
) -> dict[str, Signal]:
    finds = await finds_passkey(session, url, model, length, depth, 0)
    return {
        "quality.passkey": Signal(float(finds), "", f"{percent(depth)} deep in {length} characters")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="examiner of gpuconsole; internal")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = ChildChannel(args.fd)
    code = asyncio.run(_serve(channel, args.scratch))
    channel.end(code)


async def _serve(channel: ChildChannel, scratch: Path) -> int:
    start = await channel.commands(kill_own_group).get()
    if not isinstance(start, Start):
        return 0
    try:
        await examine(channel, start, scratch)
    except ServerFailed as problem:
        channel.send(Failed(now(), str(problem)))
        return 1
    return 0


if __name__ == "__main__":
    main()
