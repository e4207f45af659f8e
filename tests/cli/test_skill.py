"""`gpuconsole skill`: the file for agents names tools and words that exist."""

from __future__ import annotations

import re

from gpuconsole.mcp.tools import BY_NAME
from tests.conftest import Cli


def test_the_skill_is_a_file_with_a_head_and_names_the_tools(cli: Cli) -> None:
    done = cli("skill")
    assert (done.returncode, done.stderr) == (0, "")
    head = done.stdout.split("---\n")[1]
    assert re.match(r"name: gpuconsole\ndescription: .{50,}\n$", head)
    named = set(re.findall(r"`([a-z_]+)`", done.stdout))
    assert {
        "status",
        "explain",
        "try_change",
        "keep",
        "patch",
        "allow",
        "stop",
    } <= named & BY_NAME.keys()
    assert len(done.stdout) < 6000
