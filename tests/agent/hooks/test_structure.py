"""The walk over the modules of a model."""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpuconsole.agent.hooks import described, job, structure
from gpuconsole.agent.hooks.watch import Watch


class Model(nn.Sequential):
    looks = 0

    @property
    def config(self) -> Any:
        type(self).looks += 1
        raise AssertionError("the program's own property")

    def modules(self) -> Any:
        raise AssertionError("the program's own method")

    parameters = modules


def watched(model: nn.Module) -> Watch:
    watch = Watch()
    watch.roots.append(weakref.ref(model))
    return watch


def test_a_walk_is_made_once_and_again_when_the_number_of_modules_changes() -> None:
    model = Model(nn.Conv2d(2, 3, 3), nn.Linear(4, 5), nn.Linear(5, 5))
    model.append(model[1])
    watch, before = watched(model), Model.looks
    first = structure.structure(watch)
    assert structure.structure(watch) is first and Model.looks == before
    assert (len(first.parameters), first.linear_parameters, first.images) == (
        6,
        45,
        [model[0].weight],
    )
    model.append(nn.Linear(5, 1))
    assert structure.structure(watch).linear_parameters == 50
    model[0].weight = nn.Parameter(torch.zeros(3, 2, 1, 1))
    assert structure.structure(watch).images == [model[0].weight], "the former weight is gone"
    assert not structure.structure(watch).compiled
    model[1].compile(backend="eager")
    assert structure.structure(watch).compiled


def test_facts_are_those_of_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 5))
    model[1].config = type("Config", (), {"num_layers": 3, "hidden_size": 5})  # type: ignore[assignment]
    monkeypatch.setattr(described, "watch", watched(model))
    facts = described.facts()
    assert (facts["parameters"], facts["linear_parameters"], facts["layers"], facts["width"]) == (
        55,
        45,
        3,
        5,
    )


def test_a_slow_description_is_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, described_at = [100.0], list[float]()

    class Stub:
        """A service and a connection that go on: else the agent of this process would be off for
        the tests that follow."""

        gone = False

        def __getattr__(self, name: str) -> Any:
            return Stub()

        def __call__(self, *_: Any) -> Any:
            return True

    def describe() -> None:
        described_at.append(clock[0])
        clock[0] += 0.1

    agent = job.Agent("/nowhere")
    monkeypatch.setattr(job, "now", lambda: clock[0])
    monkeypatch.setattr(job.recorder, "index", job.DESCRIBE_AT)
    monkeypatch.setattr(agent, "_describe", describe)
    monkeypatch.setattr(job.switch, "notes", [])
    for _ in range(30):
        agent._serve(Stub(), Stub())  # type: ignore[arg-type]
        clock[0] += 1.0
    assert not job.switch.failed
    assert [round(later - earlier) for earlier, later in itertools.pairwise(described_at)] == [
        10,
        10,
    ]


def test_the_time_of_a_probe_is_not_that_of_the_agents_own_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    agent = job.Agent("/nowhere")
    recorder = SimpleNamespace(
        index=100,
        start=0.0,
        times=[clock[0]],
        own_s=0.0,
        probes_s=0.0,
        on=True,
        due=0.0,
        leave=int,
        arm=0,
    )
    recorder.enter = lambda code: None
    monkeypatch.setattr(job, "now", lambda: clock[0])
    monkeypatch.setattr(job, "recorder", recorder)

    def work() -> None:
        clock[0] += 0.001
        with job.probing():
            clock[0] += 2.0

    monkeypatch.setattr(agent, "_work", work)
    agent.step_ended()
    assert (round(recorder.own_s, 6), round(recorder.probes_s, 6)) == (0.001, 2.0)


def test_a_file_of_the_program_named_as_a_module_of_python_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "resource.py").write_text("print('imported')")
    code = (
        "from gpuconsole.agent.hooks.job import peak_resident_bytes; print(peak_resident_bytes() >"
        " 1e6)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert run.stdout == "True\n"
    assert job.peak_resident_bytes() == pytest.approx(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, rel=0.1
    )


def test_a_parameter_of_a_known_structure_can_be_swapped() -> None:
    """torch.utils.swap_tensors refuses a tensor with a weak reference."""
    model = nn.Sequential(nn.Linear(4, 2), nn.Conv2d(2, 2, 1))
    found = structure.Structure(list(model.modules()))
    for weight in model.parameters():
        torch.utils.swap_tensors(weight, nn.Parameter(weight.detach().clone()))  # type: ignore[no-untyped-call]
    assert found.lives() and list(map(id, found.parameters)) == list(map(id, model.parameters()))
    assert found.images == [model[1].weight]
    del model
    assert not found.lives() and found.parameters == []
