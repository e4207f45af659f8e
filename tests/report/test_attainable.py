"""The share of the attainable rate in words."""

from __future__ import annotations

import pytest

from gpuconsole.model.figure import Attainable, RatePair
from gpuconsole.model.run import Run
from gpuconsole.report.run.attainable import share_text, why_no_share


def run(attainable: Attainable | None) -> Run:
    return Run("1", "train-gpt", "training.gpt", {}, "cpu", attainable=attainable)


@pytest.mark.parametrize(
    ("reached", "words"), [(41.0, "41 % of attainable"), (3.21, "3.2 % of attainable"), (108.0, "108 % of attainable")]
)
def test_the_share_in_a_few_words(reached: float, words: str) -> None:
    known = run(Attainable((RatePair("samples", "samples", "samples/s", reached, 100.0),)))
    assert share_text(known) == words and why_no_share(known) == ""


def test_without_a_share_there_is_a_reason() -> None:
    missing = run(Attainable(reason="the run is not steady yet"))
    assert share_text(missing) == "" and why_no_share(missing) == "the run is not steady yet"
    assert share_text(run(None)) == "" and "has not reported its facts" in why_no_share(run(None))
