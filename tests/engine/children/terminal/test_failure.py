"""The cause of a job's failure, as its output names it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuconsole.engine.children.terminal.lines import MAX_ANSWER, failure_words

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    train()",
    "ValueError: a bad shape",
]
LAUNCHER = [
    "Traceback (most recent call last):",
    '  File "run.py", line 9',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "=" * 60,
]


def of_rank(rank: int, *lines: str) -> list[str]:
    return [f"[rank{rank}]: {line}" for line in lines]


@pytest.mark.parametrize(
    ("code", "lines", "words"),
    [
        (1, ["step 1", *TRACEBACK], "ValueError: a bad shape"),
        (
            1,
            [
                "40 %|###  Traceback (most recent call last):",
                *TRACEBACK[1:],
                "",
                "wandb: synced 5 files",
            ],
            "ValueError: a bad shape",
        ),
        (
            1,
            [
                *TRACEBACK,
                "",
                "During handling of the above exception, another exception occurred:",
                "",
                *TRACEBACK[:3],
                "KeyError: 'x'",
            ],
            "KeyError: 'x'",
        ),
        (
            1,
            [
                "ValueError: Caught ValueError in DataLoader worker process 0.",
                f"Original {TRACEBACK[0]}",
                *TRACEBACK[1:],
            ],
            "ValueError: a bad shape",
        ),
        (1, [*TRACEBACK, *LAUNCHER], "ValueError: a bad shape"),
        (1, LAUNCHER, LAUNCHER[2].strip()),
        (
            1,
            [
                *of_rank(1, *TRACEBACK),
                *of_rank(0, *TRACEBACK[:3], "RuntimeError: Connection closed"),
                *LAUNCHER,
            ],
            "ValueError: a bad shape",
        ),
        (
            1,
            [*of_rank(1, TRACEBACK[0]), *of_rank(0, *TRACEBACK), *of_rank(1, "KeyError: 1")],
            "ValueError: a bad shape",
        ),
        (
            1,
            [
                *TRACEBACK,
                "Exception ignored in: <function Iter.__del__ at 0x7f>",
                *TRACEBACK[:3],
                "AssertionError: can only test a child process",
            ],
            "ValueError: a bad shape",
        ),
        (1, ["RuntimeError: Error(s) in loading:", "\tMissing key"], "last output: Missing key"),
        (
            2,
            ["usage: train.py", "train.py: error: no such option: --x", ""],
            "last output: train.py: error: no such option: --x",
        ),
        (3, [*TRACEBACK, "going on without it", "giving up"], "last output: giving up"),
        (-11, ["step 1"], "last output: step 1"),
        (1, [*TRACEBACK, *(f"step {n}" for n in range(500))], "last output: step 499"),
        (1, ["", "  "], ""),
        (1, [], ""),
    ],
)
def test_the_line_of_the_output_that_names_the_cause(
    code: int, lines: list[str], words: str
) -> None:
    assert failure_words(code, lines) == words


def test_the_words_are_safe_and_short() -> None:
    assert (
        failure_words(1, [*TRACEBACK[:3], "ValueError: \x1b[31m \u202e hidden"])
        == "ValueError: \\x1b[31m \\u202e hidden"
    )
    assert len(failure_words(1, [*TRACEBACK[:3], "ValueError: " + "x" * 9000])) == MAX_ANSWER


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ValueError('a bad shape')", "ValueError: a bad shape"),
        (
            "try:\n    {}['x']\nexcept KeyError as e:\n    raise OSError('disk') from e",
            "OSError: disk",
        ),
        ("def f(:", "last output: SyntaxError: invalid syntax"),
        ("raise SystemExit('no data')", "last output: no data"),
    ],
)
def test_what_this_python_prints(program: str, words: str) -> None:
    ended = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True)
    assert failure_words(ended.returncode, ended.stderr.splitlines()) == words
