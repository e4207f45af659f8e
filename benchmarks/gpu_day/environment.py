"""Makes the virtual environment of session.sh: `python3 environment.py VENV [WHEELS]`. Uses the
standard library only.

The environment has the packages of the Python that runs this file, and in addition what gpuconsole
needs and that Python lacks. A virtual environment made from a virtual environment sees only the
packages of the base Python, even with --system-site-packages (PEP 405: `home` is the base). So a
file that ends in `.pth` names the folders of the Python that runs this file; files in `.pth` of
these folders count, too.

`environment.py --missing` prints the requirements that the Python that runs it lacks. Exit code 2
with one line where something is missing.
"""

from __future__ import annotations

import importlib.util
import re
import site
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARENT = "of-the-python-that-made-this.pth"
ASK = "--missing"
MORE = ("pillow",)
"""Some scenarios make images."""


def main() -> int:
    if sys.argv[1] == ASK:
        print("\n".join(_missing()))
        return 0
    venv, wheels = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    if importlib.util.find_spec("torch") is None:
        print(
            f"session.sh: {sys.executable} has no torch: put a python3 with torch first on PATH",
            file=sys.stderr,
        )
        return 2
    python = venv / "bin" / "python"
    has_pip = importlib.util.find_spec("pip") is not None
    if not python.exists() or not _made_from_here(venv):
        options = ["--clear", "--system-site-packages", *(["--without-pip"] if has_pip else [])]
        subprocess.run([sys.executable, "-m", "venv", *options, str(venv)], check=True)
        _add_own_packages(venv)
    asked = subprocess.run([str(python), __file__, ASK], capture_output=True, text=True, check=True)
    if missing := asked.stdout.split():
        pip = (
            [sys.executable, "-m", "pip", "--python", str(python)]
            if has_pip
            else [str(python), "-m", "pip"]
        )
        source = ["--no-index", "--find-links", wheels] if wheels else []
        # gpuconsole itself is the checkout's
        command = [*pip, "install", "--quiet", "--disable-pip-version-check", *source, *missing]
        if subprocess.run(command, check=False).returncode:
            print(
                (
                    f"session.sh: {', '.join(missing)} cannot be installed: name a folder that"
                    " benchmarks/gpu_day/wheels.sh has made"
                ),
                file=sys.stderr,
            )
            return 2
    return 0


def _made_from_here(venv: Path) -> bool:
    """Whether the environment has the packages of this Python: another Python may have made it."""
    return all(
        file.read_text().startswith(_line())
        for file in venv.glob(f"lib/python*/site-packages/{PARENT}")
    ) and any(venv.glob(f"lib/python{sysconfig.get_python_version()}/site-packages/{PARENT}"))


def _add_own_packages(venv: Path) -> None:
    for folder in venv.glob("lib/python*/site-packages"):
        (folder / PARENT).write_text(_line() + "\n")


def _line() -> str:
    """A line that Python runs at its start: a path alone would be added without the `.pth` files in
    it."""
    folders = [
        folder
        for folder in (*site.getsitepackages(), site.getusersitepackages())
        if Path(folder).is_dir()
    ]
    return "import site; " + "; ".join(f"site.addsitedir({folder!r})" for folder in folders)


def _missing() -> list[str]:
    """The requirements of gpuconsole whose packages are not there at all, or too old, for this
    Python."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [
        requirement.partition(";")[0].strip()
        for requirement in (*wanted, *MORE)
        if not _is_there(requirement)
    ]


def _is_there(requirement: str) -> bool:
    """`name>=1.2; marker`. A marker does not count: all machines of a GPU day run Linux."""
    name, _, lowest = requirement.partition(";")[0].strip().partition(">=")
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return not lowest or _numbers(version) >= _numbers(lowest.partition(",")[0])


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]


if __name__ == "__main__":
    sys.exit(main())
