"""Why something failed, in words for the user: one line, without the name of a class."""

from __future__ import annotations

import pytest

from gpuconsole.agent.hooks.changes import ChangeRefused
from gpuconsole.agent.probes import ProbeError
from gpuconsole.agent.protocol import reason
from gpuconsole.agent.service import explain


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ProbeError("no stack sample was possible"), "no stack sample was possible"),
        (ChangeRefused("optim: no"), "optim: no"),
        (
            RuntimeError("mat1 and mat2 shapes cannot be multiplied\nmore"),
            "mat1 and mat2 shapes cannot be multiplied",
        ),
        (KeyError("a key"), "an unexpected error: 'a key'"),
        (AttributeError("shape"), "an unexpected error: shape"),
        (StopIteration(), "an unexpected error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_reason_is_a_sentence_without_the_name_of_a_class(
    problem: Exception, words: str
) -> None:
    assert reason(problem) == words == explain(problem, {})


@pytest.mark.parametrize(
    "problem", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")]
)
def test_a_lack_of_memory_is_named_with_the_batch(problem: Exception) -> None:
    words = explain(problem, {"batch_size": 8})
    assert (
        words.startswith("out of memory at batch_size 8")
        and "Error" not in words
        and "more" not in words
    )
