"""Own processes are told from those of others by their parents."""

import os

from gpuconsole.host.load import OwnProcesses
from gpuconsole.model.machine import Process


def test_ours_are_this_process_and_what_it_started() -> None:
    ours = OwnProcesses()
    assert ours.has(Process(os.getpid(), "gpu:0", started=1.0))
    assert not ours.has(Process(os.getppid(), "gpu:0", started=1.0))
    assert not ours.has(Process(os.getpid(), "gpu:0"))  # no start time: it cannot be seen from here
