"""The table of GPUs for cards of every size: heads stand above their cells, nothing is cut, and
each history that is drawn has values."""

from __future__ import annotations

import random
import re
from typing import NamedTuple

import msgspec
import pytest

from gpuconsole.model import device_columns
from gpuconsole.model.machine import Device
from gpuconsole.model.metrics import GPU_METRICS, series_key
from gpuconsole.report.machine.columns import gpu_lines
from gpuconsole.report.machine.devices import short_report
from gpuconsole.report.machine.gpus import GpuChoice, GpuTable, gpu_table
from gpuconsole.report.machine.overview import paint_overview
from gpuconsole.report.parts import printed
from gpuconsole.session.api import View
from gpuconsole.session.gpu_state import GpuState, gpu_states
from gpuconsole.tui.widgets.header import paint_header
from tests.tui.fake_gpu_box import assert_exact, box, idle, sick

MIB = 2**20
MARKS = "▁▂▃▄▅▆▇█"
FULL = 1e15
"""A value at the top of every scale: each row of a history is then drawn."""


class Card(NamedTuple):
    """A kind of card: its memory as the driver reports it, its power limit, and whether it has
    NVML's hardware counters (GPM)."""

    name: str
    memory_mib: int
    limit_w: float
    gpm: bool = True


CARDS = (
    Card("NVIDIA T4", 15_360, 70.0, False),
    Card("NVIDIA GeForce RTX 3090", 24_564, 450.0, False),
    Card("NVIDIA A100-SXM4-40GB", 40_960, 400.0, False),
    Card("NVIDIA H100 80GB HBM3", 81_559, 700.0),
    Card("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97_887, 300.0, False),
    Card("NVIDIA H200", 143_771, 700.0),
    Card("NVIDIA B200", 183_359, 1000.0),
    Card("NVIDIA B300", 294_912, 1400.0),
)
GT_710 = Card("NVIDIA GeForce GT 710", 2_000, 0.0, False)
MIXED = [CARDS[1]] * 8 + [CARDS[4]] * 5 + [CARDS[3]] + [CARDS[2]] * 2
"""16 GPUs of four kinds, of which one has GPM."""
SIZES = [(80, 21), (120, 37), (200, 47)]


def machine(*cards: Card, **changes: object) -> View:
    """A machine with these cards, which all work, at 1.4 % above their power limits."""
    shown = idle(box(len(cards)))
    latest, reasons = dict(shown.latest), dict(shown.unavailable)
    devices = []
    for gpu, card in zip((device for device in shown.devices if device.is_gpu), cards, strict=True):
        devices.append(Device(gpu.id, card.name, card.memory_mib * MIB))
        values = {
            "gpu.hbm_total_bytes": card.memory_mib * MIB,
            "gpu.hbm_used_bytes": 0.88 * card.memory_mib * MIB,
            "gpu.power_limit_w": card.limit_w,
            "gpu.power_limit_default_w": card.limit_w,
            "gpu.power_w": round(1.014 * card.limit_w),
        }
        latest |= {series_key(name, gpu.id): value for name, value in values.items()}
        gone = {metric.name for metric in GPU_METRICS if metric.source == "nvml.gpm"}
        gone.add("gpu.hbm_bytes_per_s")  # from the share of GPM
        if not card.gpm:
            reasons |= dict.fromkeys(
                (series_key(name, gpu.id) for name in gone), "GPM needs Hopper"
            )
            latest = {key: value for key, value in latest.items() if key not in reasons}
    host = [device for device in shown.devices if not device.is_gpu]
    known = {"devices": (*devices, *host), "latest": latest, "unavailable": reasons}
    return msgspec.structs.replace(shown, **(known | changes))


def without(
    shown: View, gpu: str, *metrics: str, why: str = "not supported on this device"
) -> View:
    keys = [series_key(metric, gpu) for metric in metrics]
    latest = {key: value for key, value in shown.latest.items() if key not in keys}
    reasons = shown.unavailable | dict.fromkeys(keys, why)
    return msgspec.structs.replace(shown, latest=latest, unavailable=reasons)


def with_values(shown: View, gpu: str, **values: float) -> View:
    known = {series_key(f"gpu.{name}", gpu): value for name, value in values.items()}
    return msgspec.structs.replace(shown, latest=shown.latest | known)


def old_card() -> View:
    """A GT 710 as NVML reports it: memory, temperature and fan, no utilization and no power; no
    process."""
    shown = machine(GT_710, processes=())
    names = {"gpu.hbm_used_bytes", "gpu.hbm_total_bytes", "gpu.temperature_c", "gpu.processes"}
    gone = {metric.name for metric in GPU_METRICS} - names - {"gpu.fan_ratio"}
    shown = without(shown, "gpu:0", *gone)
    return with_values(shown, "gpu:0", hbm_used_bytes=300.0 * MIB, fan_ratio=0.4, processes=0.0)


def history(key: str, columns: int) -> list[float | None]:
    return [FULL] * columns


def table(
    shown: View, width: int, height: int = 40, states: dict[str, GpuState] | None = None
) -> GpuTable:
    gpus = [device for device in shown.devices if device.is_gpu]
    states = gpu_states(shown, gpus) if states is None else states
    # a metric without a value has no history
    return gpu_table(
        shown,
        gpus,
        states,
        lambda key, columns: [FULL if key in shown.latest else None] * columns,
        width,
        height,
        GpuChoice(),
    )


def lines(painted: GpuTable) -> list[str]:
    return ["".join(text for text, _ in row) for row in painted.rows]


def row_of(painted: GpuTable, gpu: str) -> str:
    return next(row for row in lines(painted) if row.startswith(f"{gpu} "))


def assert_aligned(painted: GpuTable) -> None:
    """Each head ends or begins where its cells do, with two blanks between the columns."""
    head, *rows = (row[: painted.trace[0]] for row in lines(painted))
    rows = [row for row in rows if row.startswith("gpu:")]
    ends = [found.span() for found in re.finditer(r"\S+( \S+)*", head)]
    figures = [at for at in ends if head[slice(*at)] in HEADS]
    assert len(figures) >= 3, head
    for row in rows:
        cells = [found.span() for found in re.finditer(r"[^ ]+( [^ ]+)*", row)]
        for name, (start, end) in ((head[slice(*at)], at) for at in figures):
            wanted = end if name not in LEFT else start
            edges = {cell[1] for cell in cells} if name not in LEFT else {cell[0] for cell in cells}
            assert wanted in edges or name in PADDED, f"{name}\n{head}\n{row}"


HEADS = {"SM", "GPU-Util", "SM or util", "HBM used", "HBM bw", "power", "temp", "fan", "tensor"}
LEFT = {"HBM used", "temp"}
PADDED = {"HBM used"}
"""Figures of memory have blanks before a small number."""


@pytest.mark.parametrize("width", [80, 116, 120, 196, 200])
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_heads_stand_above_their_cells_for_every_size_of_card(card: Card, width: int) -> None:
    painted = table(machine(*[card] * 8), width)
    assert_aligned(painted)
    assert "…" not in "".join(lines(painted)), "\n".join(lines(painted))
    memory, power = lines(painted)[0].index("HBM used"), lines(painted)[0].index("power") + 5
    for row in (row_of(painted, f"gpu:{n}") for n in range(8)):
        assert re.match(r" *[\d.]+/[\d.]+ GiB  ", row[memory:]), row
        watts = f"{round(1.014 * card.limit_w)}/{card.limit_w:.0f} W"
        assert row[:power].endswith(watts), row


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_figure_never_touches_a_history(width: int) -> None:
    for card in CARDS:
        for row in lines(table(machine(*[card] * 8), width)):
            assert not re.search(rf"[^ {MARKS}] ?[{MARKS}]", row), row


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("seconds", [7.0, 12.0, 190.0, 100_000.0])
def test_a_state_is_never_cut(width: int, seconds: float) -> None:
    shown = msgspec.structs.replace(machine(*[CARDS[3]] * 8), silent={"gpu:5": seconds})
    painted = table(shown, width)
    assert f"silent for {seconds:.0f} s" in row_of(painted, "gpu:5")
    assert "…" not in "".join(lines(painted))
    assert_aligned(painted)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_state_may_have_any_words(width: int) -> None:
    """New kinds of states need no change of the table."""
    shown = machine(*[CARDS[3]] * 8)
    states = {f"gpu:{n}": GpuState("busy", f"{n} processes") for n in range(8)}
    words = "idle at least 14 min"
    states["gpu:4"] = GpuState("busy", words)
    painted = table(shown, width, states=states)
    assert words in row_of(painted, "gpu:4") and "…" not in "".join(lines(painted))
    assert_aligned(painted)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_silent_gpu_says_which_call_hangs(width: int) -> None:
    shown = machine(*[CARDS[3]] * 8)
    states = gpu_states(shown, [device for device in shown.devices if device.is_gpu])
    call = "nvmlDeviceGetNvLinkState takes 1.5 s"
    states["gpu:5"] = GpuState("silent", "silent for 12 s", call)
    painted = table(shown, width, 9, states)
    assert "silent for 12 s" in row_of(painted, "gpu:5")
    assert call[:23] in row_of(painted, "gpu:5"), row_of(painted, "gpu:5")
    if width == 200:
        assert call in row_of(painted, "gpu:5")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_column_moves_when_figures_change(width: int) -> None:
    heads = set()
    for share in (0.003, 0.05, 0.7, 1.0):
        for card in (CARDS[3], CARDS[7]):
            shown = machine(*[card] * 4)
            for n in range(4):
                used, power = share * card.memory_mib * MIB, share * card.limit_w
                shown = with_values(
                    shown, f"gpu:{n}", hbm_used_bytes=used, power_w=power, sm_active_ratio=share
                )
            heads.add((card.name, lines(table(shown, width))[0]))
    assert len(heads) == 2, heads


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_slow_gpu_says_which_call_takes_how_long(width: int) -> None:
    call = "nvmlDeviceGetNvLinkState takes 1.5 s"
    shown = machine(*[CARDS[3]] * 8, slow={"gpu:5": call})
    vital = {"gpu.power_w", "gpu.hbm_used_bytes", "gpu.utilization_ratio", "gpu.temperature_c"}
    gone = [metric.name for metric in GPU_METRICS if metric.name not in vital]
    painted = table(without(shown, "gpu:5", *gone, why="its driver is slow"), width, 9)
    row = row_of(painted, "gpu:5")
    words = {80: "slow driver", 120: call[:24], 200: call}[width]
    assert "1 process" in row and words in row and "710 W" in row, row
    head = lines(painted)[0]
    assert "SM or util" not in head and " SM " in head, "one slow GPU renames no column"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_gpu_that_never_answered_has_its_reason_in_place_of_figures(width: int) -> None:
    call = "nvmlDeviceGetPowerUsage has not returned for 15 s"
    shown = machine(*[CARDS[3]] * 8, slow={"gpu:5": call}, silent={"gpu:5": 15.0})
    shown = without(shown, "gpu:5", *(metric.name for metric in GPU_METRICS))
    row = row_of(table(shown, width, 9), "gpu:5")
    assert "silent for 15 s" in row and call[: 48 if width > 80 else 40] in row, row


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_a_machine_of_which_no_gpu_can_be_read_says_why(width: int) -> None:
    shown = machine(*[CARDS[3]] * 8)
    every = [metric.name for metric in GPU_METRICS]
    for n in range(8):
        shown = without(shown, f"gpu:{n}", *every, why="no permission")
    assert all("n/a: no permission" in row_of(table(shown, width), f"gpu:{n}") for n in range(8))
    gone = machine(*[CARDS[3]] * 2, lost={"gpu:0": "GPU is lost", "gpu:1": "GPU is lost"})
    assert "lost: GPU is lost" in row_of(table(gone, width), "gpu:1")


# --- a box of different cards ---------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120, 200])
def test_sixteen_gpus_of_four_kinds(width: int) -> None:
    painted = table(machine(*MIXED), width)
    assert_aligned(painted)
    names = {"GeForce RTX 3090", "H100 80GB HBM3", "A100-SXM4-40GB"}
    for n, card in enumerate(MIXED):
        row, name = row_of(painted, f"gpu:{n}"), card.name.removeprefix("NVIDIA ")
        assert name not in names or f"{name}  " in row, row
        assert row.count("…") == (name not in names), row


def test_the_header_names_no_kind_for_a_box_of_several() -> None:
    title = "".join(text for text, _ in paint_header(machine(*MIXED), 120, 1)[0])
    assert "16 GPUs of 4 kinds" in title and "16x" not in title
    alike = "".join(text for text, _ in paint_header(machine(*[CARDS[3]] * 8), 120, 1)[0])
    assert "8x H100 80GB HBM3" in alike


@pytest.mark.parametrize("width", [120, 200])
def test_the_histories_of_a_mixed_box_have_the_name_of_what_most_cards_report(width: int) -> None:
    head = lines(table(machine(*MIXED), width))[0]
    assert "SM 0-100 %" not in head and "SM 0-" not in head.replace("SM or util 0-", "")


# --- cards without GPM ----------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(80, 3), (120, 9), (200, 9), (120, 30), (200, 30)])
@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("card", [CARDS[0], CARDS[2], CARDS[4]], ids=lambda card: card.name)
def test_no_head_of_a_history_stands_over_an_empty_area(
    card: Card, gpus: int, width: int, height: int
) -> None:
    painted = table(machine(*[card] * gpus), width, height)
    start, cells = painted.trace
    assert cells >= 10
    area = [row[start:] for row in lines(painted)[1:]]
    for n in range(start, width):
        in_gap = (n - start) % (cells + 2) >= cells or n - start >= 3 * (cells + 2) - 2
        assert in_gap or any(row[n - start] in MARKS for row in area), (
            n,
            "\n".join(lines(painted)),
        )
    titles = next(row for row in lines(painted) if "Util" in row[start:] or "util" in row[start:])[
        start:
    ]
    assert "HBM bw" not in titles
    assert width < 200 or ("power 0-" in titles or "power" in titles), titles


def test_the_tops_of_histories_are_those_of_the_cards() -> None:
    alike = "".join(lines(table(machine(*[CARDS[2]] * 2), 200, 40)))
    assert "power 0-400 W" in alike
    mixed = "".join(lines(table(machine(CARDS[1], CARDS[2]), 200, 40)))
    assert "power 0-max" in mixed


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("height", [2, 3, 30])
def test_a_card_without_utilization_shows_the_figures_that_it_has(width: int, height: int) -> None:
    painted = table(old_card(), width, height)
    row = row_of(painted, "gpu:0")
    assert "0.29/1.95 GiB" in row or "0.293/1.95 GiB" in row, row
    whole = "".join(lines(painted))
    if width > 80 or height > 2:
        assert re.search(r" \d+° ", row) and (" 40 %" in row or width == 80), row
    assert "util: not supported" in whole
    if height == 30:
        assert "HBM 0-1.95 GiB" in whole and "temp 0-" in whole and "SM 0-" not in whole


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 116, 120, 160, 200])
@pytest.mark.parametrize("height", [9, 17, 25])
def test_a_fault_of_one_gpu_takes_no_history_from_the_others(width: int, height: int) -> None:
    well = idle(box(8))
    hot = with_values(well, "gpu:1", clocks_hw_thermal=1.0)
    painted = table(hot, width, height)
    columns, cells = painted.trace
    assert cells >= 10
    fault = next(row for row in lines(painted) if "heat slowdown" in row)
    assert fault.startswith("gpu:1 ")
    assert any(
        "heat slowdown" in text and style == "alert" for row in painted.rows for text, style in row
    )
    for gpu in ("gpu:0", "gpu:2", "gpu:7"):
        row = row_of(painted, gpu)
        assert row[columns] in MARKS and row.count("▄") + row.count("█") >= 0
        assert set(row[columns : columns + cells]) <= set(MARKS), row
    assert "…" not in "".join(lines(painted))


def test_a_fault_that_its_state_says_is_not_said_again() -> None:
    shown = sick()
    states = gpu_states(shown, [device for device in shown.devices if device.is_gpu])
    states["gpu:1"] = GpuState("n/a", "n/a", "heat slowdown since the start of the console")
    states["gpu:5"] = GpuState("busy", "power cap")
    painted = table(shown, 200, 9, states)
    assert row_of(painted, "gpu:1").count("heat slowdown") == 1
    assert row_of(painted, "gpu:5").count("power cap") == 1


def test_where_no_history_fits_the_fault_stands_in_place_of_the_state() -> None:
    hot = with_values(idle(box(8)), "gpu:1", clocks_hw_thermal=1.0)
    row = row_of(table(hot, 60, 9), "gpu:1")
    assert "heat slowdown" in row and "2 processes" not in row


def sorted_ids(shown: View, title: str, width: int = 120) -> list[str]:
    gpus = [device for device in shown.devices if device.is_gpu]
    painted = gpu_table(
        shown, gpus, gpu_states(shown, gpus), history, width, 20, GpuChoice(sort=title)
    )
    assert title in painted.columns
    return painted.ids


def test_the_order_of_a_column_is_that_of_its_values() -> None:
    shown = idle(box(64))
    powers = [
        shown.latest[series_key("gpu.power_w", gpu)]
        for gpu in sorted_ids(shown, device_columns.POWER.title)
    ]
    assert powers == sorted(powers, reverse=True)


def test_the_order_of_two_measures_has_the_measure_of_each_gpu() -> None:
    shown = machine(*MIXED)
    for n in range(16):
        measure = "sm_active_ratio" if MIXED[n].gpm else "utilization_ratio"
        shown = with_values(shown, f"gpu:{n}", **{measure: n / 100})
    assert sorted_ids(shown, "SM or util", 80) == [f"gpu:{n}" for n in reversed(range(16))]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("cards", [MIXED, [CARDS[3]] * 8, [CARDS[2]], [CARDS[7]] * 8])
def test_the_overview_has_no_stray_ellipsis_in_the_table(
    cards: list[Card], width: int, height: int
) -> None:
    rows = paint_overview(machine(*cards), [], history, width, height).rows
    texts = ["".join(text for text, _ in row).strip("│ ") for row in rows]
    end = next(n for n, text in enumerate(texts) if "processes on the GPUs" in text)
    table_rows = [text for text in texts[:end] if text.startswith(("gpu:", "device  "))]
    assert len(table_rows) > 1
    assert not any(text.endswith("…") for text in table_rows), table_rows


@pytest.mark.parametrize("seed", range(4))
def test_any_state_of_any_machine_is_drawn_at_any_size(seed: int) -> None:
    """Values, reasons and states that are missing in any combination."""
    chance = random.Random(seed)
    metrics = [metric.name for metric in GPU_METRICS]
    for _ in range(40):
        cards = [chance.choice((*CARDS, GT_710)) for _ in range(chance.choice((1, 2, 3, 8, 16)))]
        shown = machine(*cards, **({"processes": ()} if chance.random() < 0.5 else {}))
        for n in range(len(cards)):
            gone = metrics if chance.random() < 0.2 else chance.sample(metrics, 30)
            why = chance.choice(("not supported on this device", "no permission", ""))
            shown = without(shown, f"gpu:{n}", *gone, why=why)
        some = [f"gpu:{n}" for n in range(len(cards)) if chance.random() < 0.3]
        kind = chance.choice(("lost", "silent", "slow", "xids", "latest"))
        known = {
            "lost": "GPU is lost", "silent": 190.0, "slow": "nvmlInit takes 3 s", "xids": (79, 5.0),
        }  # fmt: skip
        changes = (
            {
                "latest": shown.latest
                | {series_key("gpu.clocks_hw_thermal", gpu): 1.0 for gpu in some}
            }
            if kind == "latest"
            else {kind: dict.fromkeys(some, known[kind])}
        )
        shown = msgspec.structs.replace(shown, **changes)
        for _ in range(6):
            width, height = chance.randint(1, 210), chance.randint(1, 50)
            painted = table(shown, width, height)
            assert_exact(painted.rows, width, height)
            listed = gpu_lines(shown, [gpu for gpu in shown.devices if gpu.is_gpu], width)
            assert len(listed) == len(cards)
        printed_lines = printed(short_report(shown)).splitlines()
        assert sum(one.startswith("gpu:") for one in printed_lines) >= len(cards)
