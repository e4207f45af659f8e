"""torchrun for the processes of a run: as a child of the console, and on each further machine.

    python -m gpuconsole.workloads.torchrun ARGUMENTS OF TORCHRUN

torchrun and its processes end with the process that started torchrun, however early. On a further
machine the end of the run is one line in place of a traceback.
"""

from __future__ import annotations

import logging
import os
import sys

from gpuconsole.wire.channel import die_with_parent
from gpuconsole.workloads.process import without_collections

LAUNCHER = "GPUCONSOLE_LAUNCHER"
CONNECT = "GPUCONSOLE_CONNECT"
"""Set by the console for its own child."""


def main() -> None:
    die_with_parent()
    os.environ[LAUNCHER] = str(os.getpid())
    # for the processes: files in the current folder are no modules of ours
    os.environ["PYTHONSAFEPATH"] = "1"
    if CONNECT in os.environ:
        with without_collections():
            from torch.distributed.run import main as run

        run()
    else:
        sys.exit(_take_part())


def _take_part() -> int:
    """Run torchrun on a further machine; returns the exit code: 0 if this machine's processes ended
    well, otherwise 1."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun's own choice, without its warning
    # a lost connection is reported below, without a C++ stack
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    logging.disable(logging.ERROR)
    with without_collections():
        from torch.distributed import DistNetworkError
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import (
            RendezvousClosedError,
            RendezvousConnectionError,
            RendezvousTimeoutError,
        )
        from torch.distributed.run import main as run

    try:
        run()
        return 0
    except (RendezvousConnectionError, RendezvousClosedError, DistNetworkError):
        why = (
            "no connection to the first machine: the run has ended, or its console is not running"
            " yet"
        )
    except RendezvousTimeoutError:
        why = "the other machines did not come in time"
    except ChildFailedError:
        why = (
            "the run has ended: its console has gone, or a process failed (the console shows the"
            " cause)"
        )
    print(f"gpuconsole: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    main()
