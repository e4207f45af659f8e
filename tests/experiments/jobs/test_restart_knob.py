"""A knob that is a flag of the user's command."""

from __future__ import annotations

import pytest

from gpuconsole.model.job import parse_restart_knob
from gpuconsole.model.knobs.knob import KnobError


@pytest.mark.parametrize(
    ("knob", "words", "value", "changed"),
    [
        ("batch_size={--bs}", "python t.py --bs 8 --lr 1", "8", "python t.py --bs 16 --lr 1"),
        ("batch_size={--bs}", "python t.py --bs=8", "8", "python t.py --bs=16"),
        ("batch_size={--bs}", "python t.py --bsx 8", None, "python t.py --bsx 8 --bs 16"),
        ("batch_size={--bs}", "python t.py --bs 4 --bs 8", "8", "python t.py --bs 4 --bs 16"),
        (
            "batch_size={train.bs=}",
            "python t.py train.bs=8 x=1",
            "8",
            "python t.py train.bs=16 x=1",
        ),
        ("batch_size={train.bs=}", "python t.py", None, "python t.py train.bs=16"),
    ],
)
def test_the_value_is_read_and_replaced(
    knob: str, words: str, value: str | None, changed: str
) -> None:
    found = parse_restart_knob(knob)
    assert found.value_in(tuple(words.split())) == value
    assert " ".join(found.applied(tuple(words.split()), 16)) == changed


@pytest.mark.parametrize(
    "text", ["batch_size", "batch_size=--bs", "batch_size={}", "batch_sze={--bs}"]
)
def test_a_mistake_is_named(text: str) -> None:
    with pytest.raises(KnobError, match=r"expected NAME=|did you mean 'batch_size'"):
        parse_restart_knob(text)
