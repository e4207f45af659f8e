"""Become the leader of the terminal on stdin, then become the command:
`python -I -S lead.py COMMAND ARGS...`.

The parent has made this process the leader of a new session. The terminal becomes the session's
own, as in a login: `/dev/tty` works, and a signal that the terminal makes reaches the job.
(`subprocess` could do this only by Python code between fork and exec, which is not safe in a
program with threads.) The exit codes of a command that cannot be run are those of a shell. Standard
library only.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def main(words: list[str]) -> int:
    # Python ignores both signals, and a command would inherit this
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # the first terminal that a session leader opens becomes its own
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    try:
        os.execvp(words[0], words)
    except OSError as error:
        # a script without a first line `#!`: a shell runs it itself
        if error.errno == errno.ENOEXEC:
            os.execv("/bin/sh", ["/bin/sh", *words])
        print(f"gpuconsole: {words[0]}: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
