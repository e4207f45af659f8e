"""What the agent imports: modules of Python that torch itself has imported. A program may have a
module of its own with the name of any other one."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

AGENT = Path(__file__).parents[2] / "gpuconsole" / "agent"
BEFORE_TORCH = "import torch, sys; print(*sys.modules)"


def imported() -> set[str]:
    """The modules of Python that the agent imports, also within functions."""
    found = set[str]()
    for path in AGENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module)
    return {name for name in found if name.partition(".")[0] in sys.stdlib_module_names}


def test_the_agent_imports_no_module_that_torch_has_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE_TORCH], capture_output=True, text=True, check=True
    )
    assert imported() - set(done.stdout.split()) - {"__future__"} == set()
