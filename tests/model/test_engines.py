"""The table of the names on metrics pages is complete and can be read."""

from __future__ import annotations

import pytest

from gpuconsole.model.engines import ServingEngine, engines, why_lacking
from gpuconsole.model.metrics import CATALOGUE
from gpuconsole.workloads.serving.scraping import _sources


def test_every_way_is_one_that_can_be_read() -> None:
    assert {source.engine.name for source in _sources()} == {
        engine.name for engine in engines() if engine.gauges or engine.totals or engine.times
    }
    # vLLM's web server has series of its own
    assert {
        part.name
        for source in _sources()
        for way in source.ways
        for part in way
        if not part.name.startswith(source.engine.prefix)
    } == {"http_requests_total"}


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: engine.name)
def test_an_engine_has_a_series_for_each_gauge_and_no_reason_for_what_it_always_reports(
    engine: ServingEngine,
) -> None:
    assert [name for name in engine.gauges if f"server.{name}" not in CATALOGUE] == []
    always = ("requests_running", "prompt_tokens")
    assert [
        name
        for name in always
        if name in engine.lacking and name in engine.gauges and engine.name not in ("tensorrt-llm",)
    ] == []
    assert engine.turn_on and all(
        reason and not reason.endswith(".") for reason in engine.lacking.values()
    )


def test_a_reason_names_the_engine_or_the_page() -> None:
    assert why_lacking("tgi", "ttft_s") == "TGI does not report it"
    assert why_lacking("vllm", "flops") == "start vLLM with --enable-mfu-metrics"
    assert why_lacking("sglang", "unheard_of") == "SGLang's page does not have it"
    assert why_lacking("", "ttft_s") == "the metrics page does not have it"
