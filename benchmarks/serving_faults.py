"""The faults of model servers: what the console says about each fault, how soon, and how the run
ends.

    python -m benchmarks.serving_faults [--only NAME ...] [--ways headless screen] [--parallel 2]
        [--outputs FOLDER]

Each fault is shown to the real command line twice: headless, and on a screen of 120x40 in a
pseudo-terminal. The seconds count from the moment of the fault to the first message about it. A
fault that is there before the command counts from the first request that it spoils, or from the
first output of the command where the server sees no such request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.doc_table import table
from tests.fakes.faulty_server import FaultyServer, make_certificate
from tests.pty.terminal import Terminal

DURATION_S = 8.0
SOONEST_S = 5.0
"""A message about a fault must come within this time."""
GRACE_S = 10.0
"""A headless command must end within the duration and this time."""
PATIENCE_S = 45.0
"""The time after which a command that has not ended is killed."""
WARM_TOKENS = 1500
"""Tokens of the server before a fault begins: about two seconds of load."""
GONE = (
    r"does not answer|not answering|no answer|cannot connect|onnection refused|broke off|onnection"
    r" reset"
)
NO_MESSAGE = "/metrics: "
"""A line about the page with the metrics is no message about the server, except in the case of that
page."""
STARVED = "waited for a CPU"
"""A degraded run for this reason alone: other programs use the machine, and the server is not the
cause."""
WAYS = ("headless", "screen", "ctrl-c")
"""`ctrl-c`: headless, and SIGINT comes INTERRUPT_S after the fault; the command must end at once
and write the snapshot."""
INTERRUPT_S = 1.5
QUIT_S = 3.0


@dataclass(frozen=True)
class Case:
    """One fault, or one unusual way to answer correctly (`says` is empty: no message is required).
    `code`: the exit code; None: 1 for an invalid run, otherwise 0. `begin`: the fault that begins
    under load (`FaultyServer.begin`); empty for a fault that is there from the start.

    `says`: a pattern that each message about the fault contains. `server`: words for the server;
    None: there is no server. `address`: the address for `--url`, with PORT in place of the port.
    `words`: further words of the command. `after_s`: the server starts so many seconds after the
    command.
    """

    name: str
    says: str
    verdicts: tuple[str, ...]
    code: int | None
    begin: str = ""
    server: tuple[str, ...] | None = ()
    address: str = "http://127.0.0.1:PORT"
    words: tuple[str, ...] = ()
    tls: bool = False
    after_s: float = 0.0


NARROW = ("--max-model-len", "512", "--characters-per-token", "1")
SECRETIVE = (*NARROW, "--secretive")
TOO_LONG = r"context length|too long|longer than"
CASES = (
    Case(
        "too long prompt, all",
        TOO_LONG,
        ("invalid",),
        1,
        server=SECRETIVE,
        words=("--set", "prompt_tokens=600", "--set", "length_spread=0"),
    ),
    Case(
        "too long prompt, some",
        TOO_LONG,
        ("degraded",),
        0,
        server=SECRETIVE,
        words=("--set", "prompt_tokens=400", "--set", "length_spread=0.6"),
    ),
    Case(
        "too long prompt, the limit is known",
        "shortened",
        ("valid", "degraded"),
        0,
        server=NARROW,
        words=("--set", "prompt_tokens=600", "--set", "length_spread=0"),
    ),
    Case("death in mid-stream", GONE, ("invalid", "degraded"), None, begin="dies"),
    Case("restart", rf"{GONE}|restarted", ("degraded",), 0, begin="restarts"),
    Case("silence before the first byte", GONE, ("invalid", "degraded"), None, begin="silent"),
    Case("no answer from the start", GONE, ("invalid",), 1, server=("--fault", "silent")),
    Case("accepted, never answered", GONE, ("invalid",), 1, begin="stops-first"),
    Case("silence in mid-stream", GONE, ("invalid", "degraded"), None, begin="stall"),
    Case("process stopped in mid-stream", GONE, ("invalid", "degraded"), None, begin="stops"),
    Case("HTTP 500 on half of the requests", r"HTTP 500", ("degraded",), 0, begin="half-500"),
    Case(
        "HTTP 500 to all requests from now on",
        r"HTTP 500",
        ("invalid", "degraded"),
        None,
        begin="all-500",
    ),
    Case(
        "death in mid-stream, open loop",
        GONE,
        ("invalid", "degraded"),
        None,
        begin="dies",
        words=("--set", "request_rate=20"),
    ),
    Case(
        "silence in mid-stream, open loop",
        GONE,
        ("invalid", "degraded"),
        None,
        begin="stall",
        words=("--set", "request_rate=20"),
    ),
    Case(
        "https:// to a plain port",
        r"plain http|no TLS|not speak TLS|speaks http",
        ("invalid",),
        1,
        address="https://127.0.0.1:PORT",
    ),
    Case("http:// to a TLS port", r"TLS|https:", ("invalid",), 1, tls=True),
    Case(
        "certificate not trusted",
        r"certificate",
        ("invalid",),
        1,
        tls=True,
        address="https://127.0.0.1:PORT",
    ),
    Case(
        "DNS failure",
        r"not known|resolve|no such host|DNS|unknown host",
        ("invalid",),
        1,
        server=None,
        address="http://no-such-host.invalid:8000",
    ),
    Case("refused connection", r"refused|nothing listens", ("invalid",), 1, server=None),
    Case(
        "wrong model",
        r"does not exist|not serve|no model|serves",
        ("invalid",),
        1,
        words=("--model", "no-such-model"),
    ),
    Case(
        "slow start, refused",
        r"refused|waiting|nothing listens",
        ("valid",),
        0,
        after_s=4.0,
        words=("--wait", "30"),
    ),
    Case(
        "slow start, HTTP 503",
        r"503|waiting",
        ("valid",),
        0,
        server=("--loading-s", "4"),
        words=("--wait", "30"),
    ),
    Case(
        "one character per token",
        "",
        ("valid",),
        0,
        server=NARROW,
        words=("--set", "prompt_tokens=200"),
    ),
    Case(
        "one character per token, older vLLM",
        "",
        ("valid",),
        0,
        server=(*NARROW, "--dialect", "old-vllm"),
        words=("--set", "prompt_tokens=200"),
    ),
    *(
        Case(name, "", ("valid",), 0, server=("--dialect", dialect))
        for name, dialect in {
            "no keep-alive": "close",
            "HTTP/1.0": "http10",
            "SSE with CRLF": "crlf",
            "UTF-8 over two segments": "utf8",
            "gzip": "gzip",
        }.items()
    ),
    Case(
        "redirect", r"redirects are not followed", ("invalid",), 1, server=("--dialect", "redirect")
    ),
    Case(
        "one byte per segment",
        "",
        ("valid",),
        0,
        server=("--dialect", "bytes"),
        words=("--set", "concurrency=1"),
    ),
    Case(
        "/metrics without an answer",
        r"/metrics",
        ("valid",),
        0,
        server=("--dialect", "blocked-metrics"),
    ),
    Case(
        "answers without a token",
        r"without a token",
        ("invalid",),
        1,
        server=("--dialect", "no-tokens"),
    ),
    Case(
        "HTTP 429 to all requests", r"HTTP 429", ("invalid",), 1, server=("--fault", "overloaded")
    ),
    Case("HTTP 429 from now on", r"HTTP 429", ("invalid", "degraded"), None, begin="overloaded"),
    Case(
        "model name with spaces and an escape",
        "",
        ("valid",),
        0,
        server=("--model", "my model \x1b[31m é"),
    ),
)


@dataclass
class Result:
    case: Case
    way: str
    message: str = ""
    after_s: float | None = None
    code: int | None = None
    verdict: str = "no file"
    reasons: list[str] = field(default_factory=list)
    total_s: float = 0.0
    quit_s: float | None = None
    duration_s: float = DURATION_S
    outputs: str = ""

    def wrong(self, slack: float = 1.0) -> list[str]:
        """What the acceptance does not allow. `slack`: a factor for the limits of time, for a
        machine that does other work at the same time."""
        found = []
        if self.quit_s is not None and self.quit_s > QUIT_S * slack:
            found.append(f"took {self.quit_s:.1f} s to quit")
        if self.way == "ctrl-c":
            return found + (["no snapshot"] if self.verdict == "no file" else [])
        if not self.case.says:
            pass
        elif self.after_s is None:
            found.append("no message")
        elif self.after_s > SOONEST_S * slack:
            found.append(f"the message comes after {self.after_s:.1f} s")
        wanted = self.case.code if self.case.code is not None else int(self.verdict == "invalid")
        if self.code != wanted:
            found.append(f"exit code {self.code}, not {wanted}")
        starved = (
            all(STARVED in reason for reason in self.reasons) and "valid" in self.case.verdicts
        )
        if self.verdict not in self.case.verdicts and not (self.verdict == "degraded" and starved):
            found.append(f"verdict {self.verdict}, not {' or '.join(self.case.verdicts)}")
        if self.way == "headless" and self.total_s > self.duration_s + GRACE_S * slack:
            found.append(f"took {self.total_s:.0f} s")
        return found


def about(case: Case, text: str) -> re.Match[str] | None:
    """Where `text` is a message about the fault of `case`."""
    if NO_MESSAGE in text and NO_MESSAGE.strip(": ") not in case.says:
        return None
    return re.search(case.says, text) if case.says else None


class Lines:
    """The lines of a process, each with its time."""

    def __init__(self, command: Sequence[str], cwd: Path, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[tuple[float, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def first(self, case: Case, since: float) -> tuple[float, str] | None:
        return next(
            ((t, line.strip()) for t, line in self.lines if t >= since and about(case, line)), None
        )

    def wait_end(self, timeout_s: float) -> int | None:
        """The exit code; None for a process that had to be killed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code: int | None = self.process.wait(timeout_s)
            self._reader.join(2.0)
            return code
        self.process.kill()
        self.process.wait()
        return None


class Served:
    """The server of one case, and the time of the fault."""

    def __init__(self, case: Case, folder: Path) -> None:
        self._case = case
        self.server: FaultyServer | None = None
        if case.server is not None:
            self.server = FaultyServer(
                *case.server, tls=make_certificate(folder) if case.tls else None, port=free_port()
            )
        self._port = self.server.port if self.server is not None else free_port()
        self._begun = 0.0
        self.first_output: float | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[Served]:
        try:
            if self.server is not None and not self._case.after_s:
                self.server.start()
                if self._case.begin == "stops-first":
                    self.server.begin("stops")
            self._begun = time.monotonic()
            if self.server is not None and self._case.after_s:
                self.server.start_later(self._case.after_s)
            yield self
        finally:
            if self.server is not None:
                self.server.__exit__()

    @property
    def address(self) -> str:
        return self._case.address.replace("PORT", str(self._port))

    def begin(self, alive: Callable[[], bool]) -> None:
        """Begin a fault of the kind that begins under load. Returns without a fault when the
        command has ended."""
        if not self._case.begin or self._case.begin == "stops-first":
            return
        assert self.server is not None
        while alive() and self._tokens() < WARM_TOKENS:
            time.sleep(0.05)
        self.server.begin(self._case.begin)

    @property
    def fault_at(self) -> float:
        told = (
            self.server.fault_at
            if self.server is not None and self._case.begin != "stops-first"
            else None
        )
        return told if told is not None else self.first_output or self._begun

    def _tokens(self) -> float:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=2.0) as answer,
        ):
            found = re.search(r"generation_tokens_total\S* ([\d.]+)", answer.read().decode())
            return float(found.group(1)) if found else 0.0
        return 0.0


def measure(case: Case, way: str, duration_s: float = DURATION_S) -> Result:
    """Show one fault to the console in one way. `duration_s`: the value of `--duration`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Served(case, folder).open() as served:
            words = [
                "run",
                "serve-chat",
                "--url",
                served.address,
                "--device",
                "cpu",
                "--duration",
                f"{duration_s:g}",
            ]
            words += ["--snapshot", "out.json", *case.words]
            result = {"headless": headless, "screen": on_screen, "ctrl-c": interrupted}[way](
                case, served, words, folder
            )
        result.duration_s = duration_s
        with contextlib.suppress(OSError):
            read_verdict(result, json.loads((folder / "out.json").read_text()))
    return result


def headless(case: Case, served: Served, words: list[str], folder: Path) -> Result:
    begun = time.monotonic()
    command = Lines(
        [sys.executable, "-m", "gpuconsole", *words, "--headless"], folder, environment(folder)
    )
    served.begin(lambda: command.process.poll() is None)
    code = command.wait_end(PATIENCE_S - (time.monotonic() - begun))
    result = Result(case, "headless", code=code, total_s=time.monotonic() - begun)
    served.first_output = command.lines[0][0] if command.lines else None
    if (first := command.first(case, served.fault_at)) is not None:
        result.after_s, result.message = first[0] - served.fault_at, first[1]
    result.outputs = "\n".join(f"{t - served.fault_at:7.2f} {line}" for t, line in command.lines)
    return result


def interrupted(case: Case, served: Served, words: list[str], folder: Path) -> Result:
    """Ctrl-C while the fault lasts."""
    begun = time.monotonic()
    command = Lines(
        [sys.executable, "-m", "gpuconsole", *words, "--headless"], folder, environment(folder)
    )
    served.begin(lambda: command.process.poll() is None)
    time.sleep(INTERRUPT_S if case.begin else 2 * INTERRUPT_S)
    asked, running = time.monotonic(), command.process.poll() is None
    command.process.send_signal(signal.SIGINT)
    code = command.wait_end(PATIENCE_S - (asked - begun))
    result = Result(case, "ctrl-c", code=code, total_s=time.monotonic() - begun)
    result.quit_s = time.monotonic() - asked if running else None
    result.message = command.lines[-1][1] if command.lines else ""
    result.outputs = "\n".join(f"{t - served.fault_at:7.2f} {line}" for t, line in command.lines)
    return result


def on_screen(case: Case, served: Served, words: list[str], folder: Path) -> Result:
    """Wait for the message, then quit with `q`."""
    begun = time.monotonic()
    result = Result(case, "screen")
    with Terminal(*words, cwd=folder, env=environment(folder)) as terminal:

        def alive() -> bool:
            terminal.read(0.0)
            return terminal.process.poll() is None

        served.begin(alive)
        while (
            case.says
            and terminal.process.poll() is None
            and time.monotonic() < begun + DURATION_S + 12.0
        ):
            terminal.settle()
            terminal.read(0.05)
            if served.first_output is None and terminal.raw:
                served.first_output = time.monotonic()
            found = next(
                ((zone, match) for zone in zones(terminal.text) if (match := about(case, zone))),
                None,
            )
            if found is not None and time.monotonic() >= served.fault_at:
                zone, match = found
                result.after_s = time.monotonic() - served.fault_at
                result.message = zone[max(0, match.start() - 70) : match.end() + 70].strip(" ─")
                break
        if "invalid" not in case.verdicts:  # the run goes on and must give figures
            wait_for(
                lambda: not alive() or "req/s" in terminal.text or "finished" in terminal.text, 12.0
            )
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and terminal.read(0.1):
            pass
        result.outputs = terminal.text
        asked = time.monotonic()
        terminal.press("q")
        with contextlib.suppress(AssertionError):
            result.code = terminal.wait_exit(20.0)
            result.quit_s = time.monotonic() - asked
    result.total_s = time.monotonic() - begun
    return result


def zones(text: str) -> list[str]:
    """The text of each zone of a screen, its wrapped lines joined."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        for part in re.finditer(r"[^│╭╮╰╯]+", line):
            found.setdefault(part.start(), []).append(part.group().strip())
    return [" ".join(" ".join(lines).split()) for lines in found.values()]


def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def read_verdict(result: Result, snapshot: dict[str, Any]) -> None:
    for run in snapshot["runs"][-1:]:
        validity = run.get("validity") or {}
        result.verdict, result.reasons = (
            validity.get("verdict", "none"),
            validity.get("reasons", []),
        )


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user with empty caches."""
    homes = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("CONFIG", "CACHE", "DATA")}
    return {**os.environ, **homes, "PYTHONPATH": str(Path(__file__).parent.parent)}


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def row(result: Result) -> tuple[str, ...]:
    seconds = f"{max(0.0, result.after_s):.1f}" if result.after_s is not None else "never"
    code = str(result.code) if result.code is not None else "killed"
    return (
        result.case.name,
        result.way,
        result.message[:160] or "-",
        seconds,
        code,
        result.verdict,
        f"{result.total_s:.1f}",
        f"{result.quit_s:.1f}" if result.quit_s is not None else "-",
        "; ".join(result.wrong()),
    )


HEAD = (
    "fault",
    "way",
    "first message about the fault",
    "after, s",
    "exit code",
    "verdict",
    "total, s",
    "quit, s",
    "wrong",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="cases whose name contains one of these words"
    )
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=WAYS[:2])
    parser.add_argument("--parallel", type=int, default=2, help="cases at the same time")
    parser.add_argument("--outputs", type=Path, help="folder for what each command printed")
    args = parser.parse_args()
    cases = [
        case for case in CASES if not args.only or any(word in case.name for word in args.only)
    ]
    todo = [(case, way) for case in cases for way in args.ways]
    with ThreadPoolExecutor(args.parallel) as pool:
        results = list(pool.map(lambda one: measure(*one), todo))
    if args.outputs is not None:
        args.outputs.mkdir(parents=True, exist_ok=True)
        for result in results:
            name = re.sub(r"\W+", "-", f"{result.case.name} {result.way}").strip("-")
            (args.outputs / f"{name}.txt").write_text(
                result.outputs + "\n" + "\n".join(result.reasons) + "\n"
            )
    print(table(HEAD, [row(result) for result in results]), end="")
    failed = sum(bool(result.wrong()) for result in results)
    print(f"\n{len(results) - failed} of {len(results)} as required")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
