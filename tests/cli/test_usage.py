"""Bad input: one line, exit code 2, nothing started, nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuconsole.host.installation import install_command
from tests.conftest import Cli


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "train-gtp", "--headless"], ["did you mean 'train-gpt'"]),
        (
            ["run", "train-gpt", "--headless", "--set", "batchsize=4"],
            ["no setting 'batchsize'", "did you mean 'batch_size'"],
        ),
        (
            ["run", "train-gpt", "--headless", "--set", "precision=bf61"],
            ["fp32|tf32|bf16", "did you mean 'bf16'"],
        ),
        (["run", "train-gpt", "--headless", "--set", "batch_size"], ["NAME=VALUE"]),
        (
            ["run", "train-gpt", "--headless", "--try", "num_workers=2"],
            ["no setting 'num_workers'"],
        ),
        (
            ["run", "train-gpt", "--headless", "--snapshot", "no/such/folder/s.json"],
            ["--snapshot", "cannot be written"],
        ),
        (
            ["run", "train-gpt", "--headless", "--record", "/proc/r.jsonl"],
            ["--record", "cannot be written"],
        ),
        (["run", "train-gpt", "--headless", "--duration", "soon"], ["not a number"]),
        (["run", "train-gpt", "--headless", "--duration", "-3"], ["--duration"]),
        (["run", "./missing.toml", "--headless"], ["missing.toml", "cannot be read"]),
        (
            ["run", "train-gpt", "--headless", "--device", "gpu:7", "--duration", "2"],
            ["no device 'gpu:7'"],
        ),
        (["run", "train-gpt"], ["--headless"]),
        ([], ["no terminal"]),
        (["--demo"], ["no terminal"]),
        (["--demo", "run", "train-gpt", "--headless"], ["--demo has no effect on run"]),
        (["--demo", "--price", "3"], ["--price has no effect on --demo"]),
        (["replay", "missing.jsonl"], ["cannot be read"]),
        (["diagnose", "missing.json"], ["cannot be read"]),
        (["scenarios", "nope"], ["no scenario 'nope'"]),
        (["rules", "input.slow"], ["no rule", "did you mean"]),
        (["rnu", "train-gpt"], ["no command 'rnu'", "did you mean 'run'"]),
        (
            ["--interval", "2", "snapshot-shema"],
            ["no command 'snapshot-shema'", "did you mean 'snapshot-schema'"],
        ),
        (["rnu", "--", "python", "train.py"], ["no command 'rnu'", "did you mean 'run'"]),
        (["train.py"], ["no command 'train.py'", "gpuconsole run -- python train.py"]),
        (
            ["python", "train.py", "--lr", "1"],
            ["no command 'python'", "gpuconsole run -- python train.py --lr 1"],
        ),
        (["--", "python", "train.py"], ["gpuconsole run -- python train.py"]),
        (
            ["doctor", "--", "python", "train.py"],
            ["doctor takes no command after --; run, sweep, tune, mcp take one"],
        ),
        (["frobnicate-all"], ["no command 'frobnicate-all'", "gpuconsole --help"]),
        (
            ["run", "train-gpt", "--headless", "--durtion", "5"],
            ["no option '--durtion'", "did you mean '--duration'", "gpuconsole run --help"],
        ),
        (
            ["run", "train-gpt", "--headless", "--durtion=5"],
            ["no option '--durtion'", "did you mean '--duration'"],
        ),
        (
            ["--prise", "3", "run", "train-gpt", "--headless"],
            ["no option '--prise'", "did you mean '--price'"],
        ),
        (["doctor", "now"], ["unexpected argument 'now'", "gpuconsole doctor --help"]),
        (
            ["run", "train-gpt", "--headless", "--token-file", "token.txt"],
            ["--token-file", "--serve"],
        ),
        (["tune", "train-gpt", "--token-file", "token.txt"], ["--token-file", "--serve"]),
    ],
)
def test_bad_input(cli_here: Cli, tmp_path: Path, args: list[str], words: list[str]) -> None:
    done = cli_here(*args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("run", "train-gpt", "--headless"),
        ("tune", "train-gpt"),
        ("sweep", "train-gpt", "--vary", "batch_size=1,2"),
        ("calibrate",),
        ("quality", "serve-chat"),
    ],
)
def test_a_device_that_is_not_there_is_bad_usage_in_every_command(
    cli: Cli, words: tuple[str, ...]
) -> None:
    done = cli(*words, "--device", "gpu:7")
    assert done.returncode == 2
    assert "there is no device 'gpu:7'" in done.stderr.splitlines()[-1] and done.stdout == ""


def test_a_bad_scenario_file_names_file_key_and_what_is_allowed(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\ntitle = "t"\nworkload = "training.gpt"\nsummary = "s"\n[knobs]\n'
        "batchsize = 3\n"
    )
    done = cli("run", "./mine.toml", "--headless")
    assert done.returncode == 2
    assert (
        "mine.toml: [knobs] training.gpt has no setting 'batchsize' (did you mean 'batch_size'?)"
        in done.stderr
    )


def test_without_torch_one_line_says_what_to_install(cli: Cli, tmp_path: Path) -> None:
    """A Python that does not find torch's metadata, as where it is not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'torch':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = cli("run", "train-gpt", "--headless", env=env)
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"gpuconsole: torch is not installed: {install_command('torch')} (monitoring works"
        " without it)"
    )


def test_help_and_version_and_lists(cli: Cli) -> None:
    assert "gpuconsole run data-starved" in cli("--help").stdout
    assert cli("--version").stdout.startswith("gpuconsole ")
    assert {one["name"] for one in json.loads(cli("scenarios", "--json").stdout)} >= {
        "train-gpt",
        "data-starved",
    }
    shown = cli("scenarios", "data-starved").stdout
    assert "storage_latency_ms" in shown
    needed = shown.splitlines()[-1].removeprefix("GPU memory, predicted").split()
    assert needed[0] == "n/a" and float(needed[1]) > 0 and needed[2] in ("MiB", "GiB")
    assert "input.slow_storage" in cli("rules").stdout
    assert "Thresholds" in cli("rules", "input.slow_storage").stdout
    schema = json.loads(cli("snapshot-schema").stdout)
    assert schema["title"] == "gpuconsole.snapshot/1"
