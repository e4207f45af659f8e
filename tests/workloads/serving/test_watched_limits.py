"""The limits of a watched server change by a command, for the sides of a trial, and come back at
each end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from aiohttp import web

from gpuconsole.model.run import COUNTS, SETTLING
from gpuconsole.model.serving import settle_s
from gpuconsole.wire.events import KnobsSet, Note, Requests, ServerKnown, SetKnobs, Started, Steps
from gpuconsole.workloads.serving import live_limits, watching
from gpuconsole.workloads.serving.in_vllm import gpuconsole_caps
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import OwnLimits
from gpuconsole.workloads.serving.live_limits import find_limits
from gpuconsole.workloads.serving.watching import ServerWatch
from tests.fakes.server_pages import Load, PageServer, page
from tests.workloads.serving.test_watching import Channel, _quick, serving, three_readings, watch  # noqa: F401

LOWER = SetKnobs(1, {"max_num_seqs": 2}, 2)


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnLimits:
    """The limits of the server that is watched. It is in this process, which the watch does not
    count as one of a server."""
    monkeypatch.setattr(gpuconsole_caps, "MEMORY", str(tmp_path))
    monkeypatch.setattr(watching, "find_limits", lambda processes: find_limits([os.getpid()]))
    return OwnLimits(8, 2048)


async def lowered(channel: Channel, watched: ServerWatch) -> None:
    await three_readings(channel, watched)
    await watched.serve(LOWER)


def test_a_server_that_takes_limits_says_so_with_the_values_of_its_start(limits: OwnLimits) -> None:
    channel, _ = watch(serving(PageServer("vllm")), three_readings)
    (started,) = channel.of(Started)
    assert started.knobs == {"max_num_seqs": 8, "max_num_batched_tokens": 2048}
    assert started.facts == {
        "live_limit.max_num_seqs": 8,
        "live_limit.max_num_batched_tokens": 2048,
        "live_limit.engines": 1,
    }
    assert channel.of(ServerKnown)[0].facts.max_num_seqs.source == "the server's scheduler"


def test_a_new_limit_holds_and_the_steps_carry_the_side_until_requests_of_the_other_side_have_gone(
    limits: OwnLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "settle_s", lambda e2e_s: settle_s(e2e_s) / 5)
    seen: list[tuple[int, int]] = []

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await lowered(channel, watched)
        seen.append(limits.read())
        await channel.until(
            lambda: any(
                step.arm == 2 and step.kind == COUNTS
                for event in channel.of(Steps)
                for step in event.steps
            )
        )

    channel, _ = watch(serving(PageServer("vllm")), use)
    (answer,) = channel.of(KnobsSet)
    steps = [step for event in channel.of(Steps) for step in event.steps if step.arm == 2]
    assert (answer.error, answer.knobs["max_num_seqs"], seen) == (None, 2, [(2, 0)])
    assert steps[0].kind == SETTLING and steps[0].index >= answer.step, (
        "the reading of the change belongs to no side"
    )
    assert limits.read() == (0, 0), "the watch has ended"


def test_no_request_goes_to_the_server_for_a_change(limits: OwnLimits) -> None:
    server = PageServer("vllm")
    watch(serving(server), lowered)
    assert {asked.split()[0] for asked in server.asked} == {"GET"}


def test_a_server_that_restarts_has_its_own_limits_and_the_trial_no_more_steps(
    limits: OwnLimits,
) -> None:
    pages = {"seconds": 1000.0}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path != "/metrics":
            return web.Response(status=404)
        pages["seconds"] += 1
        return web.Response(text=page("vllm", Load(), pages["seconds"]))

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await lowered(channel, watched)
        pages["seconds"] = 1
        await channel.until(lambda: any("restarted" in note.text for note in channel.of(Note)))
        count = len(channel.of(Steps))
        await channel.until(lambda: len(channel.of(Steps)) >= count + 2)
        assert limits.read() == (0, 0) and channel.of(Steps)[-1].steps[0].arm == 0

    channel, _ = watch(answer, use)
    assert len(channel.of(Started)) == 2, "the limits of the new server are read again"


def test_a_worker_that_was_held_up_says_that_the_limits_ended(
    limits: OwnLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_limits, "LEASE_S", -1.0)
    monkeypatch.setattr(watching, "RENEW_S", 0.02)

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await lowered(channel, watched)
        await channel.until(
            lambda: any(
                "limits of the server ended by themselves" in note.text for note in channel.of(Note)
            )
        )

    watch(serving(PageServer("vllm")), use)


def test_a_server_without_the_scheduler_class_refuses() -> None:
    async def use(channel: Channel, watched: ServerWatch) -> None:
        await lowered(channel, watched)
        await channel.until(lambda: bool(channel.of(KnobsSet)))

    channel, _ = watch(serving(PageServer("vllm")), use)
    assert (
        channel.of(KnobsSet)[0].error == watching.NO_CHANGE and channel.of(Started)[0].knobs == {}
    )


def test_an_outage_ends_the_trial(limits: OwnLimits) -> None:
    server, alive = PageServer("vllm"), {"now": True}
    answers = serving(server)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await answers(request) if alive["now"] else web.Response(status=503)

    async def use(channel: Channel, watched: ServerWatch) -> None:
        await lowered(channel, watched)
        alive["now"] = False
        await channel.until(lambda: any(event.down for event in channel.of(Requests)))
        alive["now"] = True
        await asyncio.sleep(0)
        await channel.until(lambda: not channel.of(Requests)[-1].down)
        assert limits.read() == (0, 0)

    watch(answer, use)
