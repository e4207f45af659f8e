"""The parts of telemetry that need no child: the beat, and what the sampler may import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuconsole.model.text import visible
from gpuconsole.telemetry.nvml import gpu, library
from gpuconsole.telemetry.nvml.library import CallFailed, call
from gpuconsole.telemetry.source import next_time


@pytest.mark.parametrize(
    ("now", "expected"), [(10.0, 11.0), (10.4, 11.0), (11.0, 12.0), (13.7, 14.0)]
)
def test_the_beat_neither_drifts_nor_bursts(now: float, expected: float) -> None:
    assert next_time(10.0, 1.0, now) == expected


def test_a_binding_without_the_function_is_a_reason() -> None:
    with pytest.raises(CallFailed, match="nvidia-ml-py lacks nvmlDeviceGetTheMoon") as caught:
        call("nvmlDeviceGetTheMoon")
    assert caught.value.code == library.FUNCTION_NOT_FOUND
    assert not caught.value.is_permanent


@pytest.mark.parametrize(
    ("code", "expected"), [(2, [True, False]), (library.NOT_SUPPORTED, [True, False]), (999, None)]
)
def test_the_links_end_where_the_driver_has_no_further_one(
    code: int, expected: list[bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state(function: str, handle: object, link: int) -> int:
        if function == "nvmlDeviceGetFieldValues":  # an older driver
            raise CallFailed(library.ARGUMENT_VERSION_MISMATCH)
        if link == 2:
            raise CallFailed(code)
        return 1 - link

    monkeypatch.setattr(gpu, "call", state)
    assert gpu.link_states(None) == expected


def test_the_sampler_imports_neither_torch_nor_a_screen() -> None:
    code = (
        "import sys, gpuconsole.telemetry.sampler; print([m for m in ('torch', 'textual', 'rich',"
        " 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_visible_leaves_text_and_shows_control() -> None:
    assert visible("NVIDIA H200 – é") == "NVIDIA H200 – é"
    assert visible("a\x1b[31mb\u202ec\x00\x9b") == "a\\x1b[31mb\\u202ec\\x00\\x9b"
