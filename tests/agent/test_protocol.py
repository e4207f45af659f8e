"""The agent's plain data is what the console's decoder reads, and the agent runs where gpuconsole
is not installed."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import gpuconsole.agent
from gpuconsole.agent import protocol
from gpuconsole.agent.hooks.changes import change
from gpuconsole.agent.hooks.evidence.probes import LOADING_PARTS, PROBES, WINDOWED
from gpuconsole.diagnosis.probes import IN_JOB, PASSIVE
from gpuconsole.model import run
from gpuconsole.model.finding import CodePlace, Signal
from gpuconsole.model.job import EFFECTS
from gpuconsole.model.stacks import StackSample
from gpuconsole.wire import events

AGENT = Path(gpuconsole.agent.__file__).parent


def test_the_console_has_no_types_of_its_own_for_what_the_agent_sends_and_reads() -> None:
    """Each name of the protocol stands once: the console imports it."""
    names = {
        name
        for name, value in vars(protocol).items()
        if getattr(value, "__module__", "") == protocol.__name__
    }
    for module in (events, run):
        own = {
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        }
        assert names & own <= {"encode"}


def test_the_effects_of_changes_are_those_that_the_console_explains() -> None:
    assert tuple(EFFECTS) == (
        change.SAME_BITS,
        change.SAME_SAMPLES,
        change.MAY_DIFFER,
        change.CHANGES_NUMERICS,
    )
    assert change.NEEDS_PERMISSION.startswith(EFFECTS[change.MAY_DIFFER])


def test_the_question_before_probes_names_each_probe_that_the_agent_runs() -> None:
    assert {*IN_JOB, *PASSIVE} == {*PROBES, *WINDOWED, LOADING_PARTS}


COUNTERS = {"gc.collections": 3.0}
STEP = protocol.MarkedStep(3, 1.0, [2, 9], [1.5, 1.75], [], 4, 0, 0.5, 1, protocol.SETTLING)
MESSAGES: list[tuple[dict[str, Any], events.Event]] = [
    (
        protocol.message(
            "markedsteps",
            2.0,
            steps=[STEP],
            cpu_s=1.0,
            runq_s=0.1,
            overhead_s=0.01,
            memory_bytes=5e8,
            dropped=2,
            rank=1,
            counters=COUNTERS,
        ),
        events.MarkedSteps(2.0, [STEP], 1.0, 0.1, 0.01, 5e8, 2, 1, COUNTERS).added_up(),
    ),
    (
        protocol.message(
            "segments",
            2.0,
            packed="",
            cpu_s=1.0,
            runq_s=0.1,
            overhead_s=0.01,
            memory_bytes=5e8,
            collectives=protocol.Collectives(
                3,
                [protocol.CollectiveKind("all_gather", 6, 600, 0.5, 5)],
                [protocol.Arrival("0", 2, 7, 1, 1_795_885_907_041_758, 0.25, 50.0)],
                "",
            ),
        ),
        events.Segments(
            2.0,
            "",
            1.0,
            0.1,
            0.01,
            5e8,
            collectives=protocol.Collectives(
                3,
                [protocol.CollectiveKind("all_gather", 6, 600, 0.5, 5)],
                [protocol.Arrival("0", 2, 7, 1, 1_795_885_907_041_758, 0.25, 50.0)],
                "",
            ),
        ),
    ),
    (
        protocol.message("knobsset", 1.0, request=2, step=30, knobs={"batch_size": 8}, error=None),
        events.KnobsSet(1.0, 2, 30, {"batch_size": 8}),
    ),
    (
        protocol.message("knobsset", 1.0, request=2, step=0, knobs={}, error="no room"),
        events.KnobsSet(1.0, 2, 0, {}, "no room"),
    ),
    (
        protocol.message(
            "probedone",
            1.0,
            request=4,
            probe="launch",
            signals={
                "probe.issue_s": protocol.Signal(1.5, "s", "P9"),
                "sync.wait_s": protocol.Signal(0.1, "s", "P11", protocol.CodePlace("a b.py:3")),
            },
            cost_s=2.0,
        ),
        events.ProbeDone(
            1.0,
            4,
            "launch",
            {
                "probe.issue_s": Signal(1.5, "s", "P9"),
                "sync.wait_s": Signal(0.1, "s", "P11", CodePlace("a b.py:3")),
            },
            cost_s=2.0,
        ),
    ),
    (
        protocol.message("probedone", 1.0, request=4, probe="launch", error="no GPU"),
        events.ProbeDone(1.0, 4, "launch", error="no GPU"),
    ),
    (
        protocol.message(
            "stacks", 1.0, rank=0, samples=[("loss", "python", 1.5, "", ["train.py:3 match"])]
        ),
        events.Stacks(1.0, 0, [StackSample("loss", "python", 1.5, "", ["train.py:3 match"])]),
    ),
    (protocol.message("paused", 1.0, request=6), events.Paused(1.0, 6)),
    (
        protocol.message("profiled", 1.0, request=7, error="paused"),
        events.Profiled(1.0, 7, error="paused"),
    ),
    (
        protocol.message(
            "profiled", 1.0, request=8, trace="w.json", keep="", gpu=True, probe="op_mix"
        ),
        events.Profiled(1.0, 8, trace="w.json", gpu=True, probe="op_mix"),
    ),
]


@pytest.mark.parametrize(
    ("message", "event"),
    MESSAGES,
    ids=lambda value: value["event"] if isinstance(value, dict) else "",
)
def test_the_console_reads_each_message_with_either_encoder(
    message: dict[str, Any], event: events.Event
) -> None:
    assert (
        events.decode_event(protocol.encode(message))
        == events.decode_event(events.encode(message))
        == event
    )


def test_each_message_of_the_agent_has_the_fields_of_its_event() -> None:
    """Read from the source: the calls with a tag and the fields by name."""
    kinds = {kind.__struct_config__.tag: kind for kind in get_args(events.AnyEvent)}
    tags = set()
    for path in AGENT.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(
                call.func, "attr", getattr(call.func, "id", "")
            ) in ("message", "_answer", "_send"):
                tag = call.args[0] if call.args else None
                if isinstance(tag, ast.Constant):
                    tags.add(tag.value)
                    fields = {keyword.arg for keyword in call.keywords}
                    required = {
                        field.name
                        for field in msgspec.structs.fields(kinds[tag.value])
                        if field.required
                    } - {"t"}
                    assert required <= fields <= set(kinds[tag.value].__struct_fields__), (
                        f"{path.name}:{call.lineno}"
                    )
    assert tags == {
        *(
            "knobsset",
            "probedone",
            "profiled",
            "paused",
            "note",
            "jobprocess",
            "rankjoined",
            "jobknown",
            "started",
            "agentoff",
        ),
        *("outofmemory", "memoryowners", "memorylines", "stacks"),
    }


COMMANDS = [
    events.SetKnobs(1, {"batch_size": 8}, arm=2),
    events.SetKnobs(1, {"batch_size": 8}),
    events.RunProbe(2, "launch"),
    events.Profile(3, 5, "trace.json.gz"),
    events.Pause(),
    events.Pause(4),
    events.Resume(1),
    events.Resume(),
    events.Stop(),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_the_agent_reads_each_command(command: events.Command) -> None:
    read = protocol.command_of(json.loads(events.encode(command)))
    assert type(read).__name__ == type(command).__name__
    assert read == command == events.decode_command(events.encode(command))


@pytest.mark.parametrize(
    "line",
    [
        b"3",
        b"{}",
        b'{"command":"dance"}',
        b'{"command":"pause","request":"now"}',
        b'{"command":"runprobe"}',
    ],
)
def test_what_is_no_command_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        events.decode_command(line)


ALONE = """
import sys
# an import of one of these raises ImportError
sys.modules.update(dict.fromkeys(("gpuconsole", "msgspec", "torch", "psutil", "numpy")))
sys.path.insert(0, sys.argv[1])
import importlib, json, pkgutil, elsewhere
for module in pkgutil.iter_modules(elsewhere.__path__):
    importlib.import_module("elsewhere." + module.name)
from elsewhere.step_breakdown import FORWARD, StepBreakdown
from elsewhere.clock import ThreadTimes
from elsewhere.protocol import encode, message
account = StepBreakdown(ThreadTimes())
for _ in range(3):
    account.mark(FORWARD)
    account.end(4, 0, None, 0, 0)
print(encode(message(account.tag, 1.0, **account.fields(0.0), memory_bytes=0.0)).decode())
"""


def test_a_copy_of_the_agent_runs_without_gpuconsole_and_its_libraries(tmp_path: Path) -> None:
    shutil.copytree(AGENT, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    event = events.decode_event(done.stdout.strip())
    assert isinstance(event, events.Steps)
    assert [step.index for step in event.steps] == [0, 1, 2]
    assert all(sum(step.phases) == pytest.approx(step.wall_s) for step in event.steps)
