"""A shell with job control and one job: `python -m tests.pty.small_shell COMMAND ARGS...`. It
resumes a stopped job when Enter is pressed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main(words: list[str]) -> int:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = subprocess.Popen(
        words,
        process_group=0,
        restore_signals=True,
        preexec_fn=lambda: signal.signal(signal.SIGTTOU, signal.SIG_DFL),
    )
    while True:
        os.tcsetpgrp(0, job.pid)
        os.killpg(job.pid, signal.SIGCONT)
        print("shell: continued", flush=True)
        _, status = os.waitpid(job.pid, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            print("shell: ended with", os.waitstatus_to_exitcode(status), flush=True)
            return 0
        print("shell: stopped", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
