"""The shipped scenarios at CPU scale through the real command line: they run, and their rule and
fix exist.

Whether the finding is on top depends on timing: `python -m benchmarks.scenarios` measures this for
all scenarios.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuconsole.engine.catalog import read_scenario, shipped_folder
from gpuconsole.model.knobs.catalogue import check_knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.workloads.training.gpt import check_width
from tests.conftest import Cli

SCENARIOS = {
    scenario.name: scenario
    for scenario in map(read_scenario, sorted(shipped_folder().glob("*.toml")))
}
STEPS_S, REQUESTS_S = "1", "4"
"""After the first step, or after a server's warm-up: enough for some steps, or requests, of
each."""
SHORT_ANSWER = 16
"""Output tokens of each request here."""
ELSEWHERE = {
    "chatty-logging": "cli/test_tune.py",
    "data-starved": "cli/test_headless.py",
    "ddp-small-batch": "cli/test_ranks.py",
    "dynamic-shapes": "workloads/test_further_workloads.py",
    "serve-chat": "cli/test_serving.py",
    "tiny-batch": "cli/test_headless.py",
    "train-gpt": "cli/test_headless.py",
    "vision-healthy": "cli/test_headless.py",
}
"""Scenarios that another test runs for real."""
OTHER_VALUES = (
    "allreduce-bandwidth",
    "batch-sweep",
    "context-cliff",
    "ddp-straggler",
    "decode-one",
    "kv-pressure",
    "long-sequence",
    "naive-attention",
    "optimizer-heavy",
    "overload",
    "quantized",
    "serve-batch",
    "serve-long",
    "serve-prefix",
    "slow-checkpoint",
    "tensor-parallel",
    "train-vision",
    "zero-memory",
)
"""Scenarios that differ from the others by the values of knobs and by sizes: a matrix."""
RUN_HERE = {name: scenario for name, scenario in SCENARIOS.items() if name not in ELSEWHERE}


@cache
def printed(*words: str) -> Any:
    """What `gpuconsole WORDS` prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuconsole", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def test_all_are_listed() -> None:
    assert {one["name"] for one in printed("scenarios", "--json")} == SCENARIOS.keys()


def test_scenarios_that_other_tests_run_exist() -> None:
    tests = Path(__file__).parents[1]
    assert all(f'"{name}"' in (tests / file).read_text() for name, file in ELSEWHERE.items())
    assert SCENARIOS.keys() >= {*OTHER_VALUES, *ELSEWHERE}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_the_rule_and_the_fix_of_a_scenario_exist(scenario: Scenario) -> None:
    teaches = scenario.teaches
    assert teaches.see
    if teaches.rule:  # the one that is well set has none
        assert teaches.rule in {rule["id"] for rule in printed("rules", "--json")}
    fix = check_knobs(teaches.fix, scenario.workload.knobs, scenario.workload.name)
    defaults = scenario.knobs_for("cpu")
    assert not [name for name, value in fix.items() if defaults.get(name) == value]
    check_knobs(teaches.gpu_fix, scenario.workload.knobs, scenario.workload.name)


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_a_transformer_of_a_scenario_can_be_made_on_every_device(scenario: Scenario) -> None:
    for knobs in [
        scenario.knobs_for("cpu"),
        *(scenario.knobs_for("gpu", size * 1e9) for size in (16, 24, 40, 80, 141)),
    ]:
        if "d_model" in knobs and "n_layer" in knobs:
            check_width(int(knobs["d_model"]))
        if scenario.workload.serves:
            assert int(knobs["prompt_tokens"]) + int(knobs["output_tokens"]) <= int(
                knobs["max_model_len"]
            )


# A first step may wait for the C++ compiler, several processes for one another.
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(one, id=name, marks=pytest.mark.matrix if name in OTHER_VALUES else ())
        for name, one in RUN_HERE.items()
    ],
)
def test_a_scenario_runs_headless_to_a_valid_snapshot(cli: Cli, scenario: Scenario) -> None:
    knobs = scenario.knobs_for("cpu")
    # the others take a minute of training
    quick: dict[str, Any] = {"weights": "random"} if knobs.get("weights") == "trained" else {}
    # on a busy machine a long answer may take longer than the whole run
    if scenario.workload.serves:
        quick["output_tokens"] = min(int(knobs["output_tokens"]), SHORT_ANSWER)
    sets = [word for name, value in quick.items() for word in ("--set", f"{name}={value}")]
    duration = REQUESTS_S if scenario.workload.serves else STEPS_S
    done = cli(
        "run",
        scenario.name,
        *sets,
        "--device",
        "cpu",
        "--json",
        "--duration",
        duration,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    snapshot = json.loads(done.stdout)
    jsonschema.validate(snapshot, printed("snapshot-schema"))
    (run,) = snapshot["runs"]
    assert (run["state"], run["device"], run["scenario"]) == ("finished", "cpu", scenario.name), (
        run.get("error")
    )
    assert run["knobs"] == {**knobs, **quick}
    assert run["summary"]["steps"] > 0
    # a model server tells its part of a request when one has ended, which may take longer
    shares = run["summary"].get("phases_ratio")
    assert (shares is None and scenario.workload.serves) or sum(shares.values()) == pytest.approx(
        1.0, abs=0.01
    )
    assert "host.cores_busy{device=cpu}" in run["series"]
