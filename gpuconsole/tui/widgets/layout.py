"""How many rows and columns each zone of the main screen gets."""

from __future__ import annotations

from typing import NamedTuple


class Plan(NamedTuple):
    """Heights in rows. `runs_width` 0: the runs stand under the diagnosis; they are hidden when `runs` is 0 too. `fleet`: the strip of many GPUs."""

    header: int
    fleet: int
    tiles: int
    tile_height: int
    tiles_per_row: int
    all_tiles: bool
    phases: int
    diagnosis: int
    runs: int
    runs_width: int
    boxed: bool


def plan(width: int, height: int, devices: int = 1, fleet: int = 0, idle: bool = False, serves: bool = False) -> Plan:
    """The layout for a terminal of `width` x `height`: the most important zones keep their room longest.

    `devices` are the lines that the header can use, `fleet` the rows of the strip of many GPUs. While nothing runs (`idle`) the GPUs get more
    room. A run that `serves` needs two lines more for a request than a step needs.
    """
    wide, tall = width >= 100, height >= 32
    boxed = wide and tall
    if width >= 120 and height >= 24:  # a narrower tile has no room for its title and its figure
        per_row, grid, tile_height = 4, 2, 6 if height >= 38 else 4 if tall else 3
    elif width >= 60 and height >= 20:
        per_row, grid, tile_height = 2, 2, 5 if tall else 3
    else:
        per_row, grid, tile_height = 2, 2, 1
    phases = (5 if wide else 6) if boxed else 4 if height >= 20 else 3 if height >= 16 else 2
    phases += (1 if wide else 2 if tall else 1) if serves and height >= 20 else 0
    header = 1 + (min(devices, 4 if tall or (idle and height >= 20) else 1) if height >= 10 else 0)
    strip = min(fleet, 7 if tall or (idle and height >= 20) else 3 if height >= 20 else 0)
    rest = max(0, height - header - strip - grid * tile_height - phases - 1)
    if wide:
        runs_width = width // 2
        return Plan(header, strip, grid * tile_height, tile_height, per_row, grid * per_row == 8, phases, rest, rest, runs_width, boxed)
    runs = 0 if rest < 8 else min(9, max(4, rest // 3))
    return Plan(header, strip, grid * tile_height, tile_height, per_row, False, phases, rest - runs, runs, 0, boxed)
