"""Every command as a user calls it: `--json` with `--quiet`, exit codes, values that do not exist,
options that would have no effect.

Commands that measure have their `--json` in test_serving, test_ranks, test_tune, test_quality and
test_calibration; Ctrl-C is in test_exits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuconsole.cli.exits import CODES
from gpuconsole.cli.main import main
from gpuconsole.cli.parser import COMMANDS, WIDEST
from gpuconsole.host.installation import install_command
from gpuconsole.model.snapshot import encode
from gpuconsole.wire.recording import RecordingWriter
from tests.conftest import Cli
from tests.experiments.test_choose import tuned
from tests.report.small_session import small_session


class Case(NamedTuple):
    """`prints`: the words after the command, `--json` left out, that print figures; None where the
    command prints none, or measures. `code`: its exit code. `unknown`: words with a value that does
    not exist, and what the line names. `refused`: the same for an option without effect."""

    prints: str | None
    unknown: tuple[str, str]
    refused: tuple[str, str]
    code: int = 0


CASES = {
    "baselines": Case(
        "",
        ("--remove nothing", "nothing"),
        ("--remove x --json", "--json does not go with --remove"),
    ),
    "calibrate": Case(
        "--show",
        ("--device gpu:9", "no device 'gpu:9'"),
        ("--show --budget 1", "--budget does not go with --show"),
        1,
    ),
    "compare": Case(
        "s.json#1 s.json#2",
        ("s.json#1 s.json#7", "the runs are 1, 2"),
        ("s.json s.json --all --json", "--all is for the table"),
    ),
    "completion": Case(
        None, ("tcsh", "'bash', 'zsh', 'fish'"), ("bash --json", "no option '--json'")
    ),
    "devices": Case(
        "",
        ("--timeout never", "not a number of seconds"),
        ("--long --json", "--long does not go with --json"),
    ),
    "diagnose": Case(
        "s.json", ("gone.json", "cannot be read"), ("s.json --headless", "no option '--headless'")
    ),
    "doctor": Case(
        "", ("--color green", "'auto', 'always', 'never'"), ("--device cpu", "no option '--device'")
    ),
    "explain": Case(
        None, ("gone.jsonl", "cannot be read"), ("s.jsonl --headless", "no option '--headless'")
    ),
    "exporter": Case(
        None, ("--listen 9835", "must be HOST:PORT"), ("--price 3", "no option '--price'")
    ),
    "mcp": Case(
        None,
        ("nope", "no scenario 'nope'"),
        ("train-gpt --probe", "--probe goes with a command of your own"),
    ),
    "models": Case(
        "train-gpt",
        ("train-gpt --device-name H9000", "known: "),
        ("train-gpt --device cpu", "no option '--device'"),
    ),
    "quality": Case(
        None, ("--depths 2", "allowed are 0 to 1"), ("--slo ttft=1", "no option '--slo'")
    ),
    "replay": Case(
        "r.jsonl",
        ("r.jsonl --speed fast", "not a number"),
        ("r.jsonl --headless --speed 2", "--speed goes with the screen"),
    ),
    "report": Case(None, ("gone.json", "cannot be read"), ("s.json --json", "no option '--json'")),
    "rules": Case("", ("input.slow", "did you mean"), ("--snapshot x", "no option '--snapshot'")),
    "run": Case(
        None,
        ("train-gpt --set precision=bf61", "fp32|tf32|bf16"),
        ("train-gpt --apply-top", "--apply-top and --try go with --headless"),
    ),
    "scenarios": Case(
        "",
        ("nope", "no scenario 'nope'"),
        ("--check", "--check is gone: gpuconsole scenarios NAME"),
    ),
    "skill": Case(
        None, ("--color green", "'auto', 'always', 'never'"), ("--json", "no option '--json'")
    ),
    "snapshot_schema": Case(
        "", ("--color x", "'auto', 'always', 'never'"), ("x", "unexpected argument 'x'")
    ),
    "sweep": Case(
        None,
        ("train-gpt --vary precision=a,b", "fp32|tf32|bf16"),
        ("train-gpt --vary nproc=1,2 --grid", "--grid does not go with"),
    ),
    "tune": Case(
        "--verify c.json",
        ("train-gpt --only batchsize", "did you mean 'batch_size'?"),
        ("train-gpt --patch p", "--patch goes with a command"),
    ),
    "watch": Case(
        None,
        ("ftp://127.0.0.1", "http"),
        ("http://127.0.0.1:1 --headless --eco", "--eco goes with the screen"),
    ),
}
NOT_ASKED = ("snapshot_schema",)
"""Prints JSON without being asked."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a session, a recording and the session of a `tune`."""
    (tmp_path / "s.json").write_bytes(encode(small_session()))
    RecordingWriter(tmp_path / "r.jsonl").close()
    (tmp_path / "c.json").write_bytes(encode(tuned()))
    return tmp_path


def test_every_command_has_a_case() -> None:
    assert CASES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.prints is not None])
def test_json_is_one_document_and_nothing_else(cli_here: Cli, folder: Path, name: str) -> None:
    case = CASES[name]
    assert case.prints is not None
    words = [
        name.replace("_", "-"),
        *case.prints.split(),
        "--quiet",
        *(["--json"] if name not in NOT_ASKED else []),
    ]
    done = cli_here(*words)
    assert done.returncode == case.code, done.stderr
    if case.code:
        assert done.stdout == "" and done.stderr.count("\n") == 1, (
            "a problem stays on stderr, also with --quiet"
        )
    else:
        assert json.loads(done.stdout) is not None
        assert done.stderr == ""


@pytest.mark.matrix
@pytest.mark.slow
def test_a_sweep_prints_one_document_too(cli: Cli) -> None:
    words = (
        "--vary",
        "matrix_size=64,65",
        "--repeat",
        "2",
        "--set",
        "num_threads=1",
        "--device",
        "cpu",
    )
    done = cli("sweep", "gemm-peak", *words, "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert [point["knobs"] for point in json.loads(done.stdout)["points"]] == [
        {"matrix_size": 64},
        {"matrix_size": 65},
    ]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.prints is None])
def test_the_other_commands_end_with_2_on_bad_usage(cli_here: Cli, folder: Path, name: str) -> None:
    words, says = CASES[name].refused
    done = cli_here(name.replace("_", "-"), *words.split())
    assert (
        (done.returncode, done.stdout) == (2, "")
        and says in done.stderr
        and done.stderr.count("\n") == 1
    )


def refusal(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    try:
        code: object = main(words.split())
    except SystemExit as ended:
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["unknown", "refused"])
def test_bad_usage_is_one_line_that_names_what_is_allowed(
    folder: Path,
    name: str,
    kind: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    words, says = getattr(CASES[name], kind)
    code, out, error = refusal(f"{name.replace('_', '-')} {words}", capsys)
    assert (code, out) == (2, "")
    assert says in error and error.count("\n") == 1 and error.startswith("gpuconsole")
    assert sorted(path.name for path in folder.iterdir()) == ["c.json", "r.jsonl", "s.json"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--interval 2 rules", "--interval has no effect on rules"),
        ("--record r.jsonl doctor", "--record has no effect on doctor"),
        ("--eco tune train-gpt", "--eco has no effect on tune"),
        ("--price 3 quality", "--price has no effect on quality"),
        ("--eco run train-gpt --headless", "--eco goes with the screen, not with --headless"),
        ("run train-gpt --headless --profile-dir x", "--profile-dir needs --profile"),
        (
            "run train-gpt --headless --try batch_size=4 --apply-top",
            "--apply-top does not go with --try",
        ),
        ("run train-gpt --headless --require-valid", "--require-valid is for serving scenarios"),
        ("run serve-chat --headless --profile", "--profile is for training scenarios"),
        ("run serve-chat --require-valid", "--require-valid goes with --headless"),
        ("run train-gpt --headless --patch p", "--patch goes with a command of your own"),
        (
            "run train-gpt --headless --allow-numerics",
            "--allow-numerics goes with a command of your own",
        ),
        (
            "run train-gpt --headless --allow-loader",
            "--allow-loader goes with a command of your own",
        ),
        ("run train-gpt --headless --memory", "--memory goes with a command of your own"),
        (
            "run --headless --memory --restart-knob batch_size={--b} --try batch_size=2 -- true",
            "--memory does not go with --restart-knob",
        ),
        (
            "run train-gpt --headless --store-command",
            "--store-command goes with a command of your own",
        ),
        (
            "run train-gpt --headless --restart-knob batch_size={--b}",
            "--restart-knob goes with a command of your own",
        ),
        ("run train-gpt --headless --rdzv-id x", "--rdzv-id needs --nnodes 2 or more"),
        (
            "run serve-chat --headless --nnodes 2",
            "--nnodes is for scenarios that run in several processes",
        ),
        ("run serve-chat --headless --model m", "--model needs --url, or --set server=vllm"),
        ("run serve-chat --headless --vllm-args=-x", "--vllm-args needs --set server=vllm"),
        (
            "run serve-chat --headless --url http://h:1 --vllm-args=-x",
            "--vllm-args is for a vLLM that gpuconsole starts",
        ),
        ("run serve-chat --headless --wait 3", "--wait needs --url"),
        ("run --fail-on-regression -- true", "--fail-on-regression goes with --headless"),
        ("run --headless --eco -- true", "--eco goes with the screen"),
        ("run --headless --profile-dir x -- true", "--profile-dir goes with the screen"),
        ("run --headless --nnodes 1 -- true", "--nnodes does not go with a command after --"),
        (
            "run --headless --restart-knob batch_size={--b} --try batch_size=2 --record x -- true",
            "--record does not go with --restart-knob",
        ),
        (
            "sweep --restart-knob batch_size={--b} --vary batch_size=2,3 --stop-settled -- true",
            "--stop-settled does not go with --restart-knob",
        ),
        (
            "sweep train-gpt --vary batch_size=1,2 --duration 5",
            "--duration goes with --vary nproc= alone",
        ),
        (
            "sweep train-gpt --vary batch_size=1,2 --vary batch_size=4,8",
            "batch_size is varied already",
        ),
        ("sweep train-gpt --vary nproc=1,2 --repeat 4", "--repeat does not go with --vary nproc="),
        ("sweep train-gpt --vary nproc=1,2 --url http://h:1", "--url: only for serving scenarios"),
        (
            "sweep train-gpt --vary batch_size=1,2 --summary x",
            "--summary goes with a command of your own",
        ),
        (
            "tune train-gpt --certificate d.json",
            "--certificate is gone: gpuconsole tune --snapshot FILE writes what was proven",
        ),
        ("tune train-gpt --headless", "--headless is gone: tune never opens the screen"),
        (
            "sweep train-gpt --vary batch_size=1,2 --headless",
            "--headless is gone: sweep never opens the screen",
        ),
        ("tune --only no_such -- true", "--only no_such: no setting of the job"),
        ("baselines --key s.json --json", "--json does not go with --key"),
        ("baselines --key s.json --remove x", "--key does not go with --remove"),
        (
            "compare s.json#1 s.json#2 --undecided-fails",
            "--undecided-fails needs --fail-below RATIO",
        ),
        ("compare s.json#1 s.json#2 --fail-below 0.9 --all", "--all does not go with --fail-below"),
        (
            "compare s.json#1 s.json#2 --fail-below 0.9 --html p",
            "--html does not go with --fail-below",
        ),
        ("compare s.json#1 s.json#2 --fail-below 0.9 --json --markdown", "--json prints on stdout"),
        ("mcp train-gpt --patch p", "--patch goes with a command of your own"),
        ("mcp train-gpt --output o", "--output goes with a command of your own"),
        ("mcp train-gpt --memory", "--memory goes with a command of your own"),
        ("mcp train-gpt --allow-numerics", "--allow-numerics goes with a command of your own"),
        ("mcp --set batch_size=2 -- true", "--set does not go with a command after --"),
        ("mcp --connect -- true", "--connect goes without a command"),
        ("mcp --connect --record r", "--connect goes without --record"),
        ("run train-gpt --headless --control", "--control goes with the screen"),
        ("verify c.json --measure", "verify is gone: gpuconsole tune --verify FILE"),
        ("explain verify --tiem 3", "there is no option '--tiem'"),
        ("doctor --restart", "there is no option '--restart'"),
        ("tune --verify c.json train-gpt", "scenario does not go with --verify"),
        ("tune --verify c.json --budget 30", "--budget does not go with --verify"),
        ("tune --verify c.json --interval 2", "--interval goes with --measure"),
        ("tune --verify c.json --url http://h:1", "--url goes with --measure"),
        ("tune --verify c.json --nnodes 2", "--nnodes goes with --measure"),
        ("tune train-gpt --measure", "--measure goes with --verify FILE"),
    ],
)
def test_an_option_without_effect_is_refused(
    words: str,
    says: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    code, out, error = refusal(words, capsys)
    assert (code, out) == (2, "") and says in error and error.count("\n") == 1


@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_fits_and_has_an_example(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in ("--help", *(f"{name.replace('_', '-')} --help" for name in COMMANDS)):
        code, out, _ = refusal(words, capsys)
        assert code == 0 and "examples:\n  gpuconsole" in out
        words_alone = re.compile(r"\s*\S+( \\)?")  # a path is not broken
        assert [
            line
            for line in out.splitlines()
            if len(line) > min(int(columns), WIDEST) and not words_alone.fullmatch(line)
        ] == []


def test_the_help_groups_the_commands_with_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = refusal("--help", capsys)[1]
    titles = ["work:", "look up:", "machine:", "files:"]
    assert [line for line in out.splitlines() if line in titles] == titles
    listed = re.findall(r"^  ([a-z][a-z-]+) {2,}\S.*$", out, re.MULTILINE)
    assert {name.replace("_", "-") for name in COMMANDS} == set(listed)
    assert all(
        re.search(rf"^  {code} +{re.escape(meaning)}$", out, re.MULTILINE)
        for code, meaning in CODES.items()
    )


def test_settings_come_from_variable_before_file(cli: Cli, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "gpuconsole").mkdir()
    file = tmp_path / "gpuconsole" / "config.toml"
    file.write_text("price = 3\ncolor = 'always'\ninterval = 0.5\n")
    own = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "GPUCONSOLE_PRICE": "4"}
    done = cli("doctor", "--json", env=own)
    rows = {row["name"]: row["text"] for row in json.loads(done.stdout)["settings"]}
    assert (rows["price"], rows["interval"], rows["eco"]) == (
        "4.0  (GPUCONSOLE_PRICE)",
        f"0.5  ({file}, line 3)",
        "false  (built-in)",
    )
    assert "\x1b[" in cli("tune", "--verify", "c.json", env=own).stdout, "always, in a pipe too"


def test_a_mistake_in_the_file_is_one_line_before_anything_starts(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "gpuconsole").mkdir()
    (tmp_path / "gpuconsole" / "config.toml").write_text("\ninterval = 'soon'\n")
    own = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = cli("run", "train-gpt", "--headless", env=own)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        f"gpuconsole: {tmp_path}/gpuconsole/config.toml, line 2: interval: 'soon' is not a"
        " number of seconds\n"
    )


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (f"price = 1{'0' * 400}", "is not a price per hour"),
        ("token_file = '~nosuchuser/token'", "there is no such user"),
        ('baselines = "a\\u0000b"', "must be a path"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_a_value_that_python_cannot_take_is_one_line(
    cli: Cli, tmp_path: Path, setting: str, says: str
) -> None:
    (tmp_path / "gpuconsole").mkdir()
    (tmp_path / "gpuconsole" / "config.toml").write_text(f"{setting}\n")
    done = cli("baselines", env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (
        2,
        "",
        1,
    ) and says in done.stderr


def test_a_service_whose_home_is_dev_null_has_no_settings(cli: Cli) -> None:
    done = cli("rules", env={**os.environ, "XDG_CONFIG_HOME": "/dev/null"})
    assert (done.returncode, done.stderr) == (0, "")


BASH = """source completion; compopt() { :; }
complete_words() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMPREPLY=()
    _gpuconsole_without_blank gpuconsole; echo "${COMPREPLY[@]}"
}
complete_words gpuconsole swe; complete_words gpuconsole run data-st
complete_words gpuconsole run train-gpt --set batch_s
complete_words gpuconsole rules input.t; complete_words gpuconsole tune --verif
"""


def test_the_shell_completes_commands_scenarios_knobs_rules_and_options(
    cli: Cli, tmp_path: Path
) -> None:
    pytest.importorskip("shtab")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = cli("completion", "bash")
    assert script.returncode == 0, script.stderr
    (tmp_path / "completion").write_text(script.stdout)
    done = subprocess.run(
        [bash, "-c", BASH], cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout.split("\n")[:5] == [
        "sweep",
        "data-starved",
        "batch_size=",
        "input.too_few_workers",
        "--verify",
    ], done.stderr


def test_without_shtab_one_line_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert refusal("completion zsh", capsys) == (
        2,
        "",
        f"gpuconsole: shtab is not installed: {install_command('completion')}\n",
    )
