"""session.sh where `python3` is a virtual environment that has torch only by way of its parent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
SESSION = ROOT / "benchmarks" / "gpu_day" / "session.sh"
LACKING = "plotext"


def environment_of(folder: Path, *packages: Path) -> Path:
    """A virtual environment without packages of its own, which sees these folders. Returns its
    `bin`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "parent.pth").write_text("".join(f"{path}\n" for path in packages))
    return folder / "bin"


def session(python: Path, venv: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "PATH": f"{python}{os.pathsep}{os.environ['PATH']}",
        "GPU_DAY_VENV": str(venv),
        "PYTHONPATH": "",
    }
    return subprocess.run(
        ["sh", str(SESSION), *arguments],
        env=env,
        cwd=venv.parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def packages_here() -> list[Path]:
    """The folders with packages of this Python."""
    return [Path(str(metadata.distribution(name).locate_file(""))) for name in ("torch", "textual")]


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated device needs g++")
def test_torch_of_the_parent_is_found(tmp_path: Path) -> None:
    python = environment_of(tmp_path / "parent", *packages_here())
    for _ in range(2):  # the second time the environment is there
        done = session(
            python,
            tmp_path / "venv",
            "--simulated",
            "--only",
            "machine",
            "--folder",
            "day",
            "--again",
            "machine",
        )
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / "day" / "results.json").read_text())
        assert found["checks"]["machine"]["state"] == "passed"
        assert found["machine"]["versions"]["torch"] == metadata.version("torch")


def test_what_the_parent_lacks_comes_from_the_wheels(tmp_path: Path) -> None:
    links, wheels = tmp_path / "packages", tmp_path / "wheels"
    links.mkdir()
    wheels.mkdir()
    lacking = metadata.distribution(LACKING)
    for folder in packages_here():
        for path in folder.iterdir():
            if not path.name.startswith(LACKING) and not (links / path.name).exists():
                (links / path.name).symlink_to(path)
    with zipfile.ZipFile(wheels / f"{LACKING}-{lacking.version}-py3-none-any.whl", "w") as wheel:
        for file in lacking.files or ():
            if (
                ".." not in file.parts
                and file.suffix != ".pyc"
                and file.name not in ("INSTALLER", "REQUESTED", "direct_url.json")
            ):
                wheel.write(file.locate(), str(file))
    python = environment_of(tmp_path / "parent", links)
    done = session(python, tmp_path / "venv", str(wheels), "--list")
    assert done.returncode == 0, done.stderr
    asked = [
        str(tmp_path / "venv" / "bin" / "python"),
        "-c",
        f"import {LACKING}, torch; print({LACKING}.__file__, torch.__file__)",
    ]
    own, parents = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert own.startswith(str(tmp_path / "venv")) and parents.startswith(str(links))


def test_without_torch_one_line_says_so(tmp_path: Path) -> None:
    done = session(environment_of(tmp_path / "parent"), tmp_path / "venv")
    assert done.returncode == 2
    assert done.stderr == (
        f"session.sh: {tmp_path}/parent/bin/python3 has no torch: put a python3 with torch"
        " first on PATH\n"
    )


@pytest.mark.matrix
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulated device needs g++")
def test_jobs_as_users_write_them_pass_on_the_simulated_device(tmp_path: Path) -> None:
    names = ("own_job_loader", "own_job_graph", "own_job_second_gpu")
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_day",
        "--simulated",
        "--cards",
        "h100,h100",
        "--folder",
        str(tmp_path),
        "--only",
        *names,
    ]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=230, check=False)
    found = json.loads((tmp_path / "results.json").read_text())["checks"]
    wrong = {
        name: [figure for figure in result["figures"] if not figure["holds"]]
        for name, result in found.items()
    }
    assert {name: result["state"] for name, result in found.items()} == dict.fromkeys(
        names, "passed"
    ), wrong
