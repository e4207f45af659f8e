"""Scratch folders of several consoles that start at the same time."""

from __future__ import annotations

import tempfile

import pytest

from gpuconsole.processes.scratch import Scratch, sweep_scratch


def test_a_folder_that_another_console_sweeps_at_once_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Between the creation of the folder and its lock, the folder looks as if its owner had been killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("scratch")))
    make, swept = tempfile.mkdtemp, []

    def make_and_sweep(prefix: str) -> str:
        made = make(prefix=prefix)
        if not swept:
            swept.append(made)
            sweep_scratch()
        return made

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_sweep)
    scratch = Scratch()
    assert scratch.path.is_dir() and str(scratch.path) not in swept
    scratch.close()
    assert not scratch.path.exists()
