"""The command that installs an extra works from a clone, from a wheel and from an index, with and
without pip."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gpuconsole.host import installation
from gpuconsole.host.installation import install_command

METADATA = """Metadata-Version: 2.4
Name: gpuconsole
Version: 0.1.0
Requires-Dist: textual>=8
Provides-Extra: torch
Requires-Dist: numpy; extra == 'torch'
Requires-Dist: torch<3,>=2.6; (sys_platform == 'linux') and extra == "torch"
Provides-Extra: vllm
Requires-Dist: vllm==0.32.*; extra == 'vllm'
Provides-Extra: completion
Requires-Dist: shtab>=1.12; extra == 'completion'
"""


@pytest.fixture
def pip_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installation.shutil, "which", lambda program: str(Path(sys.executable).with_name(program))
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, direct_url: object = None) -> None:
    """Make a package in `folder` the installed gpuconsole. direct_url: what pip writes about its
    origin; None: an index, which leaves no such file."""
    package = folder / "gpuconsole-0.1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(METADATA)
    if direct_url:
        (package / "direct_url.json").write_text(json.dumps(direct_url))
    monkeypatch.setattr(
        installation.metadata, "distribution", lambda name: metadata.PathDistribution(package)
    )


@pytest.mark.usefixtures("pip_on_the_path")
@pytest.mark.parametrize(("editable", "option"), [(True, "-e "), (False, "")])
def test_in_a_clone_the_clone_is_installed_with_the_extra(
    clone: Path, editable: bool, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        monkeypatch,
        tmp_path,
        {"url": clone.as_uri(), "dir_info": {"editable": True} if editable else {}},
    )
    assert install_command("torch") == f'pip install {option}"{clone}[torch]"'
    # one word for the shell, also with a blank in the path
    assert shlex.split(install_command("torch"))[-1] == f"{clone}[torch]"


@pytest.mark.usefixtures("pip_on_the_path")
@pytest.mark.parametrize(
    "origin",
    [
        None,  # an index
        {
            "url": "file:///home/ann/dist/gpuconsole-0.1.0-py3-none-any.whl",
            "archive_info": {"hash": "sha256=0"},
        },
        {"url": "https://example.org/gpuconsole.git", "vcs_info": {"vcs": "git", "commit_id": "0"}},
        {"url": "file:///home/ann/a-clone-that-was-deleted", "dir_info": {}},
    ],
    ids=["index", "wheel", "repository", "deleted clone"],
)
def test_elsewhere_the_requirements_of_the_extra_are_installed(
    origin: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, tmp_path, origin)
    assert install_command("torch") == 'pip install numpy "torch<3,>=2.6"'
    assert install_command("completion") == 'pip install "shtab>=1.12"'
    assert install_command("vllm") == 'pip install "vllm==0.32.*"'


@pytest.mark.usefixtures("pip_on_the_path")
def test_a_clone_that_is_not_installed_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "distribution", missing)
    root = Path(installation.__file__).parents[2]
    assert (root / "pyproject.toml").is_file()
    assert install_command("torch") == f'pip install -e "{root}[torch]"'


@pytest.mark.parametrize(
    "elsewhere", ["/usr/bin/pip", None], ids=["another pip", "no pip on the path"]
)
@pytest.mark.parametrize(
    ("has_pip", "command"), [(True, "{} -m pip install"), (False, "uv pip install --python {}")]
)
def test_where_the_shell_has_another_pip_the_command_names_the_python(
    elsewhere: str | None,
    has_pip: bool,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, tmp_path)
    monkeypatch.setattr(installation.shutil, "which", lambda program: elsewhere)
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: has_pip or None)
    assert (
        install_command("completion")
        == f'{command.format(shlex.quote(sys.executable))} "shtab>=1.12"'
    )


def test_every_extra_that_a_hint_names_has_requirements_in_this_package() -> None:
    declared = metadata.metadata("gpuconsole").get_all("Provides-Extra") or []
    assert {"torch", "completion"} <= set(declared)


def test_no_text_of_the_program_or_its_pages_installs_gpuconsole_by_its_name() -> None:
    """The name is on no index: the command would fail, or install somebody else's package."""
    root = installation.CLONE
    texts = [
        root / "README.md",
        *(root / "docs").glob("*.md"),
        *(root / "gpuconsole").rglob("*.py"),
    ]
    wrong = re.compile(r"(pip|pipx) install (-\S+ )*[\"']?gpuconsole\b(?![-/])|uvx gpuconsole")
    assert [str(path) for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []
