"""The sampler child: polls every source on its own thread and sends the readings over the wire.

A driver call can hang for seconds. In this process the call blocks only one thread, and the console
can abandon the process.

    python -m gpuconsole.telemetry.sampler --fd N [--interval SECONDS] [--brief] [--vital-first]

The variable GPUCONSOLE_DCGM holds the address of a dcgm-exporter's /metrics, or nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence

if __name__ == "__main__":
    # msgspec takes it where it is installed, and with it `inspect` and `ast`: 2 MB.
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]

import msgspec

from gpuconsole import __version__
from gpuconsole.model.machine import Device
from gpuconsole.telemetry.host import HostSource
from gpuconsole.telemetry.nvml.library import NoNvml, meter
from gpuconsole.telemetry.nvml.source import NvmlSource
from gpuconsole.telemetry.source import (
    DRIVER_GONE_EXIT,
    NOT_YET,
    STUCK_S,
    Fallback,
    Poller,
    Preferred,
    Source,
)
from gpuconsole.wire.channel import ChildChannel, die_with_parent
from gpuconsole.wire.readings import Devices, Hello, Sample, SourceState

LAST_WORDS_S = 0.5
WATCH_S = 0.5
OPENING_S = 2.0
"""Seconds that the device list waits for the driver. After that the sampler sends the list without
GPUs, and sends it again with GPUs later."""
RETRY_S = 5.0
"""Seconds between two attempts to find a missing driver."""


class Sampler:
    """Sends rounds of samples from every source until `stop` is set."""

    def __init__(
        self,
        channel: ChildChannel,
        interval_s: float,
        dcgm: str = "",
        brief: bool = False,
        vital_first: bool = False,
    ) -> None:
        """`dcgm`: the address of a dcgm-exporter for metrics that NVML cannot report. `brief` and
        `vital_first`: see `NvmlSource`."""
        self._channel = channel
        self._dcgm, self._brief, self._vital_first = dcgm, brief, vital_first
        self._interval_s = interval_s
        self._host = HostSource()
        self._pollers: list[Poller] = []
        self._sent: dict[str, SourceState] = {}
        self._announced: str | None = None
        self._announcing = threading.Lock()
        self._opening_since = time.monotonic()
        self._opened = False
        self._gpus: NvmlSource | None = None
        self._cost = OwnCost()
        self._gone = ""
        self.stop = threading.Event()

    def run(self) -> int:
        """Returns the exit code."""
        self._channel.send(
            Hello(time.monotonic(), "sampler", os.getpid(), __version__, time.time())
        )
        threading.Thread(target=self._open_nvml, name="open", daemon=True).start()
        self._add(self._host)
        while not self.stop.wait(WATCH_S):
            self._watch()
        return DRIVER_GONE_EXIT if self._gone else 0

    # --- opening ----------------------------------------------------------------------------------

    def _open_nvml(self) -> None:
        """Try to open the driver until it works or the sampler stops. Without a driver there is
        only the host.

        If the driver library changes, only a new process can load it.
        """
        reason = ""
        while not self.stop.is_set():
            self._opening_since = time.monotonic()
            try:
                gpus = NvmlSource(self._interval_s, self._brief, self._vital_first)
            except NoNvml as why:
                self._opening_since = 0.0
                reason = reason or str(why)
                if str(why) != reason:
                    self._driver_gone(str(why))
                self._announce([], str(why))
                self.stop.wait(RETRY_S)
            else:
                self._opening_since = 0.0
                self._opened = True
                self._announce(gpus.devices(), "", gpus.driver, gpus.cuda)
                self._gpus = gpus
                first = Preferred(gpus)
                self._add(first)
                if self._dcgm:
                    self._add_dcgm(first)
                return

    def _add_dcgm(self, first: Preferred) -> None:
        # imported only when used, because the import takes time
        from gpuconsole.telemetry.dcgm import DcgmSource

        self._add(Fallback(DcgmSource(self._dcgm, first.devices), first))

    def _announce(
        self, gpus: list[Device], reason: str, driver: str | None = None, cuda: str = ""
    ) -> None:
        """Send the device list when it has changed. Two threads call this method; the driver's list
        is final."""
        with self._announcing:
            if self._announced == reason or (self._opened and not gpus):
                return
            self._announced = reason
            listed, opening = gpus + self._host.devices(), reason == NOT_YET
            self._channel.send(Devices(time.monotonic(), listed, driver, reason, cuda, opening))

    def _add(self, source: Source) -> None:
        poller = Poller(
            source,
            self._interval_s,
            self._channel.send,
            lambda: self._round_done(source),
            self._driver_gone,
        )
        self._pollers.append(poller)
        poller.start()

    # --- on the pollers' threads ------------------------------------------------------------------

    def _round_done(self, source: Source) -> None:
        """Send the sampler's own overhead after each round of the GPUs, or of the host if there are
        no GPUs."""
        lead = "nvml" if self._opened else "host"
        if self._announced is not None and source.name == lead:
            self._channel.send(
                Sample(time.monotonic(), "sampler", {"console.cpu_ratio": self._cost.cpu_ratio()})
            )

    def _driver_gone(self, reason: str) -> None:
        self._gone = reason
        print(reason, flush=True)  # the console keeps the last lines of a child's stderr
        self.stop.set()

    # --- watching ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Send the state of the sources when it has changed, and every time while a source is
        stuck."""
        self._channel.flush()
        for reading in self._gpus.collect() if self._gpus is not None else ():
            self._channel.send(reading)
        slow = self._slow_gpus()
        states = [
            state
            for poller in list(self._pollers)
            if (state := poller.state()).source not in {one.source for one in slow}
        ] + slow
        now = time.monotonic()
        opening_s = now - self._opening_since if self._opening_since else 0.0
        if opening_s > OPENING_S:
            self._announce([], NOT_YET)
        if opening_s > STUCK_S:
            states.append(
                SourceState(
                    now,
                    "nvml",
                    self._interval_s,
                    opening_s,
                    meter.under_way()[0] or "opening the driver",
                    opening=True,
                )
            )
        if self._channel.dropped:
            detail = f"{self._channel.dropped} messages dropped: the console reads too slowly"
            states.append(
                SourceState(now, "wire", self._interval_s, 0.0, detail, self._channel.dropped)
            )
        for state in states:
            before = self._sent.get(state.source)
            if before is None or state.stuck_s or _without_time(before) != _without_time(state):
                self._sent[state.source] = state
                self._channel.send(state)

    def _slow_gpus(self) -> list[SourceState]:
        """Return the states of GPUs that are not read as the others are, and of those that are read
        again. If all GPUs are stuck, the driver is stuck."""
        if self._gpus is None:
            return []
        now = time.monotonic()
        slow = self._gpus.slow_devices()
        named = {state.source for state in slow}
        again = [
            SourceState(now, name, self._interval_s)
            for name in self._sent
            if name.startswith("gpu:") and name not in named
        ]
        stuck = [state for state in slow if state.stuck_s]
        if stuck and len(stuck) == self._gpus.alive:
            first = min(stuck, key=lambda state: state.stuck_s)
            slow.append(msgspec.structs.replace(first, source=self._gpus.name))
        return slow + again


def _without_time(state: SourceState) -> tuple[object, ...]:
    return round(state.period_s, 2), bool(state.stuck_s), state.detail, state.missed


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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="gpuconsole.telemetry.sampler")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the console")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two rounds")
    parser.add_argument("--brief", action="store_true", help="only what one line a GPU needs")
    parser.add_argument("--vital-first", action="store_true", help="before the first round")
    options = parser.parse_args(arguments)
    if options.interval <= 0:
        parser.error("--interval must be above 0")
    die_with_parent()
    channel = ChildChannel(options.fd)
    dcgm = os.environ.get("GPUCONSOLE_DCGM", "")
    sampler = Sampler(channel, options.interval, dcgm, options.brief, options.vital_first)

    def on_crash(crash: threading.ExceptHookArgs) -> None:
        """End the process after an error in a source, so that the console starts it again.
        Otherwise a source with a bug would stop without a message."""
        import traceback  # the import takes time and memory

        traceback.print_exception(crash.exc_type, crash.exc_value, crash.exc_traceback)
        os._exit(1)

    threading.excepthook = on_crash
    # the only command is Stop
    channel.listen(lambda command: sampler.stop.set(), on_parent_gone=lambda: os._exit(0))
    code = sampler.run()
    channel.drain(LAST_WORDS_S)
    os._exit(code)  # not sys.exit: a thread may sit in a driver call that never returns


if __name__ == "__main__":
    main()
