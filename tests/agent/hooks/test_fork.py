"""What the agent holds of a parent is never freed in a forked child: CUDA would abort the child
there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import gc, os, sys
    from gpuconsole.agent.hooks import job
    from gpuconsole.agent.hooks.watch import recorder

    class Event:
        def __init__(self):
            self.pid = os.getpid()
        def __del__(self):
            if os.getpid() != self.pid:
                os.write(1, b"freed in the child\\n")

    agent = job.Agent("/nowhere")
    agent._kept = Event()
    os.register_at_fork(after_in_child=agent.forked)
    recorder.read, recorder.sample_all = Event, True
    recorder.begin([])
    recorder.sampled(True)
    for _ in range(3):
        recorder.enter(1)
        recorder.leave()
        recorder.loss = Event()
        recorder.cut()
    pid = os.fork()
    gc.collect()
    if pid:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert recorder.index == 0 and not recorder.done and recorder.read is None
"""


def test_a_forked_child_frees_nothing_of_its_parent_not_even_at_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
