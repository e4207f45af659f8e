"""The steps of action.yml and of ci/gitlab.yml, run by bash as CI would run them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
GITLAB = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8"))[".gpuconsole-gate"]
JOB = f"python {ROOT / 'benchmarks/gate/job.py'} 4 10"
FAKE_GH = """#!/bin/sh
echo "$*" >> "$GH_LOG"
case "$*" in *--paginate*) cat "$GH_OLD" ;; esac
"""


def test_no_step_pastes_an_input_into_its_shell() -> None:
    """An input or a branch name with `$(...)` would run: values come in as environment variables."""
    for step in STEPS:
        assert ("uses" in step) != (step.get("shell") == "bash"), step["name"]
        assert "${{" not in step.get("run", ""), step["name"]


def test_every_expression_names_something_that_exists() -> None:
    expressions = re.findall(r"\$\{\{ (.*?) \}\}", json.dumps(ACTION)) + [step["if"] for step in STEPS if "if" in step]
    words = {word for text in expressions for word in re.findall(r"[a-z_]+(?:\.[a-z_-]+)+", text)}
    inputs, ids = ACTION["inputs"], {step.get("id"): step for step in STEPS}
    for word in words:
        kind, name, *rest = word.split(".")
        assert kind == "github" or (kind == "inputs" and name in inputs) or (kind == "steps" and f"{rest[-1]}=" in ids[name]["run"]), word
    read = {word.removeprefix("inputs.") for word in words if word.startswith("inputs.")}
    assert read == inputs.keys()
    for step in STEPS:
        for variable in set(re.findall(r"\$\{?(GATE_\w+)", step.get("run", ""))):
            assert variable in step["env"], (step["name"], variable)


def test_the_template_for_gitlab_measures_as_the_action_does() -> None:
    measures = [re.search(r"measure\(\) \{.*?\n\}", text, re.DOTALL) for text in (GITLAB["script"][0], STEPS[1]["run"])]
    assert measures[0] is not None and measures[1] is not None and measures[0][0] == measures[1][0]
    variables = {name for text in GITLAB["script"] for name in re.findall(r"\$\{?(GATE_\w+)", text)}
    assert variables <= GITLAB["variables"].keys() | {"GATE_KEEP"} and "GATE_KEEP" in GITLAB["variables"]


class Runner:
    """A workspace with what GitHub gives to the steps, a cache, and a `gh` that only writes down what it is asked."""

    def __init__(self, folder: Path, **inputs: str) -> None:
        self.folder, self.cache = folder / "workspace", folder / "cache"
        self.summary, self.gh_log, self.old = folder / "summary.md", folder / "gh.log", folder / "old"
        for made in (self.folder, self.cache, folder / "bin"):
            made.mkdir()
        self.old.touch()
        (folder / "bin" / "gh").write_text(FAKE_GH)
        (folder / "bin" / "gh").chmod(0o755)
        (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / "bin" / "python").chmod(0o755)
        defaults = {name: value.get("default", "") for name, value in ACTION["inputs"].items()}
        self.inputs = {**defaults, "python": sys.executable, **inputs}
        self.run_id = 0
        self.path = f"{folder / 'bin'}:{os.environ['PATH']}"

    def job(self, ref: str, pull_request: str = "") -> tuple[int, dict[str, dict[str, str]]]:
        """All steps until one fails: its exit code, and the outputs of the steps."""
        self.run_id += 1
        outputs: dict[str, dict[str, str]] = {}
        known = {
            "github.action_path": str(ROOT), "github.run_id": str(self.run_id), "github.run_attempt": "1", "github.token": "t",
            "github.ref_name": ref, "github.event.repository.default_branch": "main", "github.event.pull_request.number": pull_request,
        }  # fmt: skip

        def value(name: str) -> str:
            kind, _, rest = name.partition(".")
            if kind == "inputs":
                return filled(self.inputs[rest])
            if kind == "steps":
                return outputs[rest.split(".")[0]].get(rest.split(".")[-1], "")
            return known[name]

        def filled(text: object) -> str:
            return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: value(found[1]), str(text))

        def holds(condition: str) -> bool:
            sides = [part.split(" == ") for part in condition.split(" && ")]
            return all(
                left == right
                for left, right in ([side.strip("'") if side.startswith("'") else value(side) for side in pair] for pair in sides)
            )

        for step in STEPS:
            if not holds(step.get("if", "'' == ''")):
                continue
            if "uses" in step:
                self._cache(step["uses"], {name: filled(text) for name, text in step["with"].items()})
                continue
            script, output = self.folder.parent / "step.sh", self.folder.parent / "output"
            script.write_text(step["run"])
            output.write_text("")
            environment = {
                **os.environ, "PATH": self.path, "PYTHONPATH": str(ROOT), "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.summary),
                "GITHUB_REPOSITORY": "team/project", "GH_LOG": str(self.gh_log), "GH_OLD": str(self.old),
                **{name: filled(text) for name, text in step.get("env", {}).items()},
            }  # fmt: skip
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
            done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=400, check=False)
            outputs[step.get("id", step["name"])] = dict(line.split("=", 1) for line in output.read_text().splitlines())
            if done.returncode:
                outputs["failed"] = {"step": step["name"], "stderr": done.stderr}
                return done.returncode, outputs
        return 0, outputs

    def _cache(self, action: str, given: dict[str, str]) -> None:
        """What actions/cache does: save under the key; restore the newest that begins with one of the restore-keys."""
        here = self.folder / given["path"]
        if action.startswith("actions/cache/save@"):
            shutil.copytree(here, self.cache / given["key"])
        elif kept := [path for path in self.cache.iterdir() if path.name.startswith(given["restore-keys"])]:
            shutil.copytree(max(kept, key=lambda path: path.stat().st_mtime), here, dirs_exist_ok=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_baseline_is_kept_on_the_default_branch_and_a_pull_request_is_compared_with_it(tmp_path: Path) -> None:
    runner = Runner(tmp_path, command=JOB, runs="2", **{"fail-below": "0.5", "keep": "3"})
    code, outputs = runner.job("main")
    assert code == 0 and outputs["decide"]["verdict"] == "no baseline", outputs
    assert "No baseline" in runner.summary.read_text() and not runner.gh_log.exists()
    (saved,) = runner.cache.iterdir()
    assert saved.name == f"gpuconsole-{outputs['hardware']['key']}-1-1" and len(list(saved.glob("*.json"))) == 2

    code, outputs = runner.job("7/merge", pull_request="7")
    assert code == 0 and outputs["decide"]["verdict"] == "no regression", outputs
    assert [path.name for path in runner.cache.iterdir()] == [saved.name]
    comment = (runner.folder / ".gpuconsole-gate/comment.md").read_text()
    assert comment.startswith("**No regression: ") and len(comment.splitlines()) < 60 and comment in runner.summary.read_text()
    asked = runner.gh_log.read_text().splitlines()
    assert asked[1] == "api repos/team/project/issues/7/comments -F body=@.gpuconsole-gate/comment.md"

    runner.old.write_text("12\n34\n")  # a comment of an earlier run of the gate
    runner.inputs |= {"command": f"{JOB} 0.01", "runs": "1"}  # another command has another baseline
    code, outputs = runner.job("7/merge", pull_request="7")
    assert code == 0 and outputs["decide"]["verdict"] == "no baseline", outputs
    assert runner.gh_log.read_text().splitlines()[-1].startswith("api --method PATCH repos/team/project/issues/comments/34 ")


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slower_checkout_fails_against_a_checkout_of_the_base_measured_in_turn(tmp_path: Path) -> None:
    runner = Runner(tmp_path, command="python train.py 5", runs="3", **{"base-path": "base", "fail-below": "0.9"})
    for folder, wait_ms in ((runner.folder, 40), (runner.folder / "base", 20)):
        folder.mkdir(exist_ok=True)
        source = (ROOT / "benchmarks/gate/job.py").read_text().replace("float(sys.argv[2])", str(wait_ms)).replace("argv[3:]", "argv[2:]")
        (folder / "train.py").write_text(source)
    code, outputs = runner.job("7/merge")
    assert (code, outputs["failed"]["step"], outputs["decide"]["verdict"]) == (1, "Verdict", "regression"), outputs
    comment = (runner.folder / ".gpuconsole-gate/comment.md").read_text()
    assert comment.startswith("**Regression: 0.") and "measured in turn" in comment and list(runner.cache.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_of_the_gitlab_template(tmp_path: Path) -> None:
    variables = {
        **GITLAB["variables"], "GATE_PYTHON": sys.executable, "GATE_SCENARIO": "tiny-batch", "GATE_DURATION": "4", "GATE_RUNS": "1",
        "CI_DEFAULT_BRANCH": "main", "CI_MERGE_REQUEST_IID": "", "PYTHONPATH": str(ROOT),
    }  # fmt: skip

    def job(branch: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables, "CI_COMMIT_BRANCH": branch, **more}
        command = ["bash", "-eo", "pipefail", "-c", "\n".join(GITLAB["script"])]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False)

    first = job("main")
    assert first.returncode == 0 and "No baseline" in first.stdout, first.stderr
    (kept,) = (tmp_path / ".gpuconsole-gate/base").glob("*/*.json")
    second = job("feature", GATE_FAIL_BELOW="0.97", GATE_UNDECIDED="fail")  # one run and one run cannot tell a loss of 3 %
    assert second.returncode in (1, 3) and re.search(r"^\*\*(Undecided|Regression): ", second.stdout, re.MULTILINE), second.stderr
    assert list((tmp_path / ".gpuconsole-gate/base").glob("*/*.json")) == [kept]
