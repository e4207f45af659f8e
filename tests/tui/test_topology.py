"""The matrix of paths between GPUs."""

from __future__ import annotations

import msgspec
import pytest
from textual.pilot import Pilot

from gpuconsole.model.machine import Device, Link
from gpuconsole.report.cells import Row
from gpuconsole.report.machine.topology import (
    last_column,
    letters,
    read_net,
    topology_lines,
    wants_folding,
)
from gpuconsole.session.api import View
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.device import TopologyScreen
from tests.matrix import matrix
from tests.tui.fake_gpu_box import HOSTILE, BoxSession, assert_exact, box, drawn, on_box, text
from tests.tui.fake_session import view
from tests.tui.test_app import shows, text_of
from tests.waiting import until


def paint(shown: View, folded: bool, column: int, width: int, height: int) -> list[Row]:
    net = read_net(shown.devices, shown.links)
    return drawn(topology_lines(shown, net, folded, column, width), width, height)


def painted(shown: View, width: int = 120, height: int = 36) -> str:
    return text(
        paint(
            shown,
            wants_folding(read_net(shown.devices, shown.links), width, height),
            0,
            width,
            height,
        )
    )


BOXES = [(gpus, kind) for gpus in (0, 1, 2, 8, 64) for kind in ("nvswitch", "pcie", "islands")]


@pytest.mark.parametrize(
    ("gpus", "kind"),
    matrix(BOXES, in_ci=[(0, "pcie"), (1, "pcie"), (2, "pcie"), (8, "nvswitch"), (64, "islands")]),
)
def test_rows_are_as_wide_as_asked(gpus: int, kind: str) -> None:
    shown = box(gpus, kind=kind, lost=(1,) if gpus > 1 else (), mig=(0,)) if gpus else view()
    net = read_net(shown.devices, shown.links)
    for width in (8, 40, 59, 80, 120, 200):
        for height in (1, 5, 24):
            for folded in (False, True):
                for column in (0, 3, last_column(shown, net, folded, width)):
                    assert_exact(paint(shown, folded, column, width, height), width, height)


def test_the_matrix_says_the_path_of_every_pair() -> None:
    shown = box(8, kind="pcie")
    rows = painted(shown).split("\n")
    cells = [row.split() for row in rows if row.startswith("gpu:")]
    assert [row[0] for row in cells] == [f"gpu:{n}" for n in range(8)]
    for link in shown.links:
        a, b = (int(name.partition(":")[2]) for name in (link.a, link.b))
        assert cells[a][1 + b] == cells[b][1 + a] == link.path
    assert [cells[n][1 + n] for n in range(8)] == ["X"] * 8
    assert cells[5][9:12] == ["1", "96-191", "18"] and cells[5][-1] == "00000000:26:00.0"
    assert "GB/s" in rows[4]


def test_the_legend_has_the_words_in_use_the_fastest_first() -> None:
    legend = painted(box(64, kind="islands")).split("NV18: ")[1]
    assert (
        legend.index("18 NVLinks")
        < legend.index("NODE: ")
        < legend.index("SYS: between NUMA nodes")
    )
    assert "PIX" not in legend


def test_the_sentence() -> None:
    assert "gpu:0-7: NV18 (18 NVLinks) from each to every other." in painted(box(8))
    assert (
        "8 GPUs in 4 groups with equal links: PIX within a group, NODE or SYS between groups."
        in painted(box(8, kind="pcie"))
    )
    assert "did not report how the GPUs are linked" in painted(
        msgspec.structs.replace(box(8), links=())
    )
    assert "No GPU: no NVIDIA driver" in painted(view())
    assert "One GPU" in painted(box(1)) and "0-95" in painted(box(1))


def test_equal_gpus_are_folded_where_the_matrix_would_not_fit() -> None:
    for width, height in ((120, 36), (80, 20)):
        shown = painted(box(64, kind="islands"), width, height)
        for n in range(8):
            assert f"{letters(n)}  gpu:{8 * n}-{8 * n + 7} " in shown
        assert shown.count("NV18 ") >= 8 and "18 each" in shown
        assert "gpu:0-31" in painted(box(64, numa=2), width, height)
    assert "gpu:0 " in painted(box(8, kind="pcie"), 80, 20)


def test_groups_are_linked_and_placed_alike() -> None:
    def groups(shown: View) -> list[list[str]]:
        return [[one.id for one in group] for group in read_net(shown.devices, shown.links).groups]

    assert groups(box(4, kind="pcie")) == [["gpu:0", "gpu:1"], ["gpu:2", "gpu:3"]]
    assert groups(box(4, numa=1)) == [["gpu:0", "gpu:1", "gpu:2", "gpu:3"]]
    devices = tuple(Device(f"gpu:{n}", "GPU") for n in range(3))
    odd = (
        Link("gpu:0", "gpu:1", "PIX"),
        Link("gpu:0", "gpu:2", "SYS"),
        Link("gpu:1", "gpu:2", "NODE"),
    )
    assert groups(view(devices=devices, links=odd)) == [["gpu:0"], ["gpu:1"], ["gpu:2"]]
    # another NUMA node; slices are left out
    assert groups(box(2, mig=(0,))) == [["gpu:0"], ["gpu:1"]]


def test_letters_go_on_after_z() -> None:
    assert [letters(n) for n in (0, 25, 26, 51, 52, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "AZ",
        "BA",
        "ZZ",
        "AAA",
    ]


def test_words_that_mean_harm() -> None:
    devices = tuple(
        Device(
            f"gpu:{n}",
            HOSTILE,
            facts={"pci": HOSTILE, "numa_node": HOSTILE, "cpu_affinity": HOSTILE},
        )
        for n in range(3)
    )
    shown = view(
        devices=devices, links=(Link("gpu:0", "gpu:1", HOSTILE), Link("gpu:0", "gpu:2", "NV"))
    )
    for folded in (False, True):
        assert_exact(paint(shown, folded, 0, 150, 20), 150, 20)


def test_keys_fold_and_scroll_both_ways() -> None:
    async def body(app: ConsoleApp, pilot: Pilot[int], api: BoxSession) -> None:
        await shows(app, "16 GPUs in 2 groups")
        await pilot.press("g")
        await shows(app, "more down and right")
        await pilot.press("end")
        await shows(app, "gpu:15")
        assert "gpu:0 " not in text_of(app)
        await pilot.press(*["right"] * 9)
        await shows(app, "PCI address")
        assert "more" not in text_of(app).split("\n")[0]
        await pilot.press("home")
        await shows(app, "gpu:0 ")
        await pilot.press("g")
        await shows(app, "A  gpu:0-7")
        api.shown = box(2)
        await shows(app, "gpu:0-1: NV18")
        await pilot.press("escape")
        await until(lambda: not isinstance(app.screen, TopologyScreen))

    on_box(box(16, kind="islands"), TopologyScreen, body, (110, 20))
