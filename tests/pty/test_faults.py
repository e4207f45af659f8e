"""Faults of a GPU box on the real screen: after each fault the console still works and shows what
happened.

No scenario is started. The spare worker finds no torch, so that no test waits for its import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fakes.nvml.build import Script
from tests.no_torch import without_torch
from tests.pty.terminal import Terminal
from tests.waiting import gone, wait_until

GPM = ("gpu * gpm 2 78.5", "gpu * gpm 5 31", "gpu * gpm 10 42")
RESTORED = b"\x1b[?1049l"


def watching(script: Script, library: Path, *words: str) -> Terminal:
    """A console that only watches the machine of `script`."""
    folder = script.path.parent
    return Terminal(
        *words, cwd=folder, env={**script.environment(library), **without_torch(folder)}
    )


@pytest.fixture
def box(fake_library: Path, tmp_path: Path) -> Iterator[tuple[Script, Terminal]]:
    """A console on a box of 8 GPUs, showing them."""
    script = Script(tmp_path / "machine.txt", "gpus 8", *GPM)
    with watching(script, fake_library, "--interval", "0.2") as terminal:
        terminal.wait_for("8x H200", "8 GPUs · 8 busy", "78 %", "42 %", timeout_s=30)
        yield script, terminal


def test_the_first_figures_are_there_before_the_app(fake_library: Path, tmp_path: Path) -> None:
    """What is written before the app turns the mouse on is the picture without the app. The app
    does not wait long for the figures: on a busy machine one of three starts has them."""
    script = Script(tmp_path / "machine.txt", "gpus 8", *GPM)
    figures = []
    while 8 not in figures and len(figures) < 3:
        with watching(script, fake_library) as terminal:
            terminal.wait_for("8x H200", "78 %", timeout_s=30)
            picture = bytes(terminal.raw[: terminal.raw.index(b"\x1b[?1000h")]).decode()
            assert_alive(terminal)
        figures.append(len(re.findall(r"\d/\d+ GiB", picture)))
    assert 8 in figures


def assert_alive(terminal: Terminal) -> None:
    """Keys still work, and it leaves when asked."""
    terminal.press("?")
    terminal.wait_for("Reading the screen", timeout_s=10)
    terminal.press("escape")
    terminal.wait_gone("Reading the screen", timeout_s=10)
    terminal.press("q")
    assert terminal.wait_exit() == 0
    assert RESTORED in terminal.raw


@pytest.mark.slow
def test_a_lost_gpu(box: tuple[Script, Terminal]) -> None:
    script, terminal = box
    script.write("gpus 8", "gpu * gpm 2 55", "gpu 3 lost 1")
    terminal.wait_for("1 lost", "gpu:3", "lost: GPU is lost", "55 %")
    assert_alive(terminal)


@pytest.mark.slow
def test_a_driver_that_is_unloaded_and_comes_back(box: tuple[Script, Terminal]) -> None:
    script, terminal = box
    script.write("init_error 9", "gpus 8", "count_error 9", "gpu * error * 9")
    terminal.wait_for("No GPU: the NVIDIA kernel driver is not loaded.", "cores busy", timeout_s=20)
    script.write("gpus 4", *GPM)
    terminal.wait_for("4x H200", timeout_s=30)
    assert_alive(terminal)


@pytest.mark.slow
def test_permission_taken_away(box: tuple[Script, Terminal]) -> None:
    script, terminal = box
    script.write("gpus 8", "gpu * error * 4")
    terminal.wait_for("no permission")
    terminal.press("i")
    terminal.wait_for("gpu.hbm_used_bytes", "no permission")
    terminal.press("q")
    terminal.wait_for("device  state")
    assert_alive(terminal)


def test_garbage_reads_not_available(box: tuple[Script, Terminal]) -> None:
    script, terminal = box
    script.write(
        "gpus 8",
        "gpu * gpm 2 nan",
        "gpu * gpm 5 1e12",
        "gpu * gpm 10 42",
        "gpu * power_mw 4294967295",
        "gpu * temperature_c 9999",
    )
    # the utilisation of nvidia-smi in place of the counter's garbage
    terminal.wait_for("GPU-Util", "busy", "42 %", "    n/a  n/a")
    assert_alive(terminal)


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    ["nvmlDeviceGetPowerUsage", "nvmlGpmSampleGet", "nvmlDeviceGetComputeRunningProcesses_v3"],
)
def test_a_call_that_hangs_is_named_and_does_not_hold_up_quitting(
    box: tuple[Script, Terminal], call: str
) -> None:
    script, terminal = box
    children = psutil.Process(terminal.process.pid).children(recursive=True)
    script.write("gpus 8", *GPM, f"gpu 5 delay {call} 60000")
    terminal.wait_for(f"gpu:5: {call.removesuffix('_v3')} has not returned for")
    terminal.press("?")
    terminal.wait_for("Reading the screen", timeout_s=10)
    terminal.press("q", "q")  # leaves the help, then the console
    assert terminal.wait_exit(10) == 0
    assert RESTORED in terminal.raw
    wait_until(lambda: all(gone(child.pid) for child in children), 10, "children gone")


@pytest.mark.slow
def test_a_driver_that_hangs_from_the_start_leaves_a_working_console(
    fake_library: Path, tmp_path: Path
) -> None:
    script = Script(tmp_path / "machine.txt", "gpus 2", "init_delay 60000")
    with watching(script, fake_library) as terminal:
        terminal.wait_for("the NVIDIA driver has not answered yet", timeout_s=20)
        assert_alive(terminal)


def test_hostile_names_reach_the_terminal_as_text_only(fake_library: Path, tmp_path: Path) -> None:
    """A GPU's and a process's name with escape sequences, markup and a right-to-left override."""
    nasty = tmp_path / "x\x1b]52;c;aGk=\x07[b]\u202egnp.exe"
    nasty.symlink_to("/bin/sleep")
    child = psutil.Popen([str(nasty), "300"])
    try:
        lines = [
            "gpu 0 name \\x1b]0;owned\\x07[red]H200[/]",
            f"gpu 0 process {child.pid} compute 5e9 50",
        ]
        script = Script(tmp_path / "machine.txt", "gpus 1", *GPM, *lines)
        with watching(script, fake_library) as terminal:
            terminal.wait_for("[red]H200[/]", "1 process", timeout_s=30)
            terminal.press("p")
            terminal.wait_for("Processes", str(child.pid), "[b]", timeout_s=20)
            terminal.press("enter")
            terminal.wait_for("\\x1b]52", timeout_s=20)
            terminal.press("q", "q")  # back to the table, back to the overview
            terminal.wait_for("device  state")
            assert_alive(terminal)
            for hostile in (b"\x1b]52", b"\x1b]0;owned", "\u202e".encode()):
                assert hostile not in terminal.raw
    finally:
        child.kill()


def test_a_hang_up_leaves_no_process(box: tuple[Script, Terminal]) -> None:
    _, terminal = box
    children = psutil.Process(terminal.process.pid).children(recursive=True)
    terminal.hang_up()
    wait_until(lambda: terminal.process.poll() is not None, 10, "the console ends")
    wait_until(lambda: all(gone(child.pid) for child in children), 10, "children gone")


def test_a_device_that_is_not_there_is_refused_with_those_that_are(
    fake_library: Path, tmp_path: Path
) -> None:
    script = Script(tmp_path / "machine.txt", "gpus 2")
    with watching(script, fake_library, "--device", "gpu:9") as terminal:
        assert terminal.wait_exit(20) == 2
        assert b"there is no device 'gpu:9'; there are: gpu:0, gpu:1, cpu" in terminal.raw
        assert RESTORED in terminal.raw


@pytest.mark.slow
def test_heat_is_shown_in_the_title(box: tuple[Script, Terminal]) -> None:
    script, terminal = box
    script.write("gpus 8", *GPM, "gpu 6 clocks_reasons 72")
    terminal.wait_for("gpu:6: heat slowdown")
    assert_alive(terminal)


WATCHING_BYTES = 60e6
"""Memory of its own. Resident memory counts pages of libraries too, which processes share: that sum
differs by 2 MB between runs."""


def words(process: psutil.Process) -> list[str]:
    """Return the command line of a process; an empty list if the process has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
def test_a_console_that_only_watches_has_no_worker_and_stays_small(tmp_path: Path) -> None:
    """The spare worker, with torch imported, ends some time after the scenario picker was
    closed."""
    with Terminal(cwd=tmp_path, module="tests.pty.brief_spare") as terminal:
        terminal.wait_for("what to press")
        terminal.press("s")
        terminal.wait_for("train-gpt")
        console = psutil.Process(terminal.process.pid)

        def workers() -> list[psutil.Process]:
            terminal.settle()
            return [
                child
                for child in console.children()
                if "gpuconsole.workloads.worker" in words(child)
            ]

        wait_until(workers, 20, "the spare worker, while the picker is open")
        terminal.press("escape")
        wait_until(lambda: not workers(), 20, "the spare worker is gone")
        terminal.wait_for("cores busy", timeout_s=20)
        tree = [
            process for process in (console, *console.children(recursive=True)) if words(process)
        ]
        own = {tuple(words(process)[2:4]): process.memory_full_info().uss for process in tree}
        assert sum(own.values()) < WATCHING_BYTES, own
        assert_alive(terminal)
