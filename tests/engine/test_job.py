"""A user's job in the session: recorded events make the same state again, and the command stays
private."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuconsole.agent.hooks.changes import CHANGES
from gpuconsole.engine import engine as engines
from gpuconsole.engine.children.job import JobCommand
from gpuconsole.experiments.baselines import key_of
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.session import LiveSession
from gpuconsole.host.torch_build import TorchBuild
from gpuconsole.model.job import JobFacts
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run, Summary
from gpuconsole.model.scenario import job_scenario
from gpuconsole.model.snapshot import Environment
from gpuconsole.report.share.session import knob_table
from gpuconsole.session import facts
from gpuconsole.session.state import SessionState
from gpuconsole.session.view import prelude
from gpuconsole.wire.events import (
    AgentOff,
    AnyEvent,
    Devices,
    JobKnown,
    KnobsSet,
    Note,
    RunOpened,
    Started,
    decode_event,
    encode,
)
from tests.experiments.measured import in_session
from tests.tui.fake_session import view

CPU = Device("cpu", "a CPU")


def state_of_a_job() -> SessionState:
    state = SessionState()
    state.apply(RunOpened(1.0, "1", "train.py", "job", {}, "cpu", digest="abc"))
    state.apply(JobKnown(2.0, 0, JobFacts("train.py", device="cpu")))
    state.apply(Started(2.0, {"num_workers": 0}, {"parameters": 7.0}))
    return state


def test_a_recording_that_begins_later_knows_the_job() -> None:
    before = state_of_a_job()
    after = SessionState()
    for event in prelude(
        before, Environment(), Started(2.0, {"num_workers": 0}, {"parameters": 7.0}), 3.0
    ):
        after.apply(decode_event(encode(event)))
    assert before.record is not None and after.record is not None
    assert after.record.run.job == before.record.run.job
    assert (after.record.run.command_digest, after.record.run.knobs) == ("abc", {"num_workers": 0})


def test_the_effect_of_a_change_is_the_strongest_of_its_knobs() -> None:
    state, knobs = state_of_a_job(), {"num_workers": 0, "optim": "adamw", "precision": "fp32"}
    notes = {
        "effect: num_workers": "samples may differ",
        "effect: prefetch_factor": "same bits",
        "effect: precision": "changes numerics",
    }
    state.apply(Started(3.0, knobs, {}, notes))
    assert state.record is not None
    run = state.record.run
    assert run.effect({"prefetch_factor": 4}) == "same bits"
    assert run.effect({"num_workers": 2, "prefetch_factor": 4}) == "samples may differ"
    assert run.effect({"num_workers": 2, "precision": "bf16"}) == "changes numerics"
    assert run.permissions({"num_workers": 2, "precision": "bf16"}) == [
        "numerics",
        "loader",
    ] and not run.permissions({"prefetch_factor": 4})
    assert run.effect({"optim": "sgd"}) == run.effect({}) == ""


def test_a_knob_that_the_program_changes_by_itself_is_no_kept_change() -> None:
    """A program may choose its batch size in each epoch, and the gradients that it adds up."""
    state = state_of_a_job()
    state.apply(Started(3.0, {"num_workers": 0, "batch_size": 50}, {}))
    state.apply(KnobsSet(4.0, 1, 33, {"num_workers": 4, "batch_size": 57}, at_step=31))
    state.apply(
        RunOpened(
            4.0,
            "2",
            "train.py",
            "job",
            {"num_workers": 4, "batch_size": 57},
            "cpu",
            {"num_workers": 4},
            digest="abc",
        )
    )
    state.apply(
        Started(
            5.0,
            {"num_workers": 4, "batch_size": 57},
            {},
            {"varies: batch_size": "the program changes it by itself"},
        )
    )
    first, last = (record.run for record in state.records)
    assert (last.varies, last.at_step) == (["batch_size"], 31)
    assert facts.kept_changes([first, last]) == {"num_workers": 4}
    marked = {str(cells[0][0]): cells[2][1] for cells in knob_table([first, last]).rows}
    assert marked == {"num_workers": "accent", "batch_size (varies in the program)": ""}
    last.varies = ["num_workers"]
    assert facts.kept_changes([first, last]) == {}
    last.varies = first.varies = ["batch_size"]
    assert [
        difference.name for difference in compare(in_session(first), in_session(last)).knobs
    ] == ["num_workers"]


def test_a_job_on_the_cpu_of_a_gpu_machine_has_the_cpu_as_its_device() -> None:
    state = SessionState()
    state.apply(RunOpened(1.0, "1", "train.py", "job", {}, "gpu:0"))
    state.apply(JobKnown(2.0, 0, JobFacts("train.py", device="cpu")))
    assert state.record is not None and state.record.run.device == "cpu"


def test_a_job_on_cuda_0_has_the_gpu_that_its_process_sees_as_the_first() -> None:
    state = SessionState()
    state.apply(
        Devices(
            0.5,
            [Device("gpu:0", "one", uuid="GPU-aa-1"), Device("gpu:1", "other", uuid="GPU-bb-2")],
        )
    )
    state.apply(RunOpened(1.0, "1", "train.py", "job", {}, "gpu:0"))
    state.apply(JobKnown(2.0, 0, JobFacts("train.py", device="cuda:0", device_uuid="bb-2")))
    assert state.record is not None and state.record.run.device == "gpu:1"


def test_an_agent_that_fails_is_named_in_the_run() -> None:
    state = state_of_a_job()
    state.apply(AgentOff(3.0, 12, 0, "data.next", "KeyError: 'x'"))
    assert state.record is not None
    assert (
        state.record.run.unavailable["agent"]
        == "the agent has switched itself off at data.next: KeyError: 'x'"
    )


def test_a_baseline_of_a_job_depends_on_its_command_and_its_knobs() -> None:
    def key(command: str, **knobs: int) -> str:
        run = Run(
            "1",
            "train.py",
            "job",
            dict(knobs),
            "cpu",
            command_digest=JobCommand(tuple(command.split())).digest,
        )
        return key_of(in_session(run))

    assert key("python train.py --lr 1", num_workers=0) == key(
        "/usr/bin/python train.py --lr 1", num_workers=0
    )
    assert key("python train.py --lr 1", num_workers=0) != key(
        "python train.py --lr 2", num_workers=0
    )
    assert key("python train.py --lr 1", num_workers=0) != key(
        "python train.py --lr 1", num_workers=2
    )


def test_a_comparison_names_other_commands_without_showing_them() -> None:
    one, other = (
        Run(name, "train.py", "job", {}, "cpu", command_digest=name) for name in ("abc", "def")
    )
    found = compare(in_session(one), in_session(other))
    assert [(knob.name, knob.before, knob.after) for knob in found.knobs] == [
        ("command", "abc", "def")
    ]


def test_the_name_of_a_command_is_its_script_or_its_module() -> None:
    names = {
        "python train.py --config a.py": "train.py",
        "python -m package.train": "package.train",
        "python -m torch.distributed.run --nproc-per-node 2 folder/train.py": "train.py",
        "accelerate launch train.py": "train.py",
        "./train.sh": "train.sh",
    }
    assert {words: JobCommand(tuple(words.split())).name for words in names} == names


def test_a_figure_that_a_job_does_not_give_is_not_awaited() -> None:
    run = Run("1", "train.py", "job", {}, "cpu", "running", summary=Summary(steps=9))
    shown = facts.reason(view(runs=(run,), state="running"), "workload.mfu_ratio")
    assert shown == "not counted in this job"


def test_each_setting_that_can_change_in_a_job_can_be_named_on_the_command_line() -> None:
    assert set(CHANGES) <= set(job_scenario("the job").workload.knobs)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("bash", "-c", "HF_TOKEN=secret python folder/train.py"), "train.py"),
        (("bash", "-c", "HF_TOKEN=secret python short.py --out a.py"), "short.py"),
        (("sh", "-lc", "TOKEN=secret.py exec ./run"), "sh"),
        (("env", "TOKEN=secret.py", "python", "-m", "package.train"), "package.train"),
        (("bash", "-c", "curl https://ann:secret@host/secret.py | python"), "bash"),
        (("bash", "-c", "echo 'secret"), "bash"),
        (("python", "TOKEN=secret.py"), "python"),
        (("python", "-m", "TOKEN=secret"), "python"),
        (("./TOKEN=secret",), "job"),
        (("python", "-c", "token = 'secret'\nimport train"), "python"),
    ],
)
def test_the_name_of_a_command_holds_nothing_that_could_be_secret(
    words: tuple[str, ...], name: str
) -> None:
    assert JobCommand(words).name == name


def test_a_torch_of_the_jobs_own_that_cannot_use_a_gpu_is_a_warning_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The console's torch may be another one."""
    asked: list[object] = []

    def unusable(torch: object, *_: object) -> dict[str, list[str]]:
        asked.append(torch)
        return {"too old": ["gpu:0"]}

    async def start(_: object) -> None:
        session.control.worker = worker

    session, worker, notes = (
        LiveSession(interval_s=1.0),
        cast("Any", SimpleNamespace(job=SimpleNamespace())),
        list[AnyEvent](),
    )
    monkeypatch.setattr(engines, "unusable_gpus", unusable)
    monkeypatch.setattr(session.control, "start", start)
    session.listeners.append(notes.append)
    asyncio.run(session.start_job(JobCommand(("python", "train.py"))))
    for _ in range(2):
        worker.job.on_process(SimpleNamespace(torch="2.13.0+cu130", cuda="13.0"))
    assert asked == 2 * [TorchBuild("2.13.0+cu130", "13.0")]
    assert [(note.text, note.level) for note in notes if isinstance(note, Note)] == [
        ("torch of the job cannot use gpu:0: too old", "warning")
    ]
