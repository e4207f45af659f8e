"""The sampler child: reads every source on a fixed beat and sends what it finds down the wire.

A driver call can hang for seconds; here it holds up nobody but this process, which the console can leave behind.

    python -m gpuconsole.telemetry.sampler --fd N [--interval SECONDS]
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Sequence

from gpuconsole import __version__
from gpuconsole.telemetry.host import HostSource
from gpuconsole.telemetry.nvml.library import NoNvml
from gpuconsole.telemetry.nvml.source import NvmlSource
from gpuconsole.telemetry.source import Reasons, Source
from gpuconsole.wire.channel import ChildChannel, die_with_parent
from gpuconsole.wire.events import AnyCommand, Devices, Hello, Sample, Stop, Unavailable

FIRST_GAP_S = 0.15  # long enough for a rate over 10 ms clock ticks to mean something
LAST_WORDS_S = 0.5


class Sampler:
    """Sends one round of samples every `interval_s` until `stop` is set."""

    def __init__(self, channel: ChildChannel, interval_s: float) -> None:
        self._channel = channel
        self._interval_s = interval_s
        self._sources: list[Source] = []
        self._told: Reasons = {}
        self._cost = OwnCost()
        self.stop = threading.Event()

    def run(self) -> None:
        now = time.monotonic()
        self._channel.send(Hello(t=now, role="sampler", pid=os.getpid(), version=__version__, wall_time=time.time()))
        self._open_sources()
        for source in self._sources:
            source.prime()
        due = time.monotonic() + min(FIRST_GAP_S, self._interval_s)
        while not self.stop.wait(max(0.0, due - time.monotonic())):
            self._tick()
            due = next_beat(due, self._interval_s, time.monotonic())

    def _open_sources(self) -> None:
        """NVML where it works, the host always and last."""
        driver, reason = None, ""
        try:
            gpus = NvmlSource()
        except NoNvml as why:
            reason = str(why)
        else:
            driver = gpus.driver
            self._sources.append(gpus)
        self._sources.append(HostSource())
        devices = [device for source in self._sources for device in source.devices()]
        self._channel.send(Devices(t=time.monotonic(), devices=devices, driver=driver, reason=reason))

    def _tick(self) -> None:
        """One round; the sampler's own cost is its last message."""
        for source in self._sources:
            readings = source.read(time.monotonic())
            self._tell_unavailable(source.unavailable())
            for event in readings:
                self._channel.send(event)
        cost = {"console.cpu_ratio": self._cost.cpu_ratio()}
        self._channel.send(Sample(t=time.monotonic(), device="sampler", values=cost))

    def _tell_unavailable(self, reasons: Reasons) -> None:
        """Send each device's list when it has changed; an empty one takes an earlier one back."""
        for device, now_missing in reasons.items():
            if self._told.get(device, {}) != now_missing:
                self._told[device] = dict(now_missing)
                self._channel.send(Unavailable(t=time.monotonic(), device=device, reasons=self._told[device]))


class OwnCost:
    """CPU time of this process over wall time since the last reading."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._cpu_s = time.process_time()

    def cpu_ratio(self) -> float:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        ratio = (cpu_s - self._cpu_s) / max(wall_s - self._wall_s, 1e-9)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return ratio


def next_beat(due: float, interval_s: float, now: float) -> float:
    """The first beat after `now` on the schedule that `due` is part of: late beats are skipped, never made up."""
    missed = max(0, int((now - due) // interval_s))
    return due + (missed + 1) * interval_s


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="gpuconsole.telemetry.sampler")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the console")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two rounds")
    options = parser.parse_args(arguments)
    if options.interval <= 0:
        parser.error("--interval must be above 0")
    die_with_parent()
    channel = ChildChannel(options.fd)
    sampler = Sampler(channel, options.interval)

    def on_command(command: AnyCommand) -> None:
        if isinstance(command, Stop):
            sampler.stop.set()

    # Not sys.exit: the main thread may sit in a driver call that never returns.
    channel.listen(on_command, on_parent_gone=lambda: os._exit(0))
    sampler.run()
    channel.drain(LAST_WORDS_S)


if __name__ == "__main__":
    main()
