"""A machine as plain data: its devices with their links, the processes on the devices, and its
measured peak rates."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

# --- devices --------------------------------------------------------------------------------------


class Peaks(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dense datasheet peaks in FLOP/s by precision, and in bytes/s. None: not known. Nothing is
    guessed.

    Where a device has two rates for 16 and 8 bits, the figures are those with accumulation in fp32.
    `memory_bytes` is the rounded size of the datasheet. NVLink bandwidth is the sum of both
    directions, as in datasheets. `tdp_w`: the highest board power, in W. `boost_clock_hz`: the SM
    clock of the datasheet for typical work, for cards whose highest clock in NVML is above it
    (GeForce, workstation).
    """

    fp32_flops_per_s: float | None = None
    tf32_flops_per_s: float | None = None
    bf16_flops_per_s: float | None = None
    fp16_flops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    fp4_flops_per_s: float | None = None
    int8_ops_per_s: float | None = None
    memory_bytes_per_s: float | None = None
    memory_bytes: float | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    tdp_w: float | None = None
    boost_clock_hz: float | None = None
    source: str = ""

    @property
    def precedes_ampere(self) -> bool:
        """Whether this is Volta or Turing: a 16-bit peak is known and none of bf16, so the tensor
        cores compute neither bf16 nor TF32."""
        return bool(self.fp16_flops_per_s) and not self.bf16_flops_per_s


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """A published training throughput: tokens/s per device, with the trained model.

    `parameters`: as the publisher states. `n_layer` and `d_model`: 0 where the publisher does not
    state them. `mfu_ratio`: the publisher's own MFU, None where there is none. `devices`: number of
    devices, 0 where the publisher does not state it.
    """

    device: str
    model: str
    parameters: float
    seq_len: int
    precision: str
    tokens_per_s: float
    source: str
    n_layer: int = 0
    d_model: int = 0
    devices: int = 0
    mfu_ratio: float | None = None
    note: str = ""


UNKNOWN_GPU = "gpu:?"
"""The device of a job on a GPU that the console cannot tell from others."""


NO_DRIVER = "no NVIDIA driver: libnvidia-ml.so.1 is missing or cannot be loaded"
NO_GPU = "the NVIDIA driver reports no GPU"
NO_GPU_REASONS = (NO_DRIVER, NO_GPU)
"""Why a machine has no GPU, where nothing is wrong with it. With any other reason the driver cannot
be used."""


UNIFIED = "unified"
"""The kind of a memory that a GPU shares with the host."""


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """`id` is `gpu:0`, `gpu:1`, ... or `cpu`; a MIG slice is `gpu:0/mig:1`. A field is empty where
    the driver does not report the value.

    `facts` are further fixed properties by name: architecture, compute capability, PCI address,
    NUMA node, CPU affinity, persistence mode, ...
    """

    id: str
    name: str
    memory_bytes: int = 0
    uuid: str = ""
    peaks: Peaks = Peaks()
    pcie: str = ""
    nvlink: str = ""
    facts: dict[str, str] = {}

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU or a MIG slice."""
        return self.id.startswith("gpu")

    @property
    def is_unified(self) -> bool:
        """Whether the GPU has the memory of the host. Then `memory_bytes` is that of the host:
        never add both."""
        return self.facts.get("memory_kind") == UNIFIED

    @property
    def is_mig(self) -> bool:
        return "/mig:" in self.id


class Link(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best path between devices `a` and `b`, in nvidia-smi's words: `NV#` (that many NVLinks),
    `PIX` (one PCIe switch), `PXB` (several), `PHB` (a host bridge), `NODE` (within a NUMA node),
    `SYS` (between NUMA nodes)."""

    a: str
    b: str
    path: str


# --- a process that uses a device, with the details that the driver and the operating system report
# ---


class Listener(NamedTuple):
    """A TCP port at which a process listens, and an address at which this machine reaches it."""

    port: int
    host: str = "127.0.0.1"


class Process(msgspec.Struct, frozen=True, omit_defaults=True):
    """`started` (Unix seconds, 0: unknown) distinguishes a process from a later process with the
    same `pid`.

    `kind` is `compute` or `graphics`. `memory_time_ratio`: share of the last seconds in which the
    process read or wrote device memory (not bandwidth). `host_memory_bytes`: its resident memory.
    None and an empty text mean that the value is not known. `name` and `command` come from the
    process: treat them as untrusted text. `container` is a short id.

    `state`: the letter of the kernel for what the process does: R, S, D, T, t, Z; D only where it
    lasts for two readings. `unseen`: why only the pid is known. `lineage`: the parents that surely
    belong to the same job, the nearest first; `launcher` is the command line of the last.
    `console`: the gpuconsole under which the process runs, 0 for none.
    """

    pid: int
    device: str
    kind: str = "compute"
    name: str = ""
    user: str = ""
    uid: int | None = None
    command: str = ""
    container: str = ""
    parent: int = 0
    started: float = 0.0
    memory_bytes: int | None = None
    sm_ratio: float | None = None
    cpu_ratio: float | None = None
    memory_time_ratio: float | None = None
    host_memory_bytes: int | None = None
    state: str = ""
    unseen: str = ""
    lineage: tuple[int, ...] = ()
    launcher: str = ""
    console: int = 0


# --- measured peak rates of a machine -------------------------------------------------------------

UNITS = {"_flops_per_s": "FLOP/s", "_bytes_per_s": "bytes/s", "_latency_s": "s"}


def unit_of(name: str) -> str:
    """The unit that belongs to the suffix of a figure's name."""
    return next(unit for ending, unit in UNITS.items() if name.endswith(ending))


def sustained_name(name: str) -> str:
    """The name of the sustained rate of a figure: `gemm_fp32_sustained_flops_per_s`."""
    ending = next(ending for ending in UNITS if name.endswith(ending))
    return f"{name.removesuffix(ending)}_sustained{ending}"


class Reached(msgspec.Struct, frozen=True, omit_defaults=True):
    """One figure: the best of `n` repeats, which is the rate of an undisturbed machine; or the
    reason why there is no figure.

    `sustained` is the rate that a quarter of the repeats exceed: on a machine with other tenants a
    job can keep it up, and not the best rate. `spread_ratio` is the interquartile range over the
    median, None for fewer than two repeats. `detail` describes the measurement (size, threads).
    `reason` is set where `value` is None.
    """

    name: str
    unit: str
    value: float | None = None
    median: float | None = None
    spread_ratio: float | None = None
    n: int = 0
    detail: str = ""
    reason: str = ""
    sustained: float | None = None


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """The machine and software that a calibration is valid for. `devices`: name and UUID of each
    device."""

    host: str
    cpu: str
    cores: int
    devices: tuple[tuple[str, str], ...]
    driver: str | None = None
    torch: str | None = None


class CalibrationRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """All figures of one device, with the time and the load of the machine.

    `created`: UTC, ISO 8601. `load_1min`: the system's load average at the start. `others_cores`:
    number of the cores allowed to this process that other processes used during the calibration.
    """

    machine: Machine
    device: str
    created: str
    reached: list[Reached]
    load_1min: float | None = None
    others_cores: float = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """The measured values by name, without missing values; sustained rates under
        `sustained_name`."""
        best = {figure.name: figure.value for figure in self.reached if figure.value is not None}
        return best | {
            sustained_name(figure.name): figure.sustained
            for figure in self.reached
            if figure.sustained is not None
        }


def named_cores(text: str) -> frozenset[int]:
    """The cores of a list such as `0-31,64-95`. Empty for what is no such list."""
    try:
        spans = [tuple(map(int, span.split("-"))) for span in text.split(",") if span]
    except ValueError:
        return frozenset()
    return frozenset(core for span in spans for core in range(span[0], span[-1] + 1))
