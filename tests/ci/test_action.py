"""The steps of action.yml, ci/comment/action.yml and ci/gitlab.yml, run by bash as CI would run
them.

A stand-in for Python copies sessions of known rates where the gate would measure; the command still
runs. One test measures for real.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.snapshot import encode
from tests.experiments.test_gate import sides

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
COMMENT = yaml.safe_load((ROOT / "ci" / "comment" / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
MEASURE = next(step["run"] for step in STEPS if step["name"] == "Measure")
TEMPLATES = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text(encoding="utf-8"))
GITLAB, GITLAB_COMMENT = TEMPLATES[".gpuconsole-gate"], TEMPLATES[".gpuconsole-gate-comment"]
FAKE_GH = """#!/bin/sh
echo "$*" >> "$GH_LOG"
case "$*" in *--paginate*) jq -r "$(expr "$*" : '.*--jq \\(.*\\)')" "$GH_OLD" ;; esac
"""
FAKE_CURL = """#!/bin/sh
{ echo "$*"; cat; tr '\\0' ' ' < "/proc/$PPID/cmdline"; echo; env | tr '\\n' ' '; } >> "$CURL_LOG"
for word; do
    case "$word" in body@*) cp "${word#body@}" "$(dirname "$CURL_LOG")/posted.md" ;; esac
done
"""
STAND_IN = """#!/bin/bash
case " $* " in
*" -m gpuconsole compare "*) [ -z "$BROKEN" ] || exit 70; exec "$REAL_PYTHON" "$@" ;;
*" -m gpuconsole run "*)
    while [ $# -gt 0 ]; do
        case "$1" in --snapshot) file=$2; shift ;; --) shift; break ;; esac
        shift
    done
    case "$PWD" in */base) end=tail ;; *) end=head ;; esac
    next=$(ls "$SESSIONS" | $end -n 1)
    mv "$SESSIONS/$next" "$file"
    "$@" ;;
*) exec "$REAL_PYTHON" "$@" ;;
esac
"""


def test_no_step_pastes_an_input_into_its_shell() -> None:
    """An input or a branch name with `$(...)` would run: values come in as environment
    variables."""
    for step in STEPS + COMMENT["runs"]["steps"]:
        assert ("uses" in step) != (step.get("shell") == "bash"), step["name"]
        assert "${{" not in step.get("run", ""), step["name"]


def test_actions_of_others_are_named_by_their_commit() -> None:
    used = [step["uses"] for step in STEPS + COMMENT["runs"]["steps"] if "uses" in step]
    used += re.findall(
        r"uses: (actions/\S+)", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    )
    assert len(used) >= 6 and all(re.search(r"@[0-9a-f]{40}$", name) for name in used), used


def test_the_job_that_measures_is_given_no_token() -> None:
    assert (
        "github.token" not in json.dumps(ACTION)
        and "secrets." not in json.dumps(ACTION)
        and "token" not in ACTION["inputs"]
    )
    assert "GATE_TOKEN" not in GITLAB["variables"] and "GATE_TOKEN" in GITLAB_COMMENT["variables"]
    assert GITLAB_COMMENT["variables"][
        "GIT_STRATEGY"
    ] == "none" and "$GATE_PYTHON" not in json.dumps(GITLAB_COMMENT)


@pytest.mark.parametrize("action", [ACTION, COMMENT], ids=["gate", "comment"])
def test_every_expression_names_something_that_exists(action: Any) -> None:
    steps = action["runs"]["steps"]
    expressions = re.findall(r"\$\{\{ (.*?) \}\}", json.dumps(action)) + [
        step["if"] for step in steps if "if" in step
    ]
    words = {word for text in expressions for word in re.findall(r"[a-z_]+(?:\.[a-z_-]+)+", text)}
    inputs, ids = action["inputs"], {step.get("id"): step for step in steps}
    for word in words:
        kind, name, *rest = word.split(".")
        assert (
            kind == "github"
            or (kind == "inputs" and name in inputs)
            or (kind == "steps" and f"{rest[-1]}=" in ids[name]["run"])
        ), word
    read = {word.removeprefix("inputs.") for word in words if word.startswith("inputs.")}
    assert read == inputs.keys()
    for step in steps:
        for variable in set(re.findall(r"\$\{?(GATE_\w+)|env\.(GATE_\w+)", step.get("run", ""))):
            assert "".join(variable) in step["env"], (step["name"], variable)


def test_the_template_for_gitlab_measures_as_the_action_does() -> None:
    measures = [
        re.search(r"measure\(\) \{.*?\n\}", text, re.DOTALL)
        for text in (GITLAB["script"][1], MEASURE)
    ]
    assert measures[0] is not None and measures[1] is not None and measures[0][0] == measures[1][0]
    variables = {name for text in GITLAB["script"] for name in re.findall(r"\$\{?(GATE_\w+)", text)}
    assert (
        variables <= GITLAB["variables"].keys() | {"GATE_TOKEN"}
        and "GATE_KEEP" in GITLAB["variables"]
    )


class Runner:
    """A workspace with what GitHub gives to the steps, a cache, artifacts, and a `gh` that only
    writes down what it is asked. Each job begins with a new workspace, and with files of its own
    for GITHUB_PATH and GITHUB_ENV; its steps share them."""

    def __init__(self, folder: Path, sessions: Sequence[MeasuredRun] = (), **inputs: str) -> None:
        self.token = secrets.token_hex(8)  # one for each test: another may run beside this one
        self.folder, self.cache, self.artifacts = (
            folder / "workspace",
            folder / "cache",
            folder / "artifacts",
        )
        self.summary, self.gh_log, self.old, self.sessions = (
            folder / "summary.md",
            folder / "gh.log",
            folder / "old.json",
            folder / "sessions",
        )
        for made in (self.folder, self.cache, self.artifacts, self.sessions, folder / "bin"):
            made.mkdir()
        self.comments()
        for name, text in (
            ("gh", FAKE_GH),
            ("python", STAND_IN if sessions else f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
        ):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        for number, side in enumerate(sessions):
            (self.sessions / f"{number:03}.json").write_bytes(encode(side.session))
        defaults = {name: value.get("default", "") for name, value in ACTION["inputs"].items()}
        self.inputs = {**defaults, "python": str(folder / "bin" / "python"), **inputs}
        self.run_id = 0
        self.path = f"{folder / 'bin'}:{os.environ['PATH']}"

    def comments(self, *comments: tuple[int, str, str]) -> None:
        """What the pull request has: number, author and text of each comment."""
        self.old.write_text(
            json.dumps(
                [
                    {"id": number, "user": {"login": login}, "body": body}
                    for number, login, body in comments
                ]
            )
        )

    def gate(
        self, ref: str, pull_request: str = "", event: str = "pull_request", **environment: str
    ) -> tuple[int, dict[str, dict[str, str]]]:
        """The job that measures: its exit code, and the outputs of its steps."""
        self.run_id += 1
        return self._job(STEPS, self.inputs, ref, pull_request, event, environment)

    def comment(self, pull_request: str) -> tuple[int, dict[str, dict[str, str]]]:
        """The job that comments, on another machine."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        defaults = {name: value.get("default", "") for name, value in COMMENT["inputs"].items()}
        return self._job(
            COMMENT["runs"]["steps"], defaults, "7/merge", pull_request, "pull_request", {}
        )

    def _job(
        self,
        steps: list[Any],
        inputs: dict[str, str],
        ref: str,
        pull_request: str,
        event: str,
        environment: dict[str, str],
    ) -> tuple[int, dict[str, dict[str, str]]]:
        """All steps until one fails."""
        outputs: dict[str, dict[str, str]] = {}
        known = {
            "github.action_path": str(ROOT), "github.run_id": str(self.run_id),
            "github.run_attempt": "1", "github.token": self.token, "github.ref_name": ref,
            "github.event.repository.default_branch": "main",
            "github.event.pull_request.number": pull_request, "github.event_name": event,
        }  # fmt: skip

        def value(name: str) -> str:
            kind, _, rest = name.partition(".")
            if kind == "inputs":
                return filled(inputs[rest])
            if kind == "steps":
                return outputs[rest.split(".")[0]].get(rest.split(".")[-1], "")
            return known[name]

        def filled(text: object) -> str:
            return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: value(found[1]), str(text))

        def holds(condition: str) -> bool:
            sides = [part.split(" == ") for part in condition.split(" && ")]
            return all(
                left == right
                for left, right in (
                    [side.strip("'") if side.startswith("'") else value(side) for side in pair]
                    for pair in sides
                )
            )

        script, output, added, variables = (
            self.folder.parent / name for name in ("step.sh", "output", "added-path", "added-env")
        )
        for file in (added, variables):
            file.write_text("")
        for step in steps:
            if not holds(step.get("if", "'' == ''")):
                continue
            if "uses" in step:
                self._use(step["uses"], {name: filled(text) for name, text in step["with"].items()})
                continue
            script.write_text(step["run"])
            output.write_text("")
            own = {
                **os.environ, "PATH": self.path, "PYTHONPATH": str(ROOT),
                "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(self.summary),
                "GITHUB_PATH": str(added), "GITHUB_ENV": str(variables),
                "GITHUB_REPOSITORY": "team/project", "GH_LOG": str(self.gh_log),
                "GH_OLD": str(self.old), "SESSIONS": str(self.sessions),
                "REAL_PYTHON": sys.executable, **environment,
                **dict(line.split("=", 1) for line in variables.read_text().splitlines()),
                **{name: filled(text) for name, text in step.get("env", {}).items()},
            }  # fmt: skip
            own["PATH"] = ":".join([*added.read_text().splitlines(), own["PATH"]])
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=own,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            outputs[step.get("id", step["name"])] = dict(
                line.split("=", 1) for line in output.read_text().splitlines()
            )
            if done.returncode:
                outputs["failed"] = {"step": step["name"], "said": done.stdout + done.stderr}
                return done.returncode, outputs
        return 0, outputs

    def _use(self, action: str, given: dict[str, str]) -> None:
        """What the actions of GitHub do: save under the key; restore the newest that begins with
        one of the restore-keys; hand on an artifact."""
        here = self.folder / given["path"]
        if action.startswith("actions/upload-artifact@"):
            shutil.copy(here, self.artifacts)
        elif action.startswith("actions/download-artifact@"):
            shutil.copytree(self.artifacts, here)
        elif action.startswith("actions/cache/save@"):
            shutil.copytree(here, self.cache / given["key"])
        elif kept := [
            path for path in self.cache.iterdir() if path.name.startswith(given["restore-keys"])
        ]:
            shutil.copytree(
                max(kept, key=lambda path: path.stat().st_mtime), here, dirs_exist_ok=True
            )


def test_a_baseline_is_kept_on_the_default_branch_and_a_pull_request_is_compared_with_it(
    tmp_path: Path,
) -> None:
    base, new = sides(1000, 1000, runs=2)
    runner = Runner(
        tmp_path, [*base, *new], command="true", runs="2", **{"fail-below": "0.5", "keep": "3"}
    )
    code, outputs = runner.gate("main", event="push")
    assert code == 0 and outputs["decide"]["verdict"] == "no baseline", outputs
    assert "No baseline" in runner.summary.read_text()
    (saved,) = runner.cache.iterdir()
    assert (
        saved.name == f"gpuconsole-{outputs['hardware']['key']}-1-1"
        and len(list(saved.glob("*.json"))) == 2
    )

    code, outputs = runner.gate("7/merge", pull_request="7")
    assert code == 0 and outputs["decide"]["verdict"] == "no regression", outputs
    assert [path.name for path in runner.cache.iterdir()] == [saved.name]
    comment = (runner.folder / ".gpuconsole-gate/comment.md").read_text()
    assert (
        comment.startswith("**No regression: ")
        and len(comment.splitlines()) < 60
        and comment in runner.summary.read_text()
    )
    assert not runner.gh_log.exists(), "the job that measures asks GitHub for nothing"


@pytest.mark.skipif(shutil.which("jq") is None, reason="the `gh` of the test needs jq")
def test_one_comment_is_updated_and_that_of_a_stranger_is_not(tmp_path: Path) -> None:
    runner, quoted = Runner(tmp_path), "**No regression: 1.0**\n<sub>gpuconsole gate</sub>"
    (runner.artifacts / "comment.md").write_text("**Regression: 0.9**\n")
    runner.comments(
        (12, "stranger", quoted),
        (13, "another[bot]", quoted),
        (14, "github-actions[bot]", "**of another action**"),
    )
    code, outputs = runner.comment("7")
    assert code == 0, outputs
    assert (
        runner.gh_log.read_text().splitlines()[-1]
        == "api repos/team/project/issues/7/comments -F body=@comment.md"
    )
    assert (
        runner.folder / "comment.md"
    ).read_text() == "**Regression: 0.9**\n\n<sub>gpuconsole gate</sub>\n"

    runner.comments(
        (12, "stranger", quoted), (34, "github-actions[bot]", quoted), (56, "stranger", quoted)
    )
    assert runner.comment("7")[0] == 0
    assert (
        runner.gh_log.read_text()
        .splitlines()[-1]
        .startswith("api --method PATCH repos/team/project/issues/comments/34 ")
    )


THIEF = r"""
{ env; cat .git/config "$GITHUB_ENV" "$GITHUB_PATH"; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline
ps axeww; } > LOOT 2> /dev/null
mkdir -p BIN
printf '#!/bin/sh\nenv >> LOOT; exit 1\n' | tee BIN/gh > BIN/curl
chmod +x BIN/gh BIN/curl
[ -z "$GITHUB_PATH" ] || echo BIN >> "$GITHUB_PATH"
[ -z "$GITHUB_ENV" ] || echo "BASH_ENV=BIN/env" >> "$GITHUB_ENV"
echo 'env >> LOOT' > BIN/env
"""
"""A measured program that looks for tokens where they have been found, and waits for those of later
steps."""


def thief(folder: Path) -> tuple[str, Path]:
    """The command, and what it has found."""
    loot = folder / "loot"
    (folder / "thief.sh").write_text(
        THIEF.replace("LOOT", str(loot)).replace("BIN", str(folder / "stolen-path"))
    )
    return f"bash {folder / 'thief.sh'}", loot


def test_the_measured_program_finds_no_token_on_github(tmp_path: Path) -> None:
    base, new = sides(1000, 1000, runs=1)
    command, loot = thief(tmp_path)
    runner = Runner(
        tmp_path,
        [*base, *new],
        command=command,
        runs="1",
        **{"base-path": "base", "fail-below": "0.5"},
    )
    (runner.folder / "base").mkdir()
    code, outputs = runner.gate("7/merge", pull_request="7")
    assert code == 0 and outputs["decide"]["verdict"] in ("no regression", "undecided"), outputs
    assert runner.comment("7")[0] == 0 and "issues/7/comments" in runner.gh_log.read_text()
    found = loot.read_bytes()
    assert b"GITHUB_REPOSITORY" in found, "the program did look"
    assert runner.token.encode() not in found


KEYS = {
    "checkout": ("http.https://github.com/.extraheader", "AUTHORIZATION: basic TOKEN"),
    "insteadOf": ("url.https://x-access-token:TOKEN@github.com/.insteadOf", "https://github.com/"),
    "ssh-key": ("core.sshCommand", "ssh -i /tmp/TOKEN"),
    "remote": ("remote.origin.url", "https://x-access-token:TOKEN@github.com/team/project"),
    "helper": ("credential.helper", "store --file=TOKEN"),
    "included": ("includeIf.gitdir:/.path", "/tmp/TOKEN"),
}
OTHER_EVENTS = ("pull_request_target", "issue_comment", "workflow_run")


@pytest.mark.parametrize(
    "way", [*KEYS, *OTHER_EVENTS, "environment", "identity", "submodule", "another owner"]
)
def test_the_action_measures_nothing_beside_a_token(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    runner = Runner(tmp_path, sides(1000, 1000, runs=1)[0], command="touch measured", runs="1")
    if way not in ("environment", "identity", *OTHER_EVENTS):
        subprocess.run(["git", "init", "-q"], cwd=runner.folder, check=True)
    if way in KEYS:
        words = [word.replace("TOKEN", runner.token) for word in KEYS[way]]
        subprocess.run(["git", "config", *words], cwd=runner.folder, check=True)
    if way == "submodule":
        inside = runner.folder / ".git" / "modules" / "data" / "config"
        inside.parent.mkdir(parents=True)
        inside.write_text(f'[remote "origin"]\n\turl = https://x:{runner.token}@github.com/a/b\n')
    if way == "another owner":
        if os.geteuid() != 0:
            pytest.skip("a second user needs root")
        os.chown(runner.folder, 65534, 65534)
        os.chown(runner.folder / ".git", 65534, 65534)
    given = {"environment": "GH_TOKEN", "identity": "ACTIONS_ID_TOKEN_REQUEST_TOKEN"}.get(way)
    code, outputs = runner.gate(
        "7/merge",
        "7",
        way if way in OTHER_EVENTS else "pull_request",
        **({given: runner.token} if given else {}),
    )
    assert (
        code == 2
        and outputs["failed"]["step"] == STEPS[0]["name"]
        and "::error::" in outputs["failed"]["said"]
    )
    assert (
        not (runner.folder / "measured").exists() and runner.token not in outputs["failed"]["said"]
    )


def test_a_comparison_that_fails_itself_is_undecided(tmp_path: Path) -> None:
    base, new = sides(1000, 1000, runs=1)
    given = {"base-path": "base", "fail-below": "0.5"}
    runner = Runner(tmp_path, [*base, *new], command="true", runs="1", **given)
    (runner.folder / "base").mkdir()
    code, outputs = runner.gate("7/merge", "7", BROKEN="1")
    assert code == 0 and outputs["decide"]["verdict"] == "undecided", outputs
    assert "Undecided" in runner.summary.read_text()


def test_both_checkouts_are_measured_in_turn_and_a_slower_one_fails(tmp_path: Path) -> None:
    base, new = sides(1000, 700, runs=2)
    where = tmp_path / "where.sh"
    where.write_text(f'echo "$PWD" >> {tmp_path / "measured"}\n')
    options = {"base-path": "base", "fail-below": "0.9"}
    runner = Runner(tmp_path, [*new, *base], command=f"sh {where}", runs="2", **options)
    (runner.folder / "base").mkdir()
    code, outputs = runner.gate("7/merge", pull_request="7")
    assert (code, outputs["failed"]["step"], outputs["decide"]["verdict"]) == (
        1,
        "Verdict",
        "regression",
    ), outputs
    old, here = str(runner.folder / "base"), str(runner.folder)
    order = (tmp_path / "measured").read_text().split()
    assert order in ([old, here, here, old], [here, old, old, here]), "at random, one first of each"
    comment = (runner.folder / ".gpuconsole-gate/comment.md").read_text()
    assert (
        comment.startswith("**Regression: 0.")
        and "measured in turn" in comment
        and list(runner.cache.iterdir()) == []
    )


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slower_checkout_fails_against_a_checkout_of_the_base_measured_in_turn(
    tmp_path: Path,
) -> None:
    runner = Runner(
        tmp_path,
        command="python train.py 5",
        runs="3",
        **{"base-path": "base", "fail-below": "0.9"},
    )
    for folder, wait_ms in ((runner.folder, 40), (runner.folder / "base", 20)):
        folder.mkdir(exist_ok=True)
        source = (
            (ROOT / "benchmarks/gate/job.py")
            .read_text()
            .replace("float(sys.argv[2])", str(wait_ms))
            .replace("argv[3:]", "argv[2:]")
        )
        (folder / "train.py").write_text(source)
    code, outputs = runner.gate("7/merge")
    assert (code, outputs["failed"]["step"], outputs["decide"]["verdict"]) == (
        1,
        "Verdict",
        "regression",
    ), outputs
    comment = (runner.folder / ".gpuconsole-gate/comment.md").read_text()
    assert (
        comment.startswith("**Regression: 0.")
        and "measured in turn" in comment
        and list(runner.cache.iterdir()) == []
    )


def gitlab(template: Any, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script of a template of GitLab."""
    environment = {
        **os.environ,
        **template["variables"],
        "PYTHONPATH": str(ROOT),
        "CI_DEFAULT_BRANCH": "main",
        **variables,
    }
    command = ["bash", "-eo", "pipefail", "-c", "\n".join(template["script"])]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.rates
@pytest.mark.timeout(600)
def test_the_script_of_the_gitlab_template(tmp_path: Path) -> None:
    variables = {
        "GATE_PYTHON": sys.executable,
        "GATE_SCENARIO": "tiny-batch",
        "GATE_DURATION": "8",
        "GATE_RUNS": "1",
    }
    first = gitlab(GITLAB, tmp_path, **variables, CI_COMMIT_BRANCH="main")
    assert first.returncode == 0 and "No baseline" in first.stdout, first.stderr
    (kept,) = (tmp_path / ".gpuconsole-gate/base").glob("*/*.json")
    # one run and one run cannot tell a loss of 3 %
    second = gitlab(
        GITLAB,
        tmp_path,
        **variables,
        CI_COMMIT_BRANCH="feature",
        GATE_FAIL_BELOW="0.97",
        GATE_UNDECIDED="fail",
    )
    assert second.returncode in (1, 3) and re.search(
        r"^\*\*(Undecided|Regression): ", second.stdout, re.MULTILINE
    ), second.stderr
    assert list((tmp_path / ".gpuconsole-gate/base").glob("*/*.json")) == [kept]


def test_the_measured_program_finds_no_token_on_gitlab(tmp_path: Path) -> None:
    runner = Runner(tmp_path, sides(1000, 1000, runs=1)[0])
    command, loot = thief(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=runner.folder, check=True)
    subprocess.run(
        [
            "git",
            "remote",
            "add",
            "origin",
            f"https://gitlab-ci-token:{runner.token}@gitlab.example/team/project.git",
        ],
        cwd=runner.folder,
        check=True,
    )
    # a runner sets the variables by lines of its script, so that they are not in the environment
    # with which its shell began
    exports = "\n".join(
        f"export {name}='{value}'"
        for name, value in (
            ("CI_JOB_TOKEN", runner.token),
            ("CI_REGISTRY_PASSWORD", runner.token),
            (
                "CI_REPOSITORY_URL",
                f"https://gitlab-ci-token:{runner.token}@gitlab.example/team/project.git",
            ),
        )
    )
    job = {**GITLAB, "script": [exports, *GITLAB["script"]]}
    given = {
        "GATE_PYTHON": runner.inputs["python"],
        "SESSIONS": str(runner.sessions),
        "REAL_PYTHON": sys.executable,
        "GATE_RUNS": "1",
    }
    (tmp_path / "script.sh").write_text("\n".join(job["script"]))
    environment = {
        **os.environ,
        **GITLAB["variables"],
        "PYTHONPATH": str(ROOT),
        "CI_DEFAULT_BRANCH": "main",
        **given,
        "GATE_COMMAND": command,
    }
    done = subprocess.run(
        ["bash", "-eo", "pipefail", str(tmp_path / "script.sh")],
        cwd=runner.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = loot.read_bytes()
    assert b"GATE_COMMAND" in found, "the program did look"
    assert runner.token.encode() not in found

    refused = gitlab(
        GITLAB, tmp_path, **given, GATE_COMMAND="touch measured", GATE_TOKEN=runner.token
    )
    assert (
        refused.returncode == 2
        and "environment scope" in refused.stdout
        and not (tmp_path / "measured").exists()
    )


def test_the_token_of_gitlab_is_in_no_command_line(tmp_path: Path) -> None:
    (tmp_path / ".gpuconsole-gate").mkdir()
    (tmp_path / ".gpuconsole-gate" / "comment.md").write_text("**No regression**")
    token = comment_on_gitlab(tmp_path)
    words, header, caller, environment = (tmp_path / "curl.log").read_text().splitlines()
    assert words.endswith("merge_requests/7/notes") and token not in words and token not in caller
    assert header == f'header = "PRIVATE-TOKEN: {token}"' and token not in environment


@pytest.mark.parametrize("planted", ["file", "folder"])
def test_a_link_in_place_of_the_report_posts_nothing(tmp_path: Path, planted: str) -> None:
    """The attack: the merge request commits a link to /proc/self/environ, the runner hands it on as
    an artifact, and the job with the token posted its own environment."""
    folder = tmp_path / ".gpuconsole-gate"
    if planted == "file":
        folder.mkdir()
        (folder / "comment.md").symlink_to("/proc/self/environ")
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "comment.md").write_text("secret")
        folder.symlink_to(tmp_path / "elsewhere")
    comment_on_gitlab(tmp_path)
    assert not (tmp_path / "curl.log").exists()


@pytest.mark.parametrize(
    "line", ["/approve", "  /merge", "\r/close", "~~~~~~\n/label x", "\t/lock"]
)
def test_the_report_runs_no_quick_action_of_gitlab(tmp_path: Path, line: str) -> None:
    (tmp_path / ".gpuconsole-gate").mkdir()
    text = f"**No regression**\n{line}\n" + "x" * 90_000
    (tmp_path / ".gpuconsole-gate" / "comment.md").write_text(text)
    comment_on_gitlab(tmp_path)
    posted = (tmp_path / "posted.md").read_text()
    fence, *inside, last = posted.splitlines()
    assert fence == last and set(fence) == {"~"} and len(posted) < 61_000
    assert all(fence not in each and not each.lstrip().startswith("/") for each in inside)
    assert "**No regression**" in inside and "\r" not in posted


def test_the_measuring_job_refuses_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / ".gpuconsole-gate").symlink_to(tmp_path / "home")
    refused = gitlab(
        GITLAB, tmp_path, GATE_COMMAND="touch measured", GATE_PYTHON=sys.executable, GATE_RUNS="1"
    )
    assert refused.returncode == 2 and not (tmp_path / "measured").exists()
    assert list((tmp_path / "home").iterdir()) == []


def comment_on_gitlab(tmp_path: Path) -> str:
    """Run the script of the job that comments; the token that it had."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "curl").write_text(FAKE_CURL)
    (tmp_path / "bin" / "curl").chmod(0o755)
    token = secrets.token_hex(8)
    given = {
        "GATE_TOKEN": token,
        "CI_MERGE_REQUEST_IID": "7",
        "CI_API_V4_URL": "https://gitlab.example/api/v4",
        "CI_PROJECT_ID": "1",
    }
    (tmp_path / "script.sh").write_text("\n".join(GITLAB_COMMENT["script"]))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, **given, "PATH": path, "CURL_LOG": str(tmp_path / "curl.log")}
    subprocess.run(
        ["bash", "-eo", "pipefail", "script.sh"],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=True,
    )
    return token
