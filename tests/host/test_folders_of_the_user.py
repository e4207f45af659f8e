"""Files are kept in the user's folders. On Linux the XDG variables choose these folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuconsole.engine.catalog import scenarios_folder
from gpuconsole.experiments.baselines import baselines_folder
from gpuconsole.host.environment import cache_path

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the folders differ on other systems"
)
VARIABLES = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")


def test_the_xdg_variables_choose_the_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, str(tmp_path / name))
    assert scenarios_folder() == tmp_path / "XDG_CONFIG_HOME" / "gpuconsole" / "scenarios"
    assert baselines_folder() == tmp_path / "XDG_DATA_HOME" / "gpuconsole" / "baselines"
    assert cache_path() == tmp_path / "XDG_CACHE_HOME" / "gpuconsole" / "calibration.json"


@pytest.mark.parametrize("empty", [True, False])
def test_without_the_xdg_variables_the_folders_are_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "") if empty else monkeypatch.delenv(name, raising=False)
    assert scenarios_folder() == tmp_path / ".config/gpuconsole/scenarios"
    assert baselines_folder() == tmp_path / ".local/share/gpuconsole/baselines"
    assert cache_path() == tmp_path / ".cache/gpuconsole/calibration.json"
