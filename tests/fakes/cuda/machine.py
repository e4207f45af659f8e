"""A machine with simulated cards: the environment for the programs that are to see it, and what its
driver (NVML) reports."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.fakes.cuda.build import build_device
from tests.fakes.cuda.cards import SIMULATED, Card, Machine, machine_of, uuid
from tests.fakes.nvml.build import Script, build_fake_nvml

ROOT = Path(__file__).parents[3]
SLOT = struct.Struct("iiqqddddddddd")
SLOTS = 256
EVERY_S = 0.25
"""Between two looks at the processes."""
RATES = ("busy_s", "h2d", "d2h", "active_s", "sm_s", "tensor_s", "dram_s")
IDLE_SHARE = 0.12
"""Power of an idle card, as a share of its limit."""
FULL_SM_SHARE = 0.95
"""Activity of the SMs under kernels that fill the card (device.cpp)."""
POWER_BY_CLOCK = 2.0
"""The exponent of the clock in the power of a load: the voltage falls with the clock."""
MIN_CLOCK = 0.3
SW_POWER_CAP, POWER_VIOLATION = 0x4, 74
"""NVML's reason for a low clock, and the number of its field that counts the nanoseconds of it."""
NOT_SUPPORTED = 3
"""NVML's answer to the question for the memory of an integrated GPU."""
ARCHITECTURES = {7: 6, 8: 7, 9: 9, 12: 10}
"""NVML_DEVICE_ARCH_* by the major compute capability."""


class Used(NamedTuple):
    """What one process has used of one card: bytes now, and sums since its start. The layout is
    `Slot` of device.cpp."""

    pid: int
    card: int
    reserved: int
    allocated: int
    busy_s: float
    flops: float
    bytes: float
    h2d: float
    d2h: float
    active_s: float
    sm_s: float
    tensor_s: float
    dram_s: float


class SimulatedMachine:
    """A context manager: while it is open, the fake driver reports what the processes do. Raises
    NotHereError (see build.py)."""

    def __init__(self, folder: Path, script: Sequence[str], nvml: Path | None = None) -> None:
        """`nvml`: the folder of the compiled fake driver, if there is one already."""
        folder.mkdir(parents=True, exist_ok=True)
        self.machine: Machine = machine_of(script)
        self.syncs = folder / "syncs"
        self._library = build_device()
        self._nvml = nvml or build_fake_nvml(folder)
        self._processes, self._shared = folder / "processes", folder / "shared"
        self._processes.write_bytes(bytes(SLOT.size * SLOTS))
        self._shared.touch()
        self._configuration = folder / "cards"
        self._configuration.write_text(self.machine.configuration(self._processes, self._shared))
        self._script = Script(folder / "nvml", *self._fixed())
        self._before: dict[tuple[int, int], Used] = {}
        self._ahead = [dict.fromkeys(RATES, 0.0) for _ in self.machine.cards]
        self._before_t = time.monotonic()
        self._written: list[str] = []
        self._energy_j = [0.0] * len(self.machine.cards)
        self._clock = [1.0] * len(self.machine.cards)
        self._capped_s = [0.0] * len(self.machine.cards)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> SimulatedMachine:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join()

    def environment(self, *, watch_syncs: bool = False, **more: str) -> dict[str, str]:
        """The environment of a program on this machine. `watch_syncs`: its synchronisations are
        written to `syncs`."""
        cards = [
            {
                "name": SIMULATED + card.name,
                "uuid": uuid(index),
                "capability": card.capability,
                "processors": card.processors,
                "is_integrated": card.is_integrated,
            }
            for index, card in enumerate(self.machine.cards)
        ]
        found = self._script.environment(self._nvml) | {
            "SIMULATED_CUDA": str(self._library),
            "SIMULATED_CUDA_MACHINE": str(self._configuration),
            "SIMULATED_CUDA_CARDS": json.dumps(cards),
            "PYTHONPATH": f"{Path(__file__).parent / 'inject'}:{ROOT}",
        }
        found.pop("CUDA_VISIBLE_DEVICES", None)
        return found | ({"SIMULATED_CUDA_SYNCS": str(self.syncs)} if watch_syncs else {}) | more

    def used(self) -> list[Used]:
        """What the processes that live use now."""
        data = self._processes.read_bytes()
        return [
            one for one in map(Used._make, SLOT.iter_unpack(data)) if one.pid and _lives(one.pid)
        ]

    def _fixed(self) -> list[str]:
        lines = [f"gpus {len(self.machine.cards)}"]
        for index, card in enumerate(self.machine.cards):
            lines += [f"gpu {index} {line}" for line in _facts(index, card)]
            lines += [f"path {index} {other} {0 if card.nvlinks else 40}" for other in range(index)]
        return lines

    def _follow(self) -> None:
        while not self._closed.wait(EVERY_S):
            lines = self._fixed() + self._moving()
            if lines != self._written:
                self._script.write(*lines)
                self._written = lines

    def _moving(self) -> list[str]:
        present, t = {(one.pid, one.card): one for one in self.used()}, time.monotonic()
        span, lines = t - self._before_t, []
        for index, card in enumerate(self.machine.cards):
            own = [one for one in present.values() if one.card == index]
            rates = self._rates(index, own, span)
            share = {
                name: min(1.0, rates[name])
                for name in ("busy_s", "active_s", "sm_s", "tensor_s", "dram_s")
            }
            busy = share["busy_s"]
            memory = sum(one.reserved + card.context for one in own)
            power = self._power(index, busy, share["sm_s"] / FULL_SM_SHARE, span)
            self._energy_j[index] += power * span
            clock = self._clock[index]
            lines += [
                f"gpu {index} {line}"
                for line in (
                    f"memory_used_bytes {memory:.0f}",
                    f"utilization_pct {100 * share['active_s']:.0f}",
                    f"memory_utilization_pct {100 * share['dram_s']:.0f}",
                    f"power_mw {1000 * power:.0f}",
                    f"sm_clock_mhz {clock * card.clock_hz / 1e6:.0f}",
                    f"clocks_reasons {SW_POWER_CAP if clock < 1 else 0}",
                    f"field {POWER_VIOLATION} {1e9 * self._capped_s[index]:.0f}",
                    f"field 186 {1000 * power:.0f}",
                    f"energy_mj {1000 * self._energy_j[index]:.0f}",
                    f"pcie_rx_kb {rates['h2d'] / 1000:.0f}",
                    f"pcie_tx_kb {rates['d2h'] / 1000:.0f}",
                    *(
                        (
                            f"process {one.pid} compute {one.reserved + card.context:.0f}"
                            f" {100 * share['active_s'] / len(own):.0f}"
                        )
                        for one in own
                    ),
                )
            ]
            if card.has_gpm:
                lines += [
                    f"gpu {index} gpm {metric} {value:.2f}"
                    for metric, value in (
                        (1, 100 * busy),
                        (2, 100 * share["sm_s"]),
                        (5, 100 * share["tensor_s"]),
                        (10, 100 * share["dram_s"]),
                        (20, rates["d2h"] / 2**20),
                        (21, rates["h2d"] / 2**20),
                    )
                ]
        self._before, self._before_t = present, t
        return lines

    def _rates(self, index: int, own: Sequence[Used], span: float) -> dict[str, float]:
        """Return what a card did in each second of the last `span` seconds. A process counts a
        kernel when it issues the kernel, and hosts run ahead: what the card cannot have done yet
        stays for the next look. `own`: what the processes of the card have used."""
        issued = self._ahead[index]
        for one in own:
            before = self._before.get((one.pid, index))
            for name in issued:
                issued[name] += getattr(one, name) - (getattr(before, name) if before else 0.0)
        done = min(1.0, span / issued["active_s"]) if own and issued["active_s"] else 1.0
        self._ahead[index] = {name: (1 - done) * value for name, value in issued.items()}
        return {name: done * value / span for name, value in issued.items()}

    def _power(self, index: int, busy: float, load: float, span: float) -> float:
        """The power of a card, after it has set the clock at which a load fits below the limit.
        `busy`: the share of time with a kernel, `load`: of the SMs at work."""
        card = self.machine.cards[index]
        idle = IDLE_SHARE * card.power_w
        if not card.demand_w:
            return idle + (card.power_w - idle) * busy
        demand = (card.demand_w - idle) * min(1.0, load)
        fits = min(1.0, ((card.power_w - idle) / demand) ** (1 / POWER_BY_CLOCK)) if demand else 1.0
        self._clock[index] = max(MIN_CLOCK, fits)
        self._capped_s[index] += span if fits < 1 else 0.0
        with open(self._shared, "r+b") as file:  # device.cpp reads it for each kernel
            file.seek(8 * index)
            file.write(struct.pack("d", self._clock[index]))
        return idle + demand * self._clock[index] ** POWER_BY_CLOCK


def _facts(index: int, card: Card) -> list[str]:
    major, minor = card.capability
    mhz = f"{card.clock_hz / 1e6:.0f}"
    return [
        f"name {SIMULATED}{card.name}",
        f"uuid {uuid(index)}",
        f"memory_total_bytes {card.memory:.0f}",
        "memory_used_bytes 0",
        "memory_reserved_bytes 0",
        f"power_limit_mw {1000 * card.power_w:.0f}",
        f"power_limit_max_mw {1000 * max(card.power_w, card.default_w):.0f}",
        f"power_limit_default_mw {1000 * (card.default_w or card.power_w):.0f}",
        f"power_mw {1000 * card.power_w * IDLE_SHARE:.0f}",
        "utilization_pct 0",
        "memory_utilization_pct 0",
        f"sm_clock_mhz {mhz}",
        f"sm_clock_max_mhz {mhz}",
        f"pcie_gen {card.pcie_generation}",
        f"pcie_gen_now {card.pcie_generation}",
        "pcie_rx_kb 0",
        "pcie_tx_kb 0",
        f"nvlinks {card.nvlinks}",
        f"gpm_support {int(card.has_gpm)}",
        f"field 170 {int('GH200' in card.name)}",
        f"architecture {ARCHITECTURES[major]}",
        f"capability_major {major}",
        f"capability_minor {minor}",
        f"affinity_low {card.cores:.0f}",
        *(
            f"error {call} {NOT_SUPPORTED}"
            for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
            if card.is_integrated
        ),
    ]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
