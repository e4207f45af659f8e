"""Runs one check and writes its result: `python -m benchmarks.gpu_day.child PACKAGE NAME RESULT
FOLDER [--simulated]`. It ends with its parent."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from benchmarks.gpu_day.check import FAILED, NOT_RUN, PASSED, Day, NotHereError, checks_of

PR_SET_PDEATHSIG = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package")
    parser.add_argument("name")
    parser.add_argument("result", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--simulated", action="store_true")
    args = parser.parse_args()
    _end_with_parent()
    day = Day(args.folder, args.simulated)
    state, reason = PASSED, ""
    try:
        next(one for one in checks_of(args.package) if one.name == args.name).run(day)
    except NotHereError as error:
        state, reason = NOT_RUN, str(error)
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines()
        state, reason = FAILED, f"{type(error).__name__}: {lines[-1] if lines else ''}"
    if state == PASSED and not all(figure.holds for figure in day.figures):
        state = FAILED
    found = {
        "state": state,
        "reason": reason,
        "figures": [asdict(one) for one in day.figures],
        "data": day.data,
    }
    partial = args.result.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    partial.rename(args.result)
    sys.stdout.flush()
    os._exit(0)  # a driver that hangs at the end of the process takes no result away


def _end_with_parent() -> None:
    """A killed runner cannot end the programs that this check has started. They are in this process
    group."""

    def end(number: int, frame: object) -> None:
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    main()
