"""Do our readings agree with the driver's? Prints both with their differences.

    python -m benchmarks.agreement [--fake] [--keep]

With a GPU: compares with `nvidia-smi -q -x` and `nvidia-smi dmon --gpm-metrics`, read in the same
second. Values that move (power, clocks, activity) may differ by their change within this second.
Without a GPU, or with --fake: compares with the script of the fake driver, where every value must
agree. Exit code 1: a value that does not move, or any value of the fake driver, differs by more
than 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import keep
from gpuconsole.engine.children.once import DevicesReading, read_devices
from gpuconsole.model.metrics import CATALOGUE

MIB = float(1 << 20)
TOLERANCE = 0.005


class Field(NamedTuple):
    """The path of a metric in `nvidia-smi -q -x`, and the factor from its unit to ours. Newer
    drivers renamed some metrics: any of the paths may exist."""

    metric: str
    paths: tuple[str, ...]
    factor: float
    moves: bool = True


FIELDS = (
    Field("gpu.hbm_total_bytes", ("fb_memory_usage/total",), MIB, False),
    Field("gpu.hbm_used_bytes", ("fb_memory_usage/used",), MIB),
    Field("gpu.hbm_reserved_bytes", ("fb_memory_usage/reserved",), MIB, False),
    Field("gpu.bar1_total_bytes", ("bar1_memory_usage/total",), MIB, False),
    Field("gpu.utilization_ratio", ("utilization/gpu_util",), 0.01),
    Field("gpu.memory_utilization_ratio", ("utilization/memory_util",), 0.01),
    Field("gpu.encoder_utilization_ratio", ("utilization/encoder_util",), 0.01),
    Field("gpu.decoder_utilization_ratio", ("utilization/decoder_util",), 0.01),
    Field("gpu.temperature_c", ("temperature/gpu_temp",), 1.0),
    Field("gpu.memory_temperature_c", ("temperature/memory_temp",), 1.0),
    Field(
        "gpu.power_w",
        ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw"),
        1.0,
    ),
    Field("gpu.power_instant_w", ("gpu_power_readings/instant_power_draw",), 1.0),
    Field(
        "gpu.power_limit_w",
        ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit"),
        1.0,
        False,
    ),
    Field(
        "gpu.power_limit_max_w",
        ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
        1.0,
        False,
    ),
    Field("gpu.sm_clock_hz", ("clocks/sm_clock",), 1e6),
    Field("gpu.memory_clock_hz", ("clocks/mem_clock",), 1e6),
    Field("gpu.sm_clock_max_hz", ("max_clocks/sm_clock",), 1e6, False),
    Field("gpu.memory_clock_max_hz", ("max_clocks/mem_clock",), 1e6, False),
    Field("gpu.pcie_link_generation", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), 1.0),
    Field(
        "gpu.pcie_link_generation_max", ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), 1.0, False
    ),
    Field(
        "gpu.pcie_link_width", ("pci/pci_gpu_link_info/link_widths/current_link_width",), 1.0, False
    ),
    Field(
        "gpu.pcie_link_width_max", ("pci/pci_gpu_link_info/link_widths/max_link_width",), 1.0, False
    ),
    Field("gpu.pcie_replays", ("pci/replay_counter",), 1.0, False),
    Field("gpu.ecc_corrected", ("ecc_errors/volatile/sram_correctable",), 1.0, False),
    Field("gpu.rows_remapped_corrected", ("remapped_rows/remapped_row_corr",), 1.0, False),
    Field("gpu.rows_remapped_uncorrected", ("remapped_rows/remapped_row_unc",), 1.0, False),
)
# `nvidia-smi dmon --gpm-metrics` takes NVML's identifiers; percent and MB/s.
GPM = {
    1: ("gpu.graphics_active_ratio", 0.01),
    2: ("gpu.sm_active_ratio", 0.01),
    3: ("gpu.sm_occupancy_ratio", 0.01),
    5: ("gpu.tensor_active_ratio", 0.01),
    10: ("gpu.dram_active_ratio", 0.01),
    11: ("gpu.fp64_active_ratio", 0.01),
    12: ("gpu.fp32_active_ratio", 0.01),
    13: ("gpu.fp16_active_ratio", 0.01),
    20: ("gpu.pcie_tx_bytes_per_s", MIB),
    21: ("gpu.pcie_rx_bytes_per_s", MIB),
}


class Row(NamedTuple):
    device: str
    metric: str
    theirs: float
    ours: float | None
    moves: bool

    @property
    def difference(self) -> float | None:
        """Difference relative to the larger value; None if we have no value."""
        if self.ours is None:
            return None
        size = max(abs(self.theirs), abs(self.ours))
        return abs(self.ours - self.theirs) / size if size else 0.0

    @property
    def agrees(self) -> bool:
        return self.difference is not None and self.difference <= TOLERANCE


def against_nvidia_smi() -> list[Row]:
    """Three readings at the same time: ours, the XML, and GPM's own monitor."""
    with ThreadPoolExecutor(3) as pool:
        ours, xml, gpm = pool.submit(read_devices, 20.0, 1.0), pool.submit(_xml), pool.submit(_gpm)
    seen = ours.result()
    return _xml_rows(xml.result(), seen) + _gpm_rows(gpm.result(), seen)


def _xml() -> ElementTree.Element:
    done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, check=True)
    return ElementTree.fromstring(done.stdout)


def _gpm() -> dict[int, dict[int, float]]:
    """Values by GPU and identifier; empty if this nvidia-smi has no GPM."""
    ids = ",".join(map(str, GPM))
    done = subprocess.run(
        ["nvidia-smi", "dmon", "-c", "2", "-d", "1", "--gpm-metrics", ids],
        capture_output=True,
        text=True,
    )
    found: dict[int, dict[int, float]] = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if words and words[0].isdigit():  # the last round stands
            values = words[-len(GPM) :]
            found[int(words[0])] = {
                which: float(value)
                for which, value in zip(GPM, values, strict=True)
                if value != "-"
            }
    return found


def _xml_rows(tree: ElementTree.Element, seen: DevicesReading) -> list[Row]:
    rows = []
    for index, gpu in enumerate(tree.iter("gpu")):
        ours = seen.state.readings.present(f"gpu:{index}")
        for field in FIELDS:
            words = next((text.split() for path in field.paths if (text := gpu.findtext(path))), [])
            number = words[0].rstrip("x") if words else ""
            if number.replace(".", "", 1).isdigit():
                rows.append(
                    Row(
                        f"gpu:{index}",
                        field.metric,
                        float(number) * field.factor,
                        ours.get(field.metric),
                        field.moves,
                    )
                )
    return rows


def _gpm_rows(found: dict[int, dict[int, float]], seen: DevicesReading) -> list[Row]:
    return [
        Row(
            f"gpu:{index}",
            GPM[which][0],
            value * GPM[which][1],
            seen.state.readings.present(f"gpu:{index}").get(GPM[which][0]),
            True,
        )
        for index, values in found.items()
        for which, value in values.items()
    ]


def against_the_fake() -> list[Row]:
    from tests.fakes.nvml.build import Script, build_fake_nvml
    from tests.fakes.nvml.scripted import SCRIPT, SCRIPTED

    with tempfile.TemporaryDirectory() as folder:
        script = Script(Path(folder) / "machine.txt", "gpus 1", *SCRIPT)
        environment = script.environment(build_fake_nvml(Path(folder)))
        done = subprocess.run(
            [sys.executable, "-m", "gpuconsole", "devices", "--json"],
            env=environment,
            capture_output=True,
            check=True,
        )
    ours = json.loads(done.stdout)["devices"][0]["values"]
    return [
        Row("gpu:0", metric, value, ours.get(metric), False)
        for metric, (_, value) in SCRIPTED.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fake", action="store_true", help="the fake driver, also where there is a GPU"
    )
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    fake = args.fake or shutil.which("nvidia-smi") is None
    rows = against_the_fake() if fake else against_nvidia_smi()
    theirs = "the fake's script" if fake else "nvidia-smi"
    print(f"{'device':<8} {'metric':<34} {'unit':<8} {theirs:>20} {'gpuconsole':>20}  difference")
    for row in rows:
        difference = (
            "n/a"
            if row.difference is None
            else f"{row.difference:.2%}{' (moves)' if row.moves else ''}"
        )
        ours = "n/a" if row.ours is None else f"{row.ours:.6g}"
        print(
            f"{row.device:<8} {row.metric:<34} {CATALOGUE[row.metric].unit:<8} {row.theirs:>20.6g}"
            f" {ours:>20}  {difference}"
        )
    wrong = [row for row in rows if not row.moves and not row.agrees]
    print(
        f"{len(rows)} figures, {sum(row.agrees for row in rows)} within {TOLERANCE:.1%},"
        f" {len(wrong)} that must agree do not"
    )
    if args.keep:
        found = [{**row._asdict(), "difference": row.difference} for row in rows]
        print(f"kept in {keep('agreement', {'against': theirs, 'rows': found})}")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
