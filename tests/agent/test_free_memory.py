"""The free memory of a GPU whose memory is that of the host: what the kernel can give back is
free."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuconsole.agent import free_memory
from gpuconsole.agent.hooks import memory
from gpuconsole.agent.hooks.changes import change
from gpuconsole.agent.hooks.changes.change import ChangeRefused
from gpuconsole.agent.hooks.evidence import probes

KB, GB = 1024, 1e9
TOTAL, AVAILABLE, FREE = 127_000_000, 115_000_000, 41_000_000
"""kB of a GB10 after a file of 60 GB was written (measured, unsloth PR 10704)."""
DEVICE = torch.device("cuda", 0)


def machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, total: float, **properties: Any
) -> None:
    """A host with the memory of a GB10, and a GPU of which CUDA says this."""
    host = tmp_path / "meminfo"
    host.write_text(
        f"MemTotal:       {TOTAL} kB\nMemFree:        {FREE} kB\nMemAvailable:   {AVAILABLE} kB\n"
        "Active(file):   1 kB\n"
    )
    monkeypatch.setattr(free_memory, "HOST", str(host))
    monkeypatch.setattr(free_memory, "NODES", str(tmp_path / "node"))
    monkeypatch.setattr(free_memory, "GPUS", str(tmp_path / "gpus"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free), int(total)))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties)
    )


def test_on_unified_memory_the_page_cache_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, FREE * KB, TOTAL * KB, is_integrated=1)
    assert free_memory.free_and_total(DEVICE) == (AVAILABLE * KB, TOTAL * KB)


@pytest.mark.parametrize(
    "properties", [{"is_integrated": 0}, {}], ids=["a card of its own", "an old torch"]
)
def test_a_card_as_large_as_the_host_is_no_unified_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any]
) -> None:
    machine(tmp_path, monkeypatch, FREE * KB, TOTAL * KB, **properties)
    assert free_memory.free_and_total(DEVICE) == (FREE * KB, TOTAL * KB)


def test_without_the_figures_of_the_system_cuda_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, FREE * KB, TOTAL * KB, is_integrated=1)
    monkeypatch.setattr(free_memory, "HOST", str(tmp_path / "nothing"))
    assert free_memory.free_and_total(DEVICE) == (FREE * KB, TOTAL * KB)
    assert free_memory.host_bytes() is None


def numa(tmp_path: Path, node: str) -> None:
    folder = tmp_path / "gpus" / "0009:01:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_status").write_text(f"Node:           {node}\nStatus:         online\n")
    (tmp_path / "node" / "node1").mkdir(parents=True)
    sizes = {
        "MemTotal": 94_000_000,
        "MemFree": 10_000_000,
        "Active(file)": 3_000_000,
        "Inactive(file)": 40_000_000,
        "SReclaimable": 1_000_000,
    }
    text = "".join(f"Node 1 {name}:  {size} kB\n" for name, size in sizes.items())
    (tmp_path / "node" / "node1" / "meminfo").write_text(text)


def test_files_that_are_cached_in_the_memory_of_a_gpu_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grace Hopper: the GPU's memory is a node of Linux. The memory of the other nodes is not the
    GPU's."""
    machine(
        tmp_path,
        monkeypatch,
        10_000_000 * KB,
        94_000_000 * KB,
        is_integrated=1,
        pci_domain_id=9,
        pci_bus_id=1,
        pci_device_id=0,
    )
    numa(tmp_path, "1")
    assert free_memory.free_and_total(DEVICE) == (54_000_000 * KB, 94_000_000 * KB)


@pytest.mark.parametrize("node", ["-1", "7"], ids=["no node", "a node that is offline"])
def test_a_gpu_without_a_node_has_the_memory_that_cuda_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    machine(
        tmp_path,
        monkeypatch,
        10_000_000 * KB,
        94_000_000 * KB,
        is_integrated=0,
        pci_domain_id=9,
        pci_bus_id=1,
        pci_device_id=0,
    )
    numa(tmp_path, node)
    assert free_memory.free_and_total(DEVICE) == (10_000_000 * KB, 94_000_000 * KB)


def test_owners_probes_and_changes_do_not_count_the_page_cache_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(tmp_path, monkeypatch, FREE * KB, TOTAL * KB, is_integrated=1)
    figures = {
        "allocated_bytes": {"all": {"current": 2 * GB, "peak": 4 * GB}},
        "reserved_bytes": {"all": {"current": 5 * GB, "peak": 6 * GB}},
        "inactive_split_bytes": {"all": {"current": 0}},
    }
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: figures)
    assert memory.counted(0).others == pytest.approx((TOTAL - AVAILABLE) * KB - 5 * GB)
    probes.require_room(100 * GB, DEVICE, "a copy")
    change.require_room(100 * GB, DEVICE, "a copy")
    with pytest.raises(ChangeRefused, match="no room"):
        change.require_room(130 * GB, DEVICE, "a copy")
