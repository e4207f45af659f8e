"""Errors since the start of the console, and those from before."""

from __future__ import annotations

from gpuconsole.model.machine import Device
from gpuconsole.session.gpu_state import Fault, faults
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import seen_now
from gpuconsole.wire.events import DeviceLost, Devices, Hello, Sample, Xid


def started(*errors: float) -> SessionState:
    state = SessionState()
    state.apply(Hello(100.0, "sampler", 1, "x", 1e9))
    state.apply(Devices(100.0, [Device("gpu:0", "H200", uuid="A")]))
    for n, count in enumerate(errors):
        state.apply(Sample(101.0 + n, "gpu:0", {"gpu.ecc_uncorrected": count}))
    return state


def found(state: SessionState) -> list[Fault]:
    return faults(seen_now(state, state.session_time(state.now)), "gpu:0")


def test_memory_errors_from_before_the_start_are_old() -> None:
    assert found(started(0.0, 0.0)) == []
    assert found(started(4.0, 4.0)) == [Fault("4 ECC errors before", is_new=False)]
    assert found(started(4.0, 5.0)) == [
        Fault("1 ECC error", breaks=True),
        Fault("4 before", is_new=False),
    ]
    assert found(started(4.0, 0.0, 1.0)) == [Fault("1 ECC error", breaks=True)], (
        "a reset of the GPU clears the count"
    )


def test_an_xid_stays_with_its_gpu_when_the_sampler_starts_again() -> None:
    state = started()
    state.apply(Xid(110.0, "gpu:0", 79))
    assert found(state) == [Fault("XID 79", True, 10.0, breaks=True)]
    state.apply(DeviceLost(111.0, "gpu:0", "GPU is lost"))
    for uuid in ("", "A"):  # it has no handle for a while
        state.apply(Devices(112.0, [Device("gpu:0", "H200", uuid=uuid)]))
        assert found(state) == [Fault("XID 79", True, 10.0, breaks=True)]
    state.apply(Devices(113.0, [Device("gpu:0", "H200", uuid="A")]))
    state.apply(Devices(114.0, [Device("gpu:0", "H200", uuid="B")]))
    assert found(state) == [], "another GPU has this number now"
