"""How full the memory is that a GPU shares with the host."""

from __future__ import annotations

from gpuconsole.model.machine import UNIFIED, Device
from gpuconsole.session.state import SessionState
from gpuconsole.wire.events import Devices, Sample

GB = 1e9


def test_unified_memory_is_as_full_as_what_nobody_can_allocate() -> None:
    """The processes of the GPU hold 20 GB, those of the host 90 GB, and files are cached in 8 GB,
    which the kernel gives back."""
    state = SessionState()
    values = {
        "gpu.hbm_used_bytes": 20 * GB,
        "gpu.hbm_free_bytes": 18 * GB,
        "gpu.hbm_total_bytes": 128 * GB,
    }
    state.apply(
        Devices(
            0.0,
            [
                Device("gpu:0", "NVIDIA GB10", facts={"memory_kind": UNIFIED}),
                Device("gpu:1", "NVIDIA L4"),
            ],
        )
    )
    for device in ("gpu:0", "gpu:1"):
        state.apply(Sample(1.0, device, values))
    assert state.memory_used("gpu:0") == (110 * GB, 128 * GB)
    assert state.memory_used("gpu:1") == (20 * GB, 128 * GB), "a card with a memory of its own"
