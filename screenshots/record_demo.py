"""Records the session of `gpuconsole --demo` again, with the real program in a terminal:
`python screenshots/record_demo.py`.

The machine should be quiet. The program waits for the finding, presses Enter, waits for the verdict
and for some steps with the kept change.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
import time
from pathlib import Path

from tests.pty.terminal import Terminal

TARGET = Path(__file__).parent.parent / "gpuconsole" / "data" / "demo.jsonl.gz"
LOOK_S, AFTER_S = 3.0, 10.0
"""Seconds between the finding and Enter, and after the verdict."""


def read_for(terminal: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        terminal.read()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        with Terminal(
            "run", "data-starved", "--record", "demo.jsonl", cwd=Path(folder)
        ) as terminal:
            terminal.wait_for("Enter try", timeout_s=120)
            read_for(terminal, LOOK_S)
            terminal.press("enter")
            terminal.wait_for("Esc cancel", timeout_s=30)
            terminal.wait_gone("Esc cancel", timeout_s=120)
            kept = "kept" in terminal.text
            read_for(terminal, AFTER_S)
            terminal.press("q")
            terminal.wait_exit(20)
        if not kept:
            print("the change was not kept: other programs disturbed the trial; record again")
            return 1
        TARGET.write_bytes(gzip.compress((Path(folder) / "demo.jsonl").read_bytes(), 9, mtime=0))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
