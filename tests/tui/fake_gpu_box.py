"""Views of GPU boxes of any size, for tests only: every figure is made up from its name, so that it
is always the same."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Hashable, Iterable

import msgspec
from textual.pilot import Pilot

from gpuconsole.model.machine import Device, Link, Peaks, Process
from gpuconsole.model.metrics import GPU_METRICS, LINK_METRICS, Metric, series_key
from gpuconsole.model.text import cell_width
from gpuconsole.report.cells import Row, to_ascii
from gpuconsole.report.machine.devices import device_items, paint_item
from gpuconsole.report.page import Lines
from gpuconsole.session.api import View
from gpuconsole.session.idle import QuietTime
from gpuconsole.tui.actions import Actions
from gpuconsole.tui.app import ConsoleApp
from gpuconsole.tui.screens.base import BackScreen
from gpuconsole.tui.theme import STYLES
from gpuconsole.tui.widgets.list import ListZone
from gpuconsole.wire.events import SourceState
from tests.tui.fake_session import HOST, HOST_VALUES, FakeSession, gpu_view

WALL = 1_795_246_000.0
"""The Unix time of these views."""
GIB = 2**30
HOSTILE = (
    "py[/b]\x1b]52;c;cm0=\x07\x1b[2J\x9b31m\u202eexe\u200b\u2066\r\n\te\u0301\u0f7e\u1160🇩🇪模型"
)
"""Escapes (a clipboard write), C1 controls, markup, bidirectional marks, zero-width, new lines,
combining, wide."""
_TOPS = {
    "gpu.hbm_used_bytes": 120 * GIB, "gpu.hbm_free_bytes": 80 * GIB, "gpu.hbm_reserved_bytes": GIB,
    "gpu.bar1_used_bytes": 40 << 20, "gpu.power_w": 680.0, "gpu.power_instant_w": 700.0,
    "gpu.energy_j": 4.1e8, "gpu.temperature_c": 78.0, "gpu.memory_temperature_c": 82.0,
    "gpu.sm_clock_hz": 1.98e9, "gpu.memory_clock_hz": 3.2e9, "gpu.pcie_replays": 12.0,
    "gpu.processes": 4.0, "gpu.link_replays": 40.0, "gpu.ecc_corrected": 3.0,
    "gpu.ecc_corrected_lifetime": 90.0,
}  # fmt: skip
_FIXED = {
    "gpu.hbm_total_bytes": 140.4 * GIB, "gpu.bar1_total_bytes": 256.0 * GIB,
    "gpu.power_limit_w": 700.0, "gpu.power_limit_default_w": 700.0, "gpu.power_limit_max_w": 700.0,
    "gpu.temperature_slowdown_c": 87.0, "gpu.sm_clock_max_hz": 1.98e9,
    "gpu.memory_clock_max_hz": 3.2e9, "gpu.pcie_link_generation": 5.0,
    "gpu.pcie_link_generation_max": 5.0, "gpu.pcie_link_width": 16.0,
    "gpu.pcie_link_width_max": 16.0, "gpu.nvlinks_active": 18.0, "gpu.link_up": 1.0,
    "gpu.clocks_power_cap": 1.0,
}  # fmt: skip
_MISSING = {
    "gpu.fan_ratio": "this GPU has no fan",
    "gpu.c2c_rx_bytes_per_s": "no chip-to-chip link on this device",
    "gpu.c2c_tx_bytes_per_s": "no chip-to-chip link on this device",
    "gpu.ecc_uncorrected_lifetime": "not supported",
}
_MIG = "not supported while MIG mode is on"


def share(*words: object) -> float:
    """0..1, always the same for the same words."""
    return zlib.crc32(" ".join(map(str, words)).encode()) % 1000 / 999


def value_of(metric: Metric, device: str) -> float:
    name, part = metric.name, share(metric.name, device)
    if name in _FIXED:
        return float(_FIXED[name])
    if name in _TOPS:
        top = _TOPS[name] * (0.4 + 0.6 * part)
        return float(round(top)) if metric.unit in ("", "W", "°C") else top
    return {"ratio": 0.5 + 0.48 * part, "0/1": 0.0, "": 0.0}.get(metric.unit, part * 40e9)


def gpu(index: int, of: int, numa: int = 2) -> Device:
    cores, node = 96 * numa, index * numa // of
    each = cores // numa
    return Device(
        f"gpu:{index}",
        "NVIDIA H200",
        int(140.4 * GIB),
        f"GPU-{index:08x}-5a4b-11ef-9262-0242ac120002",
        Peaks(
            bf16_flops_per_s=989e12,
            fp32_flops_per_s=67e12,
            memory_bytes_per_s=4.8e12,
            source="datasheet",
        ),
        "gen5 x16",
        "18 links",
        {
            "pci": f"00000000:{0x17 + 3 * index:02X}:00.0",
            "numa_node": str(node),
            "cpu_affinity": f"{node * each}-{node * each + each - 1}",
            "architecture": "Hopper",
            "compute_capability": "9.0",
            "persistence_mode": "on",
            "ecc_mode": "on",
            "vbios": "96.00.A5.00.01",
        },
    )


def slice_of(index: int, n: int) -> Device:
    return Device(f"gpu:{index}/mig:{n}", "NVIDIA H200 MIG 1g.18gb", 18 * GIB, f"MIG-{index}-{n}")


def paths(gpus: int, kind: str) -> tuple[Link, ...]:
    """`nvswitch`: all to all; `pcie`: pairs behind a switch, two NUMA nodes; `islands`: NVLink
    among eight, PCIe between."""

    def path(a: int, b: int) -> str:
        if kind == "nvswitch" or (kind == "islands" and a // 8 == b // 8):
            return "NV18"
        if kind == "pcie" and a // 2 == b // 2:
            return "PIX"
        return "NODE" if a * 2 // gpus == b * 2 // gpus else "SYS"

    return tuple(
        Link(f"gpu:{a}", f"gpu:{b}", path(a, b)) for a in range(gpus) for b in range(a + 1, gpus)
    )


def processes(gpus: int) -> tuple[Process, ...]:
    """One rank a GPU under a launcher that holds none, a server in a container on the first two,
    one that tells little."""
    ranks = [
        Process(
            4100 + n,
            f"gpu:{n}",
            "compute",
            "python",
            "ada",
            1000,
            f"/opt/conda/bin/python train.py --config configs/gpt.yaml --rank {n}",
            "",
            4000,
            WALL - 7300 - n,
            int((90 - n % 7) * GIB),
            0.7 + 0.02 * (n % 9),
            1.02,
            0.41,
            int(6.2 * GIB),
        )
        for n in range(gpus)
    ]
    server = [
        Process(
            52_011,
            f"gpu:{n}",
            "compute",
            "VLLM::EngineCore",
            "root",
            0,
            "VLLM::EngineCore",
            "3f9c1ab20d7e",
            51_900,
            WALL - 260_000,
            31 * GIB,
            0.12,
            3.4,
            0.05,
            11 * GIB,
        )
        for n in range(min(2, gpus))
    ]
    return (
        *ranks,
        *server,
        Process(
            910, "gpu:0", "graphics", "Xorg", "root", 0, "/usr/lib/xorg/Xorg :0", "", 1, WALL - 9e5
        ),
        Process(77, "gpu:0"),
    )


def box(
    gpus: int = 8,
    *,
    kind: str = "nvswitch",
    mig: Iterable[int] = (),
    lost: Iterable[int] = (),
    stuck: Iterable[int] = (),
    numa: int = 2,
) -> View:
    """Training on gpu:0. `mig` GPUs are in slices, `lost` ones have fallen off the bus, of `stuck`
    ones nothing has come for a minute."""
    mig, lost, stuck = set(mig), set(lost), set(stuck)
    base = gpu_view()
    latest = {series_key(name, "cpu"): value for name, value in HOST_VALUES.items()}
    latest |= {key: value for key, value in base.latest.items() if key.startswith("workload.")}
    latest |= {
        series_key("host.core_busy_ratio", f"cpu:{n}"): share("core", n)
        for n in range(base.environment.cores)
    }
    latest |= {
        series_key("console.cpu_ratio", "console"): 0.011,
        series_key("console.memory_bytes", "console"): 41e6,
    }
    latest |= {series_key("console.cpu_ratio", "sampler"): 0.006}
    sampled = dict.fromkeys(latest, base.now - 0.4)
    reasons: dict[str, str] = {}
    devices: list[Device] = []
    for n in range(gpus):
        slices = [slice_of(n, part) for part in range(7)] if n in mig else []
        devices += [gpu(n, gpus, numa), *slices]
        for place in (
            f"gpu:{n}",
            *(one.id for one in slices),
            *(f"gpu:{n}/link:{link}" for link in range(18)),
        ):
            for metric in LINK_METRICS if "/link:" in place else GPU_METRICS:
                key = series_key(metric.name, place)
                if metric.name in _MISSING or n in lost:
                    reasons[key] = _MISSING.get(metric.name, "fell off the bus")
                elif n in mig and metric.source == "nvml.gpm":
                    reasons[key] = _MIG
                else:
                    latest[key] = value_of(metric, place)
                    sampled[key] = base.now - (61.0 if n in stuck else 0.4)
    stuck_s = 61.0 if stuck else 0.0
    detail = ", ".join(f"gpu:{n}: nvmlDeviceGetPowerUsage has not returned" for n in sorted(stuck))
    return msgspec.structs.replace(
        base,
        wall=WALL,
        devices=(*devices, HOST),
        latest=latest,
        sampled=sampled,
        unavailable=reasons,
        lost={f"gpu:{n}": "fell off the bus" for n in lost},
        processes=processes(gpus),
        processes_missing={f"gpu:{n}": "fell off the bus" for n in lost},
        links=paths(gpus, kind),
        silent={f"gpu:{n}": 61.0 for n in stuck},
        sources={
            "nvml": SourceState(base.now, "nvml", 1.0, stuck_s, detail, 3),
            "host": SourceState(base.now, "host", 1.0),
        },
    )


class BoxSession(FakeSession):
    """Records the signals that were requested."""

    def signal_process(self, process: Process, number: int) -> None:
        self._call("signal", process.pid, process.started, number)


def idle(shown: View) -> View:
    return msgspec.structs.replace(shown, runs=(), trials=(), state="")


def sick(**changes: object) -> View:
    """Eight GPUs: the second was hot, the third had memory errors before and now, the fourth
    before, the fifth had an XID, a person has lowered the power of the sixth, and the last is lost
    after an XID."""
    shown = idle(box(8, lost=[7]))
    values = {
        series_key(name, gpu): value
        for name, gpu, value in (
            ("gpu.clocks_hw_thermal", "gpu:1", 1.0),
            ("gpu.ecc_uncorrected", "gpu:2", 9.0),
            ("gpu.ecc_uncorrected", "gpu:3", 4.0),
            ("gpu.power_limit_w", "gpu:5", 400.0),
        )
    }
    errors = {"gpu:4": (79, shown.now - 60), "gpu:7": (79, shown.now - 30)}
    known: dict[str, object] = {
        "latest": shown.latest | values,
        "xids": errors,
        "ecc_before": {"gpu:2": 7.0, "gpu:3": 4.0},
    }
    return msgspec.structs.replace(shown, **(known | changes))


QUIET = {"gpu.sm_active_ratio": 0.0, "gpu.utilization_ratio": 0.0, "gpu.tensor_active_ratio": 0.0}


def shared(
    gpus: int = 8, *, free: tuple[int, ...] = (6,), held: dict[int, float] | None = None
) -> View:
    """A box where each GPU has a rank of ada's job: but `free` ones, and those that notebooks of
    anna have `held` for so many seconds without work. gpu:1 is hot. The machine costs 24.80 per
    hour."""
    shown = idle(box(gpus))
    held = {4: 14 * 60.0 + 5} if held is None else held
    latest = dict(shown.latest)
    for n in (*free, *held):
        still = QUIET | {
            "gpu.processes": float(n in held),
            "gpu.hbm_used_bytes": (39.6 if n in held else 0.5) * GIB,
            "gpu.power_w": 78.0,
            "gpu.dram_active_ratio": 0.0,
            "gpu.nvlink_rx_bytes_per_s": 0.0,
            "gpu.nvlink_tx_bytes_per_s": 0.0,
        }
        latest |= {series_key(name, f"gpu:{n}"): value for name, value in still.items()}
    latest[series_key("gpu.clocks_hw_thermal", "gpu:1")] = 1.0
    ranks = [
        process
        for process in shown.processes
        if process.user == "ada" and int(process.device[4:]) not in (*free, *held)
    ]
    notebooks = [
        Process(
            4242 + at, f"gpu:{n}", "compute", "python3", "anna", 1001,
            "/opt/conda/bin/python -m ipykernel_launcher -f kernel.json",
            started=WALL - 86_000, memory_bytes=int(39 * GIB), sm_ratio=0.0, cpu_ratio=0.0,
        )
        for at, n in enumerate(held)
    ]  # fmt: skip
    return msgspec.structs.replace(
        shown,
        latest=latest,
        processes=(*ranks, *notebooks),
        environment=msgspec.structs.replace(shown.environment, price_per_hour=24.8),
        quiet={f"gpu:{n}": QuietTime(seconds, False) for n, seconds in held.items()},
    )


Body = Callable[[ConsoleApp, "Pilot[int]", BoxSession], Awaitable[None]]


def on_box(
    shown: View,
    screen: Callable[[BoxSession, Actions], BackScreen],
    body: Body,
    size: tuple[int, int] = (120, 40),
) -> BoxSession:
    """Run `body` with `screen` on top of an app that shows `shown`."""
    api = BoxSession(shown)

    async def run() -> None:
        app = ConsoleApp(api, refresh_hz=20.0)
        async with app.run_test(size=size) as pilot:
            while len(app.screen_stack) > 1:
                app.pop_screen()
            await app.push_screen(screen(api, app.actions))
            await pilot.pause()
            await body(app, pilot, api)

    asyncio.run(run())
    return api


def paint_devices(view: View, width: int, place: str = "", needle: str = "") -> list[Row]:
    """One device in full, by default the device of the run."""
    return [
        paint_item(view, item, width, False)
        for item in device_items(view, place or view.device, needle, width)
    ]


def text(rows: list[Row]) -> str:
    return "\n".join("".join(part for part, _ in row) for row in rows)


def drawn(lines: Lines, width: int, height: int, selected: Hashable | None = None) -> list[Row]:
    """A list in so much room, with this line selected."""
    zone = ListZone(lambda width, height: lines)
    zone._selected = selected
    return zone.paint(width, height)


def assert_exact(rows: list[Row], width: int, height: int | None = None) -> None:
    """Each row is exactly as wide as asked, also in plain ASCII, in known styles, and holds nothing
    that a terminal would obey."""
    assert height is None or len(rows) == height
    for row in rows:
        for version in (row, to_ascii(row)):
            whole = "".join(part for part, _ in version)
            assert cell_width(whole) == width, (width, whole)
            assert whole.isprintable(), ascii(whole)
            assert all(style in STYLES for _, style in version)
