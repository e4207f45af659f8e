"""Notebooks in a real kernel: the example of the documentation by nbconvert, the cell magic, the
interrupt of a cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient

from gpuconsole.mcp.answers import Conclusion, Status, SuggestedChange, TrialAnswer
from gpuconsole.notebook.page import session_html
from tests.notebook.running import console_of, environment
from tests.waiting import gone, wait_until

ROOT = Path(__file__).parents[2]
FAULT = "The DataLoader waits for storage"

pytestmark = pytest.mark.xdist_group("a job")


def texts(cell: Any) -> str:
    """All that a cell has shown."""
    return json.dumps([dict(output) for output in cell["outputs"]])


@pytest.mark.slow
def test_the_example_of_the_documentation_names_the_input_fault(tmp_path: Path) -> None:
    words = [
        "--to",
        "notebook",
        "--execute",
        "--output-dir",
        str(tmp_path),
        str(ROOT / "docs" / "examples" / "slow-loader.ipynb"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = [
        cell
        for cell in nbformat.read(tmp_path / "slow-loader.ipynb", as_version=4)["cells"]
        if cell["cell_type"] == "code"
    ]
    _, watched, findings, report, _, again = cells
    (table,) = watched["outputs"]
    assert FAULT in table["data"]["text/html"] and "num_workers" in table["data"]["text/html"]
    assert f"input.slow_storage - {FAULT}" in texts(findings) and "'num_workers'" in texts(findings)
    assert "run 1  notebook  on cpu  finished" in texts(report) and "data_wait" in texts(report)
    assert "samples/s" in texts(again)


@pytest.mark.slow
def test_the_magic_runs_a_cell_as_ever(tmp_path: Path) -> None:
    cells = [
        "%load_ext gpuconsole\nfrom training import *",
        (
            "%%gpuconsole --quiet --name mine\ndata = DataLoader(Samples(), batch_size=4)\n"
            "train(40)\n6 * 7"
        ),
        "data.batch_size, gpuconsole_session.status.run, gpuconsole_session.status.state",
        "%%gpuconsole --quiet\ntrain(3)\nraise ZeroDivisionError('of the cell')",
        "gpuconsole_session.status.answer",
        "%%gpuconsole --interval never\ntrain(3)",
        "print(len(losses))",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute(
        env=environment()
    )
    shown = [cell["outputs"] for cell in notebook.cells]
    assert [output["data"]["text/plain"] for output in shown[1]] == ["42"]
    assert "(4, 'mine', 'finished')" in texts(notebook.cells[2])
    (error,) = shown[3]
    assert (error["output_type"], error["ename"], error["evalue"]) == (
        "error",
        "ZeroDivisionError",
        "of the cell",
    )
    traceback = "\n".join(error["traceback"])
    assert (
        "of the cell" in traceback
        and "magic.py" not in traceback
        and "interactiveshell" not in traceback
    )
    assert "ZeroDivisionError: of the cell" in texts(notebook.cells[4])
    assert "UsageError" in texts(notebook.cells[5]) and "never" in texts(notebook.cells[5])
    assert shown[6][0]["text"] == "43\n", "the cell with the mistake did not run"


@pytest.mark.slow
def test_the_interrupt_of_a_cell_and_the_end_of_the_kernel() -> None:
    manager, client = start_new_kernel(kernel_name="python3", env=environment())
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        client.execute_interactive(
            "import gpuconsole\nfrom training import *\nbefore = attributes()",
            timeout=60,
            output_hook=lambda message: None,
        )
        facts = interrupted(manager, client, kernel)
        assert facts["after"] == ["builtins.input"], "the kernel makes it for each cell"
        assert facts["state"] == "stopped" and facts["problem"] == "" and facts["steps"] > 5
        client.execute("with gpuconsole.watch():\n    train(100000)")
        wait_until(lambda: len(console_of(kernel.pid)) >= 2, what="the console and its sampler")
        consoles = console_of(kernel.pid)
        manager.shutdown_kernel(now=True)
        wait_until(
            lambda: all(gone(console.pid) for console in consoles), what="the end of the console"
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def interrupted(manager: KernelManager, client: Any, kernel: psutil.Process) -> dict[str, Any]:
    """What is known after the interrupt of a training."""
    cell = (
        "with gpuconsole.watch(quiet=True) as session:\n    train(100000, lambda n: print(n,"
        " flush=True) if n == 60 else None)"
    )
    # else the kernel leaves out what follows soon
    number = client.execute(cell, stop_on_error=False)
    wait_until(
        lambda: client.get_iopub_msg(timeout=30)["content"].get("text") == "60\n", 60, "steps"
    )
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=30)
    while reply["parent_header"]["msg_id"] != number:
        reply = client.get_shell_msg(timeout=30)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    told = (
        "import json; print('told:' + json.dumps({'state': session.status.state, 'after':"
        " changed(before), 'problem': session.problem, 'steps':"
        " session.snapshot.runs[0].summary.steps}))"
    )
    shown: list[dict[str, Any]] = []
    client.execute_interactive(
        told, timeout=30, output_hook=lambda message: shown.append(message["content"])
    )
    text = "".join(content.get("text", "") for content in shown)
    assert "told:" in text, shown
    facts: dict[str, Any] = json.loads(text.partition("told:")[2])
    return facts


def test_the_table_escapes_what_the_program_may_hold() -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e"
    finding = Conclusion(
        hostile,
        hostile,
        "fires",
        0.4,
        confidence=hostile,
        suggestions=[SuggestedChange({hostile: hostile}, not_possible=hostile)],
    )
    trial = TrialAnswer("1", {hostile: hostile}, hostile, False)
    page = session_html(
        Status(
            hostile,
            hostile,
            hostile,
            hostile,
            True,
            hostile,
            device=hostile,
            measuring=hostile,
            step_breakdown_ratio={"data_wait": 0.6, "forward": 0.4},
            gain_since_start=hostile,
            kept_changes={hostile: hostile},
            findings=[finding],
            trial=trial,
        ),
        [hostile],
    )
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert page.count("&lt;script&gt;") >= 10 and "data wait 60 %" in page
