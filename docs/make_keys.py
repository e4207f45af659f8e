"""Writes keys.md, the table of all keys, from `gpuconsole/tui/keys.py`:

python docs/make_keys.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from gpuconsole.tui.keys import Action, everywhere, of_replay, on

PAGE = Path(__file__).with_name("keys.md")
HEAD = """# Keys

Made by `python docs/make_keys.py` from `gpuconsole/tui/keys.py`; a test checks that this page is
current.

On the screen, `?` shows all keys, and the bar at the bottom shows the few keys that are useful now.
A click presses a key of the bar, selects a finding, or opens the history of a metric. To select
text, hold Shift while you drag. In lists and pages `j` and `k` move as in many programs; on the
main screen `j` opens the jobs.

The configuration file changes keys, for example (the names of the actions are in
`gpuconsole/tui/keys.py`; an unknown name lists the valid ones):

    [keys]
    history = "H"
    quit = "f10"

## Everywhere

"""
LISTS = "Lists and pages"
SCREENS = {
    "main": "Main screen",
    "machine": "Main screen while nothing runs",
    "scenarios": "Scenarios",
    "knobs": "Settings",
    "processes": "Processes",
    "jobs": "Jobs",
    "device": "Device",
    "topology": "Links",
    "profile": "Profile",
    "tuning": "Tuning",
    "value": "While a value is edited",
}
MOVES = ("up", "down", "page_up", "page_down", "first", "last", "back")
FOOT = """
## Slow SSH lines and terminals

The console sends only the cells that changed. A slow line gets fewer frames, never old frames.
`--eco` updates the screen every two seconds, and `ssh -C` (compression) helps further. The console
reads `NO_COLOR`, the number of colours and the character set from the environment. It works with 16
colours and with ASCII only.

The title of the console shows its own CPU use. All NVML calls run in a child process: when a driver
call hangs, the title shows which call hangs and for how long, and `q` still quits at once. Each
GPU is read by itself: a GPU that is slow or hangs leaves the figures of the others as they are. It
is asked for its utilization, memory, power and temperature only, until its calls are quick again.
"""


def table(actions: Iterable[Action]) -> str:
    rows = dict.fromkeys(
        f"| {', '.join(f'`{key}`' for key in action.written.split(', '))} | {action.help} |\n"
        for action in actions
    )
    return "| key | action |\n|---|---|\n" + "".join(rows)


def page() -> str:
    parts = [HEAD, table(everywhere())]
    for screen, title in SCREENS.items():
        own = [action for action in on(screen) if action.id not in MOVES]
        replay = [action for action in own if action in of_replay()]
        parts.append(f"\n## {title}\n\n{table(action for action in own if action not in replay)}")
        if replay:
            parts.append(f"\n## {title} of a recording\n\n{table(replay)}")
    parts.append(
        f"\n## {LISTS}\n\n{table(action for action in on('scenarios') if action.id in MOVES)}"
    )
    return "".join([*parts, FOOT])


def main() -> int:
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print(f"{PAGE.name} is out of date: python docs/make_keys.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
