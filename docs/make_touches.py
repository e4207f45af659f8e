"""Writes a section of own-job-internals.md, what the agent touches in the program, from `gpuconsole/agent/hooks/touches.py`:

python docs/make_touches.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuconsole.agent.hooks.touches import GROUPS, Group, Touch, until

PAGE = Path(__file__).with_name("own-job-internals.md")
BEGIN = (
    "<!-- Made by `python docs/make_touches.py` from `gpuconsole/agent/hooks/touches.py`; a test checks that this part is current. -->\n"
)
END = "<!-- The end of that part. -->\n"


def place(touch: Touch) -> str:
    """The holders, as code where they are names, then the names."""
    holders = [holder if " " in holder else f"`{holder}`" for holder in touch.holders.split(", ")]
    return f"{', '.join(holders)}: {', '.join(f'`{name}`' for name in touch.names.split())}"


def row(group: Group, touch: Touch) -> str:
    more = [touch.notices, f"{until(group, touch).value.capitalize()}." if touch.until is not None else "", touch.fails]
    return f"| {place(touch)} | {touch.gives} | {touch.when.value} | {' '.join(filter(None, more))} |\n"


def section() -> str:
    parts = []
    for group in GROUPS:
        parts.append(f"\n### {group.title}\n\n{group.notices} {group.until.value.capitalize()}. {group.fails}\n")
        parts.append("\n| touched | what the user gets from it | when | what differs from the above |\n|---|---|---|---|\n")
        parts += [row(group, touch) for touch in group.touches]
    return "".join([*parts, "\n"])


def page(text: str) -> str:
    """The page `text` with the section as it is now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(text), encoding="utf-8")
        return 0
    if text == page(text):
        return 0
    print(f"{PAGE.name} is out of date: python docs/make_touches.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
