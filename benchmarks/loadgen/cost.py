"""CPU time of a client's processes over the tokens that the scripted server sends at the same
time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
import urllib.request

import psutil

STREAMING_TOKENS_PER_S = 1000.0
"""Fewer than that in a second, and it is still starting."""
STEADY_S = 3.0
WINDOW_S = 8.0
START_S = 120.0


def streaming_cost(command: list[str], env: dict[str, str], url: str, only: str = "") -> float:
    """CPU seconds per 1 000 tokens of `command` and its children, without start and end; only of
    processes whose command line has `only`.

    Raises RuntimeError if the client does not stream.
    """
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=words, stderr=words, start_new_session=True
        )
        try:
            _wait_until_it_streams(process, url)
            tokens, cpu = _sent(url), _cpu_s(process.pid, only)
            time.sleep(WINDOW_S)
            return 1000 * (_cpu_s(process.pid, only) - cpu) / (_sent(url) - tokens)
        finally:
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            process.wait()


def _wait_until_it_streams(process: subprocess.Popen[bytes], url: str) -> None:
    deadline, since, before = time.monotonic() + START_S, time.monotonic(), _sent(url)
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(1.0)
        sent = _sent(url)
        if sent - before < STREAMING_TOKENS_PER_S:
            since = time.monotonic()
        before = sent
        if time.monotonic() - since >= STEADY_S:
            return
    raise RuntimeError(f"{process.args!r} does not stream")


def _sent(url: str) -> float:
    with urllib.request.urlopen(f"{url}/sent", timeout=10) as answer:
        return float(answer.read())


def _cpu_s(pid: int, only: str) -> float:
    """So far, of the process and its children that live; they live as long as they stream."""
    root = psutil.Process(pid)
    total = 0.0
    for one in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            if only in " ".join(one.cmdline()):
                total += sum(one.cpu_times()[:2])
    return total
