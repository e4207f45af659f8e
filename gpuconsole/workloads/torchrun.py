"""torchrun as a child of the console: it and its processes end with the console, however early.

The console starts it as `python -m gpuconsole.workloads.torchrun` with torchrun's own arguments.
"""

from __future__ import annotations

import os

from gpuconsole.wire.channel import die_with_parent

LAUNCHER = "GPUCONSOLE_LAUNCHER"


def main() -> None:
    die_with_parent()
    os.environ[LAUNCHER] = str(os.getpid())
    from torch.distributed.run import main as run

    run()


if __name__ == "__main__":
    main()
