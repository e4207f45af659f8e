"""Every shipped scenario at CPU scale, by the real command line: it runs, and what it teaches exists.

Whether the taught finding comes out on top hangs on timing: `python -m benchmarks.scenarios` measures that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

import jsonschema
import pytest

from gpuconsole.model.knobs import check_knobs
from gpuconsole.model.scenario import Scenario
from gpuconsole.runtime.catalog import read_scenario, shipped_folder
from tests.conftest import Cli

SCENARIOS = {scenario.name: scenario for scenario in map(read_scenario, sorted(shipped_folder().glob("*.toml")))}
STEPS_S, REQUESTS_S = "1", "4"
"""After the first step, or after a server's warm-up: enough for some steps, or requests, of each."""


@cache
def printed(*words: str) -> Any:
    """What `gpuconsole WORDS` prints as JSON."""
    done = subprocess.run([sys.executable, "-m", "gpuconsole", *words], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_all_are_listed() -> None:
    assert {one["name"] for one in printed("scenarios", "--json")} == SCENARIOS.keys()


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_the_rule_and_the_fix_that_it_teaches_exist(scenario: Scenario) -> None:
    teaches = scenario.teaches
    assert teaches.see
    if teaches.rule:  # the one that is well set has none
        assert teaches.rule in {rule["id"] for rule in printed("rules", "--json")}
    fix = check_knobs(teaches.fix, scenario.workload.knobs, scenario.workload.name)
    defaults = scenario.knobs_for("cpu")
    assert not [name for name, value in fix.items() if defaults.get(name) == value]


# A first step may wait for the C++ compiler, several processes for one another.
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_it_runs_headless_to_a_valid_snapshot(cli: Cli, scenario: Scenario) -> None:
    knobs = scenario.knobs_for("cpu")
    quick = {"weights": "random"} if knobs.get("weights") == "trained" else {}  # the others take a minute of training
    sets = [word for name, value in quick.items() for word in ("--set", f"{name}={value}")]
    duration = REQUESTS_S if scenario.workload.serves else STEPS_S
    done = cli("run", scenario.name, *sets, "--device", "cpu", "--json", "--duration", duration, timeout=200)
    assert done.returncode == 0, done.stderr
    snapshot = json.loads(done.stdout)
    jsonschema.validate(snapshot, printed("snapshot-schema"))
    (run,) = snapshot["runs"]
    assert (run["state"], run["device"], run["scenario"]) == ("finished", "cpu", scenario.name), run.get("error")
    assert run["knobs"] == {**knobs, **quick}
    assert run["summary"]["steps"] > 0
    assert sum(run["summary"]["phases_ratio"].values()) == pytest.approx(1.0, abs=0.01)
    assert "host.cores_busy{device=cpu}" in run["series"]
