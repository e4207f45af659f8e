"""A session of a command without a screen: the engine from the options, opened, recording, and
closed at the end, whatever happens."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from gpuconsole.cli import output
from gpuconsole.cli.exits import on_interrupt
from gpuconsole.cli.options import UsageError
from gpuconsole.cli.scenario import launch_of, server_options
from gpuconsole.cli.values import dcgm, device, interval, price_per_hour, serve_address, writable

if TYPE_CHECKING:
    from gpuconsole.engine.children.early import EarlyChild
    from gpuconsole.experiments.rate_watch import Keeps
    from gpuconsole.experiments.session import LiveSession
    from gpuconsole.report.trackers.choice import TrackerChoice
    from gpuconsole.report.trackers.feed import TrackerFeed

Result = TypeVar("Result")


def live_engine(args: argparse.Namespace, sampler: EarlyChild | None = None) -> LiveSession:
    """The engine, not yet opened; raises UsageError. `sampler`: see `Engine`."""
    # The console's first picture does not wait for these imports.
    from gpuconsole.engine.children.serving import ServingChoice
    from gpuconsole.experiments.session import LiveSession

    keeps: Keeps = (
        "chosen"
        if not getattr(args, "save_baseline", False)
        else "all but slower"
        if args.fail_on_regression
        else "all"
    )
    engine = LiveSession(
        interval(args),
        device(args),
        price_per_hour=price_per_hour(args),
        dcgm=dcgm(args),
        keeps=keeps,
        nodes=launch_of(args),
        serving=ServingChoice(
            server_options(args), getattr(args, "slo", None), getattr(args, "bounds", None) or ()
        ),
        sampler=sampler,
    )
    if getattr(args, "probe", False):
        engine.diagnosis.may_probe_jobs = True
    engine.profile_dir = getattr(args, "profile_dir", None)
    served = serve_address(args)
    if served is not None:
        serve_metrics(engine, *served)
    return engine


def serve_metrics(engine: LiveSession, host: str, port: int, bearer: bytes | None) -> None:
    """Serve the metrics of the session, with those of its workload, while the engine is open.
    Raises UsageError for a bad address."""
    from gpuconsole.report.prometheus.server import MetricsServer

    try:
        server = MetricsServer(host, port, engine.state, bearer)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--serve {host}:{port}: {getattr(error, 'strerror', None) or error}"
        ) from None
    engine.services.append(server.serve)
    engine.note(f"serving http://{server.address}/metrics")


def log_to(args: argparse.Namespace, engine: LiveSession) -> TrackerFeed | None:
    """Feed the trackers of --log-to while the engine is open; None without any. Raises UsageError
    where one cannot be used."""
    chosen: list[TrackerChoice] = getattr(args, "log_to", [])
    if not chosen:
        return None
    from gpuconsole.report.trackers.choice import open_tracker, why_not
    from gpuconsole.report.trackers.feed import TrackerFeed

    makers = []
    for kind, value in chosen:
        if why := why_not(kind):
            raise UsageError(f"--log-to {why}")
        makers.append((kind.name, functools.partial(open_tracker, kind, value)))
    command = shlex.join(sys.argv) if getattr(args, "log_command", False) else ""
    feed = TrackerFeed(
        makers, engine.view, engine.environment, engine.snapshot, engine.note, command
    )
    engine.services.append(feed.serve)
    engine.before_close.append(feed.finish)
    return feed


@contextlib.asynccontextmanager
async def session(
    args: argparse.Namespace,
    error: type[Exception] = UsageError,
    *,
    prepare: Callable[[LiveSession], object] = lambda engine: None,
    warm: bool = False,
) -> AsyncIterator[LiveSession]:
    """An open engine, which records if --record says so. Raises UsageError if the device does not
    exist or the recording cannot be written.

    `error`: the exception that replaces a SessionError in the body, UsageError or CommandFailed.
    `prepare` is called before the engine opens. `warm`: a training worker starts while the engine
    opens.
    """
    from gpuconsole.session.api import SessionError

    engine = live_engine(args)
    feed = log_to(args, engine)
    prepare(engine)
    warming = asyncio.create_task(engine.keep_warm(True)) if warm else None
    try:
        await engine.open()
        if warming is not None:
            await warming
        try:
            engine.device()
            if (recording := writable(args, "--record")) is not None:
                engine.toggle_recording(recording)
        except SessionError as problem:
            raise UsageError(str(problem)) from None
        yield engine
    except SessionError as problem:
        raise error(str(problem)) from None
    finally:
        if warming is not None:
            warming.cancel()
        await engine.close()
        if engine.recording_lost:
            output.problem(engine.recording_lost)
        for line in (
            await asyncio.to_thread(feed.wait, output.print_note) if feed is not None else ()
        ):
            output.problem(line)


async def until_interrupt(work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`; None if the user interrupts it. `work` is cancelled then, and has
    ended."""
    task = asyncio.create_task(work)
    on_interrupt(task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await task
    return None


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Wait until `event` is set, `seconds` at most."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def ended_before(event: asyncio.Event, work: asyncio.Task[Any]) -> bool:
    """Whether `work` has ended before `event` was set. Otherwise `work` is cancelled; the caller
    may wait for its end."""
    stop = asyncio.create_task(event.wait())
    await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if work.done():
        return True
    work.cancel()
    return False
