"""The agent changes nothing in the program: output, losses, weights, exit codes, also where the
agent itself fails."""

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
BORDERS = {
    "begin _BaseDataLoaderIter.__next__": "data",
    "end _BaseDataLoaderIter.__next__": "data",
    "begin DataLoader.__iter__": "data",
    "end DataLoader.__iter__": "data",
    "call DataLoader.__init__": "data",
    "call _BaseDataLoaderIter.__init__": "data",
    "begin Optimizer.zero_grad": "calls",
    "end Optimizer.zero_grad": "calls",
    "call Optimizer.__init__": "",
    "begin _engine_run_backward": "",
    "end _engine_run_backward": "",
    "begin Optimizer.profile_hook_step": "",
    "end Optimizer.profile_hook_step": "",
    "begin GradScaler.step": "",
    "end GradScaler.step": "",
    "end Module._wrapped_call_impl": "",
    "begin _TorchDynamoContext.__call__": "",
    "end _TorchDynamoContext.__call__": "",
}
"""What the agent does where functions of torch begin and end, and the part of the agent that is off
where this fails; empty: the agent."""
ELSEWHERE = ("copies.", "parts.")
"""Entry points that run on a GPU or in the workers of a DataLoader only: see tests/cuda."""
FAULTY_STEPS = 24
"""Steps of a trial in programs/faults.py."""
KINDS = ("plain", "_Torch")
"""Each kind of loop in programs/faults.py."""


def kind(name: str) -> str:
    return KINDS[1] if KINDS[1] in name else KINDS[0]


def alone(
    *command: str, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environment or {})}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, cwd=cwd, check=False, timeout=270
    )


@pytest.mark.slow
def test_no_mode_of_torchs_functions_stays_after_the_step_that_is_counted(tmp_path: Path) -> None:
    """`Tensor.backward` is such a function: torch puts a mode back after it. `within`: the step
    ends there, so the mode stays until the next pass."""
    listener = Listener(tmp_path)
    done = listener.run(sys.executable, str(PROGRAMS / "modes.py"), "plain", "within")
    assert re.fullmatch(r"plain entered after \[\]\nwithin entered after \[\d*\]\n", done.stdout), (
        done.stdout + done.stderr
    )
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
    assert (done.returncode, done.stdout) == (
        expected.returncode,
        expected.stdout,
    ) and done.returncode == 0
    assert without_times(done.stderr) == without_times(expected.stderr)
    (watched,) = listener.watched
    assert watched.off is None
    assert len(watched.steps) == 24  # 20 plain steps, and 4 in a compiled function


def without_times(text: str) -> str:
    """Lines of torch's log begin with the time and the thread."""
    return re.sub(r"^W\d+ [\d:.]+ \d+ ", "", text, flags=re.MULTILINE)


@pytest.mark.slow
def test_what_the_program_puts_in_place_of_print_stays_when_the_agent_goes_off(
    tmp_path: Path,
) -> None:
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


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no sys.monitoring")
def test_a_failure_at_any_border_switches_off_that_part_or_the_agent_and_nothing_else(
    tmp_path: Path,
) -> None:
    entries = {
        name: name.partition(".")[0] for name in ENTRY_POINTS if not name.startswith(ELSEWHERE)
    }
    expected_off = {
        **BORDERS,
        **{name: part if part in PARTS else "" for name, part in entries.items()},
    }
    command = (sys.executable, str(PROGRAMS / "faults.py"))
    expected = alone(*command, *KINDS)
    digests = re.findall(r"(?:\d+ )+(\S+) (\S+)\nexit 7\n", expected.stdout)
    assert expected.returncode == 0 and len(digests) == len(KINDS)
    listener = Listener(tmp_path)
    done = listener.run(*command, *expected_off)
    assert (done.returncode, done.stderr) == (0, expected.stderr)
    steps = " ".join(map(str, range(FAULTY_STEPS)))
    assert done.stdout == "".join(
        f"{steps} {name} {dict(digests)[kind(name)]}\nexit 7\n" for name in expected_off
    )
    by_script = {watched.first.script: watched for watched in listener.watched if watched.events}
    for name, part in expected_off.items():
        watched = by_script[name]
        place = name if name in entries else f"{part or 'borders'}.{name.partition(' ')[2]}"
        if part:
            texts = [event.text for event in watched.events if isinstance(event, Note)]
            assert any(
                f"{place} failed with RuntimeError: broken by the test" in text for text in texts
            ), (name, texts)
            assert watched.off is None and len(watched.steps) == FAULTY_STEPS, name
        else:
            assert watched.off is not None, name
            assert (watched.off.where, watched.off.cause) == (
                place,
                "RuntimeError: broken by the test",
            )


@pytest.mark.slow
def test_a_reading_that_fails_switches_off_the_agent_only(tmp_path: Path) -> None:
    """A mark of a sampled step reads the run-queue time. This also happens in the hooks of usual
    steps, which have guards of their own."""
    command = (sys.executable, str(PROGRAMS / "faults.py"), "readings")
    expected = alone(*command)
    listener = Listener(tmp_path)
    done = listener.run(*command)
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stdout + done.stderr
    assert [one.off.cause for one in listener.watched if one.off is not None] == [
        "RuntimeError: broken by the test"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("break_at", ["install", "package"])
def test_a_failure_at_the_start_of_the_agent_leaves_the_program_unwatched(
    tmp_path: Path, break_at: str
) -> None:
    listener = Listener(tmp_path)
    hooks = listener.folder.path / "_gpuconsole_agent" / "hooks"
    if break_at == "install":
        (hooks / "install.py").write_text(
            (hooks / "install.py").read_text()
            + "\n\ndef _connect():\n    raise RuntimeError('broken')\n"
        )
    else:
        (hooks / "install.py").write_text("raise RuntimeError('broken')\n")
    done = listener.run(
        sys.executable, "-c", "import torch; print(torch.ones(2).sum().item()); raise SystemExit(3)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "2.0\n", "")
    if break_at == "install":
        off = listener.watched[0].off
        assert off is not None and (off.where, off.cause) == ("borders", "RuntimeError: broken")
    else:
        assert any(
            "failed: RuntimeError('broken')" in words
            for line in listener.folder.seen()
            for words in line
        )
