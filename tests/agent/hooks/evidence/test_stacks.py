"""Whether a line of the script computes or waits, as the stack samples see it."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterator

import pytest

from gpuconsole.agent.clock import ThreadTimes, now
from gpuconsole.agent.hooks.evidence.probes import JobSamples
from gpuconsole.agent.hooks.watch import recorder

LENGTH_S = 0.7
DATA = bytes(30_000_000)


@pytest.fixture
def times() -> Iterator[ThreadTimes]:
    """The clocks of this thread, which is the training thread meanwhile."""
    found = ThreadTimes()
    if not found.available:
        pytest.skip("the kernel reports no run-queue time")
    recorder.begin([])
    yield found
    recorder.reset()


def share(times: ThreadTimes, work: Callable[[], object]) -> float:
    """The share of time in which the thread used a core or waited for one."""
    samples, start = JobSamples(times), now()
    while now() - start < LENGTH_S:
        work()
    samples.stop()
    looked_s, used_s = map(sum, zip(*samples.looked.values(), strict=True))
    return used_s / looked_s


@pytest.mark.rates
@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 400_000), id="hashlib"),
        pytest.param(lambda: zlib.crc32(DATA), id="zlib"),
    ],
)
def test_a_long_call_without_the_interpreter_lock_computes(times: ThreadTimes, work: Callable[[], object]) -> None:
    assert share(times, work) >= 0.8


def test_a_call_that_sleeps_waits(times: ThreadTimes) -> None:
    assert share(times, lambda: time.sleep(0.2)) <= 0.2
