"""The cards that can be simulated, and the text script that describes a machine with them.

card h100                 one line for each card, one to eight
card l4 memory=8e9        a card with another figure of `Card`
values cpu                the CPU computes the values of tensors; "none": tensors have shapes only,
                          and every value that is read is 0
slowdown 10               every kernel and copy takes that many times as long
kernel_s 3e-6             the shortest kernel
queue 1024                kernels that the host may be ahead
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import psutil

SIMULATED = "simulated "
"""Begins the name of every simulated card, on the screen and in the snapshot."""
MAX_CARDS = 8
HOST_BYTES = float(psutil.virtual_memory().total)
"""The memory of a GPU that is integrated."""
CONTEXT_BYTES = 450e6
"""What a CUDA context takes of the card: 300 to 600 MB on recent drivers."""


@dataclass(frozen=True)
class Card:
    """One card. FLOP/s are dense peaks of the datasheet, bandwidths are bytes/s: of the memory, of
    the link to the host in one direction, and to another card. `power_w`, `clock_hz`: the limits.
    `capability`: the compute capability. `cores`: a bit for each core beside the card, of the
    first 64. `demand_w`: the power that large products would draw at the highest clock; above
    `power_w` the driver lowers the clock (0: not above it). `default_w`: the limit before a person
    has lowered it (0: nobody has). `is_integrated`: its memory is that of the host."""

    name: str
    memory: float
    bf16: float
    fp16: float
    tf32: float
    fp32: float
    fp64: float
    int8: float
    bandwidth: float
    link: float
    peer: float
    capability: tuple[int, int]
    processors: int
    power_w: float
    clock_hz: float
    pcie_generation: int
    nvlinks: int = 0
    context: float = CONTEXT_BYTES
    cores: float = 2.0**53 - 1
    demand_w: float = 0.0
    default_w: float = 0.0
    is_integrated: bool = False

    @property
    def has_gpm(self) -> bool:
        """NVML's performance metrics exist from Hopper on, but not on integrated GPUs."""
        return self.capability >= (9, 0) and not self.is_integrated


# Datasheets of NVIDIA, dense; memory as NVML reports it; links as measured at best (pinned copies),
# 0.8 of the PCIe rate
CARDS = {
    "h100": Card(
        "NVIDIA H100 80GB HBM3",
        85.5e9,
        989e12,
        989e12,
        494e12,
        67e12,
        67e12,
        1979e12,
        3.35e12,
        52e9,
        360e9,
        (9, 0),
        132,
        700,
        1.98e9,
        5,
        18,
    ),
    "h200": Card(
        "NVIDIA H200",
        150.7e9,
        989e12,
        989e12,
        494e12,
        67e12,
        67e12,
        1979e12,
        4.8e12,
        52e9,
        360e9,
        (9, 0),
        132,
        700,
        1.98e9,
        5,
        18,
    ),
    "a100-40": Card(
        "NVIDIA A100-SXM4-40GB",
        42.4e9,
        312e12,
        312e12,
        156e12,
        19.5e12,
        19.5e12,
        624e12,
        1.555e12,
        25e9,
        240e9,
        (8, 0),
        108,
        400,
        1.41e9,
        4,
        12,
    ),
    "l4": Card(
        "NVIDIA L4",
        24.1e9,
        121e12,
        121e12,
        60e12,
        30.3e12,
        0.49e12,
        242e12,
        300e9,
        13e9,
        10e9,
        (8, 9),
        58,
        72,
        2.04e9,
        4,
        demand_w=160,
    ),
    "t4": Card(
        "Tesla T4",
        16.1e9,
        8.1e12,
        65e12,
        8.1e12,
        8.1e12,
        0.25e12,
        130e12,
        320e9,
        11e9,
        8e9,
        (7, 5),
        40,
        70,
        1.59e9,
        3,
        demand_w=220,
    ),
    "gh200": Card(
        "NVIDIA GH200 480GB",
        102e9,
        989e12,
        989e12,
        494e12,
        67e12,
        67e12,
        1979e12,
        4.0e12,
        380e9,
        360e9,
        (9, 0),
        132,
        900,
        1.98e9,
        5,
        18,
    ),
    "gb10": Card(
        "NVIDIA GB10",
        HOST_BYTES,
        125e12,
        125e12,
        62e12,
        31e12,
        0.5e12,
        250e12,
        273e9,
        100e9,
        20e9,
        (12, 1),
        48,
        140,
        2.4e9,
        5,
        is_integrated=True,
    ),
    "rtx4090": Card(
        "NVIDIA GeForce RTX 4090",
        25.3e9,
        165e12,
        165e12,
        82.6e12,
        82.6e12,
        1.3e12,
        661e12,
        1.008e12,
        25e9,
        20e9,
        (8, 9),
        128,
        450,
        2.52e9,
        4,
    ),
}


@dataclass(frozen=True)
class Machine:
    """The cards of a machine, and the settings of the simulation."""

    cards: tuple[Card, ...]
    settings: dict[str, str] = field(default_factory=dict)

    def configuration(self, processes: Path, shared: Path) -> str:
        """The text that device.cpp reads. `processes` is the file in which processes tell each
        other what they hold, `shared` that of the clocks of the cards and of the collectives."""
        lines = [f"{name} {value}" for name, value in self.settings.items()] + [
            f"processes {processes}",
            f"shared {shared}",
        ]
        for index, card in enumerate(self.cards):
            figures = (
                card.memory,
                card.context,
                card.bf16,
                card.fp16,
                card.tf32,
                card.fp32,
                card.fp64,
                card.int8,
                card.bandwidth,
                card.link,
                card.peer,
            )
            lines.append(f"card {uuid(index)} " + " ".join(f"{figure:g}" for figure in figures))
        return "\n".join(lines) + "\n"


def uuid(index: int) -> str:
    """The uuid of a card, as NVML gives it."""
    return f"GPU-{index}5c0de00-0000-4000-8000-00000000000{index}"


SETTINGS = ("values", "slowdown", "kernel_s", "gemm_share", "memory_share", "queue")


def machine_of(script: Iterable[str]) -> Machine:
    """The machine that the lines of a script describe. Raises ValueError with the line that is
    wrong."""
    cards: list[Card] = []
    settings: dict[str, str] = {}
    for line in script:
        word, *rest = line.partition("#")[0].split() or [""]
        if word == "card" and rest and rest[0] in CARDS:
            changes = dict(pair.split("=", 1) for pair in rest[1:])
            if not changes.keys() <= {one.name for one in fields(Card)}:
                raise ValueError(f"a card has no such figure: {line!r}")
            cards.append(
                replace(CARDS[rest[0]], **{name: float(value) for name, value in changes.items()})
            )
        elif word in SETTINGS and len(rest) == 1:
            settings[word] = rest[0]
        elif word:
            raise ValueError(f"not a line of a machine: {line!r}; cards are {', '.join(CARDS)}")
    if not 1 <= len(cards) <= MAX_CARDS:
        raise ValueError(f"a machine has 1 to {MAX_CARDS} cards, not {len(cards)}")
    return Machine(tuple(cards), settings)
