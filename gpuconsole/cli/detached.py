"""`python -m gpuconsole.cli.detached FD ...` starts `gpuconsole.cli.joined` as a process that is no
child of the process that joins, which keeps the other end of the socket FD: a program may wait for
all its children, as by `os.wait()`. This process says the pid of the console on the socket, and
ends at once."""

from __future__ import annotations

import os
import sys


def main() -> int:
    fd = int(sys.argv.pop(1))
    pid = os.fork()
    if pid:
        os.write(fd, b"%d\n" % pid)
        return 0
    from gpuconsole.cli import joined  # half a second, in which the program would have a child

    return joined.main(fd)


if __name__ == "__main__":
    sys.exit(main())
