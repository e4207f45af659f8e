"""A descriptor of the agent that the program has closed, and whose number a file of the program
has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuconsole.agent.clock import ThreadTimes
from gpuconsole.agent.descriptors import ProcFile


@pytest.mark.parametrize("content", ["", "5\n", "1 2\n", "a program's own words\n"])
def test_a_file_of_the_program_is_neither_read_as_figures_nor_closed(
    tmp_path: Path, content: str
) -> None:
    times = ThreadTimes()
    before = times.runq_s()
    (tmp_path / "own").write_text(content)
    own = os.open(tmp_path / "own", os.O_RDONLY)
    os.dup2(own, times._file.fd)
    assert (times.runq_s(), times.available) == (before, False)
    times.close()
    assert os.fstat(times._file.fd).st_ino == os.fstat(own).st_ino
    os.close(times._file.fd)
    os.close(own)


def test_a_file_of_proc_is_read_until_it_is_closed() -> None:
    file = ProcFile("/proc/self/statm")
    assert len(file.numbers()) >= 3
    file.close()
    assert file.gone and file.numbers() == []
