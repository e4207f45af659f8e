"""What the console itself costs: one run on screen, 120x40, in a real pty, at 1 Hz sampling.

    python -m benchmarks.console_cost [--seconds 20] [--repeats 3] [--keep] [-- RUN ARGUMENTS]

Prints CPU share of one core (console and sampler apart), bytes per second to the terminal, time to the first frame (beside
`python -c 'import textual.app'` in the same run), and memory. The worker's own time is not the console's and is left out.
"""

from __future__ import annotations

import argparse
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl

import psutil

from benchmarks.machine import keep


class Screen:
    """The program in a pty whose output is read and counted, never shown."""

    def __init__(self, arguments: list[str], folder: str) -> None:
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.begun = time.monotonic()
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": os.getcwd()}
        command = [sys.executable, "-m", "gpuconsole", *arguments]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env, start_new_session=True)
        os.close(slave)
        self._master = master
        self.bytes = 0
        self.seen = b""
        self.first_frame_s: float | None = None

    def read_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                try:
                    chunk = os.read(self._master, 1 << 16)
                except OSError:  # the program has closed the terminal
                    return
                self.bytes += len(chunk)
                self.seen = (self.seen + chunk)[-200_000:]
                if self.first_frame_s is None and b"gpuconsole" in self.seen:
                    self.first_frame_s = time.monotonic() - self.begun

    def read_until(self, word: bytes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while word not in self.seen:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the screen never showed {word!r}; it ended with {self.seen[-500:]!r}")
            self.read_for(0.2)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)


def processes(console: psutil.Process) -> dict[str, psutil.Process]:
    found = {"console": console}
    for child in console.children():
        if any("telemetry.sampler" in word for word in child.cmdline()):
            found["sampler"] = child
    return found


def cpu_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def measure(arguments: list[str], seconds: float) -> dict[str, float]:
    """One start, one steady window."""
    with tempfile.TemporaryDirectory() as folder:
        screen = Screen(arguments, folder)
        screen.read_until(b"backward", 90)
        screen.read_for(12.0)  # past the probes
        known = processes(psutil.Process(screen.process.pid))
        before, bytes_before, begun = {name: cpu_s(p) for name, p in known.items()}, screen.bytes, time.monotonic()
        screen.read_for(seconds)
        span = time.monotonic() - begun
        result = {f"{name}_cpu_percent": 100 * (cpu_s(p) - before[name]) / span for name, p in known.items()}
        result |= {f"{name}_rss_mb": p.memory_info().rss / 1e6 for name, p in known.items()}
        result["bytes_per_s"] = (screen.bytes - bytes_before) / span
        result["first_frame_s"] = screen.first_frame_s or float("nan")
        pressed = time.monotonic()
        screen.press(b"q")
        while screen.process.poll() is None and time.monotonic() - pressed < 10:
            screen.read_for(0.02)
        result["quits_in_s"] = time.monotonic() - pressed
        screen.process.kill()
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", "import textual.app"], check=True)
    result["import_textual_s"] = time.monotonic() - begun
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("arguments", nargs="*", default=["run", "train-gpt"])
    args = parser.parse_args()
    rows = [measure(args.arguments, args.seconds) for _ in range(args.repeats)]
    print(f"{'':<22} {'median':>10} {'min':>10} {'max':>10}   ({args.repeats} runs of {args.seconds:.0f} s, 120x40, 1 Hz)")
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:<22} {statistics.median(values):>10.2f} {min(values):>10.2f} {max(values):>10.2f}")
    if args.keep:
        print(f"kept in {keep('console-cost', {'arguments': args.arguments, 'seconds': args.seconds, 'runs': rows})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
