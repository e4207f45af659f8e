"""The agent changes nothing in the program: output, losses, weights, exit codes, also where the agent itself fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuconsole.agent.hooks.install  # loads all entry points  # noqa: F401
from gpuconsole.agent.hooks.guard import ENTRY_POINTS, PARTS
from gpuconsole.model.run import SETTLING
from gpuconsole.wire.events import Note
from tests.agent.listener import Listener

PROGRAMS = Path(__file__).parent / "programs"
BEFORE_TORCH = ("install.installed",)
"""Entry points that run while torch is imported: a forked child is too late to break them."""

IN_WORKERS = ("parts.begin_worker",)
"""They run in the workers of a DataLoader, which have no connection to the console."""
ELSEWHERE = ("graphs.", "copies.", "communication.", "optimizer.adopt", "install.adopt")
"""Entry points that run on a GPU only, or with several processes: see tests/cuda/ and test_exchanging.py. Those with `adopt` run in the block of
gpuconsole.watch() only."""

FAULTY_STEPS, LIGHT_STEPS = 24, 120
"""Steps of a trial in programs/faults.py: the FLOPs of a step are counted after 20; most steps are light after 60."""

KINDS = ("passes.begin", "compiled.begin", "passes.begin_light")
"""One entry point for each kind of loop in programs/faults.py."""


def kind(name: str) -> str:
    return KINDS[1] if "compiled" in name else KINDS[2] if "light" in name or "usual" in name else KINDS[0]


def steps_of(name: str) -> int:
    return LIGHT_STEPS if kind(name) == KINDS[2] else FAULTY_STEPS


def alone(*command: str, environment: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False, timeout=150)


@pytest.mark.slow
def test_no_mode_of_torchs_functions_stays_after_the_step_that_is_counted(tmp_path: Path) -> None:
    """`Tensor.backward` is such a function: torch puts a mode back after it. `within`: the step ends there, so the mode stays until the next pass."""
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAMS / "modes.py"), "plain", "within")
    assert re.fullmatch(r"plain entered after \[\]\nwithin entered after \[\d*\]\n", done.stdout), done.stdout + done.stderr
    by_script = listener.by_script()
    for watched in (by_script["plain"], by_script["within"]):
        assert watched.off is None and len(watched.steps) >= 500
        assert any(step.kind == SETTLING for step in watched.steps[20:]), "a step was counted"


@pytest.mark.slow
def test_what_torch_does_with_models_and_functions_stays_the_same(tmp_path: Path) -> None:
    """Compiling, scripting, tracing, exporting, copying, pickling and saving, with all warnings."""
    command = (sys.executable, str(PROGRAMS / "traps.py"))
    expected = alone(*command)
    listener = Listener(tmp_path)
    done = listener.run(*command)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout) and done.returncode == 0
    assert without_times(done.stderr) == without_times(expected.stderr)
    (watched,) = listener.watched
    assert watched.off is None
    assert len(watched.steps) == 24  # 20 plain steps, and 4 in a compiled function


def without_times(text: str) -> str:
    """Lines of torch's log begin with the time and the thread."""
    return re.sub(r"^W\d+ [\d:.]+ \d+ ", "", text, flags=re.MULTILINE)


@pytest.mark.slow
def test_what_the_program_puts_in_place_of_print_stays_when_the_agent_goes_off(tmp_path: Path) -> None:
    command = (sys.executable, str(PROGRAMS / "prints.py"))
    done, expected = Listener(tmp_path).run(*command), alone(*command)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)
    assert "of this process\n" in done.stdout and "of another" not in done.stdout


@pytest.mark.slow
def test_pickles_by_value_are_what_they_are_without_the_agent(tmp_path: Path) -> None:
    """They load where there is no agent, and the classes in them have no hooks."""
    for library in ("cloudpickle", "dill"):
        pytest.importorskip(library)
    command = (sys.executable, str(PROGRAMS / "pickled.py"), str(tmp_path))
    listener = Listener(tmp_path)
    done = listener.run(*command)
    assert done.returncode == 0, done.stderr
    (watched,) = listener.watched
    assert watched.off is None and len(watched.steps) == 24
    assert watched.shares(8)["checkpoint"] > 0
    lines = dict(line.split(" ", 1) for line in alone(*command, "read").stdout.splitlines())
    assert len(lines) == 16
    definitions = [name for name in lines if "." in name]
    assert [name for name in definitions if not lines[name].endswith("the same bytes")] == []
    assert "'__call__'" not in lines["inner"] and "'__call__'" in lines["model"]


@pytest.mark.slow
def test_a_failure_in_any_entry_point_switches_off_that_part_or_the_agent_and_nothing_else(tmp_path: Path) -> None:
    names = [name for name in ENTRY_POINTS if name not in BEFORE_TORCH and not name.startswith(ELSEWHERE)]
    command = (sys.executable, str(PROGRAMS / "faults.py"))
    expected = alone(*command, *KINDS)
    digests = re.findall(r"(?:\d+ )+(\S+) (\S+)\nexit 7\n", expected.stdout)
    assert expected.returncode == 0 and len(digests) == len(KINDS)
    listener = Listener(tmp_path)
    done = listener.run(*command, *names)
    assert (done.returncode, done.stderr) == (0, expected.stderr)
    steps = {name: " ".join(map(str, range(steps_of(name)))) for name in names}
    assert done.stdout == "".join(f"{steps[name]} {name} {dict(digests)[kind(name)]}\nexit 7\n" for name in names)
    by_script = {watched.first.script: watched for watched in listener.watched if watched.events}
    for name in names:
        watched = by_script[name]
        if name in IN_WORKERS:
            assert watched.off is None and len(watched.steps) == steps_of(name), name
        elif name.partition(".")[0] in PARTS:
            texts = [event.text for event in watched.events if isinstance(event, Note)]
            assert any(f"{name} failed with RuntimeError: broken by the test" in text for text in texts), (name, texts)
            assert watched.off is None and len(watched.steps) == steps_of(name), name
        else:
            assert watched.off is not None, name
            assert (watched.off.where, watched.off.cause) == (name, "RuntimeError: broken by the test")


@pytest.mark.slow
def test_a_reading_that_fails_switches_off_the_agent_only(tmp_path: Path) -> None:
    """A mark of a sampled step reads the run-queue time. This also happens in the hooks of usual steps, which have guards of their own."""
    command = (sys.executable, str(PROGRAMS / "faults.py"), "readings, light")
    expected = alone(*command)
    listener = Listener(tmp_path)
    done = listener.run(*command)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stdout + done.stderr
    assert [one.off.cause for one in listener.watched if one.off is not None] == ["RuntimeError: broken by the test"]


@pytest.mark.slow
@pytest.mark.parametrize("break_at", ["install", "package"])
def test_a_failure_at_the_start_of_the_agent_leaves_the_program_unwatched(tmp_path: Path, break_at: str) -> None:
    listener = Listener(tmp_path)
    hooks = listener.folder.path / "_gpuconsole_agent" / "hooks"
    if break_at == "install":
        (hooks / "install.py").write_text((hooks / "install.py").read_text() + "\n\ndef _connect():\n    raise RuntimeError('broken')\n")
    else:
        (hooks / "install.py").write_text("raise RuntimeError('broken')\n")
    done = listener.run(sys.executable, "-c", "import torch; print(torch.ones(2).sum().item()); raise SystemExit(3)")
    assert (done.returncode, done.stdout, done.stderr) == (3, "2.0\n", "")
    if break_at == "install":
        off = listener.watched[0].off
        assert off is not None and (off.where, off.cause) == ("install.installed", "RuntimeError: broken")
    else:
        assert any("failed: RuntimeError('broken')" in words for line in listener.folder.seen() for words in line)
