"""Writes the transcript in agents.md: a client of the MCP SDK drives a session on a starved job of
this repository. Takes about a minute.

python docs/make_transcript.py [--check]

`--check` only checks that the page has a transcript of all its calls; figures differ from run to
run.
"""

from __future__ import annotations

import asyncio
import json
import os
import pprint
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("agents.md")
PROGRAM = PAGE.parents[1] / "tests" / "agent" / "programs" / "starved.py"
BEGIN, END = "<!-- transcript: python docs/make_transcript.py -->", "<!-- end of the transcript -->"
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("status", {"wait_s": 60}),
    ("explain", {"finding": "input.slow_storage"}),
    ("settings", {"name": "num_workers"}),
    ("try_change", {"changes": {"precision": "bf16"}}),
    ("try_change", {"changes": {"num_workers": 8}}),
    ("allow", {"what": "loader"}),
    ("try_change", {"changes": {"num_workers": 8}}),
    ("keep", {}),
    ("patch", {}),
    ("report", {}),
    ("status", {"wait_s": 30}),
    ("stop", {}),
)
WIDTH = 150
REPORT_LINES = 12


async def transcript() -> str:
    """The calls and the answers of a real session."""
    from mcp import Client, StdioServerParameters, stdio_client

    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(PROGRAM, folder)
        words = [
            "mcp",
            "--device",
            "cpu",
            "--allow-loader",
            "--output",
            "job.txt",
            "--",
            sys.executable,
            "starved.py",
            "end",
        ]
        lines.append(f"gpuconsole {' '.join(words)}".replace(sys.executable, "python"))
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "gpuconsole", *words],
            env=dict(os.environ),
            cwd=folder,
        )
        async with Client(stdio_client(server)) as client:

            async def on_progress(
                seconds: float, limit_s: float | None, message: str | None
            ) -> None:
                if message and (not lines or lines[-1].partition(": ")[2] != message):
                    lines.append(f"  progress {seconds:4.1f} s: {message}")

            for tool, arguments in CALLS:
                lines += ["", f"> {tool} {json.dumps(arguments) if arguments else ''}".rstrip()]
                result = await client.call_tool(
                    tool, arguments, progress_callback=on_progress if tool == "try_change" else None
                )
                lines += shown(tool, result).splitlines()
    return "\n".join(lines).replace(folder, "/home/you/project")


def shown(tool: str, result: Any) -> str:
    """An answer as Python data, for people; a report with its first lines only."""
    if result.is_error:
        return f"refused: {result.content[0].text}"
    answer = result.structured_content
    if tool in ("patch", "report"):
        text = answer["text"]["from_job"].rstrip("\n").split("\n")
        rest = (
            [f"... {len(text) - REPORT_LINES} more lines of this answer ..."]
            if tool == "report"
            else [answer["how"]]
        )
        return "\n".join(
            [
                *(f"  | {line}" for line in (text[:REPORT_LINES] if tool == "report" else text)),
                *rest,
            ]
        )
    return pprint.pformat(answer, width=WIDTH, compact=True, sort_dicts=False)


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        present = page.partition(BEGIN)[2].partition(END)[0]
        missing = [tool for tool, _ in CALLS if f"\n    > {tool}" not in present]
        print(
            f"no {', '.join(missing)} in the transcript: python docs/make_transcript.py"
            if missing
            else "",
            end="",
            file=sys.stderr,
        )
        return bool(missing)
    text = "\n".join(f"    {line}".rstrip() for line in asyncio.run(transcript()).splitlines())
    PAGE.write_text(
        re.sub(
            f"{re.escape(BEGIN)}.*{re.escape(END)}",
            lambda _: f"{BEGIN}\n\n{text}\n\n{END}",
            page,
            flags=re.DOTALL,
        ),
        encoding="utf-8",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
