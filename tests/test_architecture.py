"""The layout: imports go down only, and the console's process never loads torch."""

from __future__ import annotations

import graphlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import grimp
import pytest

ROOT = Path(__file__).parent.parent


def test_no_import_circle() -> None:
    """Imports for type checking count too."""
    graph = grimp.build_graph("gpuconsole", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules


def test_import_contracts() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_console_loads_no_torch_and_headless_no_textual() -> None:
    headless = loaded_by(
        "import gpuconsole.cli.main, gpuconsole.cli.parser as p, gpuconsole.cli.headless;"
        " p.build_parser()"
    )
    assert not headless & {"torch", "textual", "numpy", "pynvml", "plotext", "gpuconsole.workloads"}
    screen = loaded_by("import gpuconsole.tui.app, gpuconsole.experiments.session")
    assert "textual" in screen
    assert not screen & {"torch", "numpy", "pynvml", "gpuconsole.workloads"}


def test_every_command_is_listed_with_examples_in_its_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from gpuconsole.cli.main import main
    from gpuconsole.cli.parser import COMMANDS

    assert {
        "run",
        "replay",
        "scenarios",
        "rules",
        "devices",
        "doctor",
        "diagnose",
        "snapshot_schema",
    } <= set(COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main([command.replace("_", "-"), "--help"])
        assert ended.value.code == 0
        assert command == "snapshot_schema" or "examples:" in capsys.readouterr().out


def test_the_agent_and_the_console_agree_on_what_both_write_down() -> None:
    """The agent imports nothing of the console, and the console nothing of the agent: codes,
    layouts and names of files stand on both sides."""
    from gpuconsole.agent.hooks import described, recorder
    from gpuconsole.agent.hooks.evidence import memory_lines
    from gpuconsole.diagnosis.rules import host_environment
    from gpuconsole.engine.children import job
    from gpuconsole.session import segments

    def codes(module: ModuleType) -> dict[str, object]:
        kinds = {
            name: value
            for name, value in vars(module).items()
            if name.isupper() and isinstance(value, int)
        }
        return {
            name: value
            for name, value in kinds.items()
            if hasattr(recorder, name) and hasattr(segments, name)
        }

    shared = codes(segments)
    assert len(shared) == 22 and shared == codes(recorder)
    assert segments.HEAD.format == recorder.HEAD.format
    assert set(described.SWITCHES) == {*host_environment.SLOWS, *host_environment.MAY_SLOW}
    assert job.MEMORY_CONSENT_FILE == memory_lines.CONSENT_FILE
