"""The columns of a device: each fact about a GPU, its NVLinks or the host that a line, a table or a
tile shows, declared once.

`report/machine/columns.py` makes texts of them. Each output names the columns that it shows, the
most important first: where the room ends, the last are left out. Whether a value is fresh, and why
there is none, is not decided here (`session/freshness.py`, `session/facts.py`).
"""

from __future__ import annotations

from typing import NamedTuple


class DeviceColumn(NamedTuple):
    """One fact, read from `metric`. The unit, and with it the format, is the unit of the metric in
    the catalogue.

    `short`: the title where there is little room, if it is not `title`. `pattern`: the figure in
    words.
    `beside`: a second metric in the same figure, such as the other direction of traffic; `ways` are
    then the names of the two directions. The scale ends at the value of the metric `top`, else at
    `full`; 0: at the largest value. If `hot`, a value at the top needs action.
    """

    title: str
    metric: str
    beside: str = ""
    ways: tuple[str, str] | None = None
    top: str = ""
    full: float = 0.0
    hot: bool = False
    short: str = ""
    lead: str = ""
    """What stands before the figure in a line; empty where the figure says what it is."""
    pattern: str = "{}"
    if_positive: bool = False
    """Whether lines show only values above zero."""
    from_width: int = 0
    """Lines and tables with fewer cells leave the column out."""

    @property
    def short_title(self) -> str:
        return self.short or self.title


# --- a GPU ----------------------------------------------------------------------------------------

SM = DeviceColumn("SM active", "gpu.sm_active_ratio", short="SM", full=1.0, lead="SM")
UTILIZATION = DeviceColumn(
    "GPU-Util", "gpu.utilization_ratio", short="util", full=1.0, lead="GPU-Util"
)
"""The figure of this name in nvidia-smi: the share of time in which any kernel runs. It says less
than the share of active SMs, and stands in its place where the driver does not report that."""
TENSOR = DeviceColumn(
    "tensor active", "gpu.tensor_active_ratio", short="tensor", full=1.0, lead="tensor"
)
HBM = DeviceColumn(
    "HBM used", "gpu.hbm_used_bytes", short="HBM", top="gpu.hbm_total_bytes", lead="HBM"
)
UNIFIED_MEMORY = HBM._replace(title="unified used", short="unified", lead="unified memory")
"""In place of HBM for a GPU that has the memory of the host: what its processes use of it."""
HBM_BANDWIDTH = DeviceColumn(
    "HBM bandwidth",
    "gpu.dram_active_ratio",
    "gpu.hbm_bytes_per_s",
    short="HBM bw",
    full=1.0,
    lead="HBM bw",
    from_width=100,
)
UNIFIED_BANDWIDTH = HBM_BANDWIDTH._replace(
    title="memory bandwidth", short="mem bw", lead="memory bw"
)
POWER = DeviceColumn("power", "gpu.power_w", top="gpu.power_limit_w")
TEMPERATURE = DeviceColumn(
    "temperature",
    "gpu.temperature_c",
    short="temp",
    top="gpu.temperature_slowdown_c",
    full=100.0,
    hot=True,
)
POWER_CAP = DeviceColumn(
    "power cap",
    "gpu.power_cap_time_ratio",
    full=1.0,
    pattern="power cap {} of time",
    if_positive=True,
)
PERFORMANCE_STATE = DeviceColumn("P-state", "gpu.performance_state", lead="P-state")
FAN = DeviceColumn("fan", "gpu.fan_ratio", full=1.0, lead="fan")
SM_CLOCK = DeviceColumn("SM clock", "gpu.sm_clock_hz", top="gpu.sm_clock_max_hz", lead="SM clock")
PCIE = DeviceColumn("PCIe", "gpu.pcie_rx_bytes_per_s", "gpu.pcie_tx_bytes_per_s", ("rx", "tx"))
NVLINK = DeviceColumn(
    "NVLink", "gpu.nvlink_rx_bytes_per_s", "gpu.nvlink_tx_bytes_per_s", ("rx", "tx")
)

NVLINK_COLUMNS = (
    DeviceColumn("up", "gpu.link_up"),
    DeviceColumn("in", "gpu.link_rx_bytes_per_s"),
    DeviceColumn("out", "gpu.link_tx_bytes_per_s"),
    DeviceColumn("replays", "gpu.link_replays"),
    DeviceColumn("recoveries", "gpu.link_recoveries"),
    DeviceColumn("CRC errors", "gpu.link_crc_errors"),
)
"""One NVLink, which is a device with its own name (`gpu:0/link:3`)."""

ALARMS = {
    "gpu.clocks_hw_thermal": "clocks cut by the hardware: heat",
    "gpu.clocks_power_brake": "clocks cut from outside: power brake",
    "gpu.clocks_hw_slowdown": "clocks cut by the hardware",
    "gpu.row_remap_failed": "memory is worn: it needs service",
    "gpu.row_remap_pending": "",
    "gpu.ecc_uncorrected": "",
    "gpu.xid_errors": "",
}
"""Metrics of a GPU that need action above zero, the worst first, with the words that the first row
of the screen says; empty: only the page of the device shows it."""

# --- the host -------------------------------------------------------------------------------------

CORES = DeviceColumn("cores busy", "host.cores_busy", lead="cores busy")
RUN_QUEUE_DELAY = DeviceColumn(
    "run-queue delay",
    "host.run_queue_delay_ratio",
    short="run queue",
    full=1.0,
    lead="waiting for a core",
)
HOST_MEMORY = DeviceColumn(
    "memory", "host.memory_used_bytes", top="host.memory_total_bytes", lead="memory"
)
LOAD = DeviceColumn("load average", "host.load_average_1min", short="load", lead="load")
SWAP = DeviceColumn(
    "swap", "host.swap_used_bytes", top="host.swap_total_bytes", lead="swap", if_positive=True
)
DISK = DeviceColumn("disk", "host.disk_read_bytes_per_s", "host.disk_write_bytes_per_s", ("r", "w"))
NET = DeviceColumn("net", "host.net_rx_bytes_per_s", "host.net_tx_bytes_per_s", ("rx", "tx"))

# --- fixed properties (`Device.facts`) with another title than their key --------------------------

FACTS = {
    "memory_kind": "memory kind", "pci": "PCI address", "numa_node": "NUMA node",
    "cpu_affinity": "CPU affinity", "ecc": "ECC", "ecc_pending": "ECC after a reset",
    "mig": "MIG", "vbios": "VBIOS",
}  # fmt: skip
