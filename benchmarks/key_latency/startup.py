"""Time from the start to the first screen and to the first number, compared with the start of
Python and Textual in the same minute."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.fake_box import FakeBox, clean_environment
from benchmarks.own_program import BACK, own_command, own_environment
from benchmarks.pty_program import Program

NAME = "gpuconsole"
VALUE = r"\d ?°C|\d/700 W|\d W\b"
"""A temperature or a power that was measured."""
PATIENCE_S = 20.0

Row = dict[str, float]


def start_once(box: FakeBox, folder: Path) -> Row:
    """One start of each. If the scenario picker comes first, Escape is pressed as soon as it is
    visible."""
    folder.mkdir(parents=True)
    row = {
        "python_s": _python("pass", folder),
        "import_textual_s": _python("import textual.app", folder),
    }
    with Program(own_command(), environment=own_environment(box, folder), cwd=folder) as program:
        program.read_until_shown(f"{VALUE}|{BACK}", PATIENCE_S)
        if BACK in program.picture():
            program.press(b"\x1b")
            program.read_until_shown(VALUE, PATIENCE_S)
        program.read_for(0.5)
        program.press(b"q")
        program.wait_end(PATIENCE_S)
    for name, pattern in (("first_screen_s", NAME), ("first_data_s", VALUE)):
        row[name] = program.first_shown(pattern) or float("nan")
    return row


def _python(code: str, folder: Path) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, env=clean_environment(folder))
    return time.monotonic() - begun
