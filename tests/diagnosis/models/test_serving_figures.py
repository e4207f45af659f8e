"""The figures of a model server: a figure without a prediction names what the server does not
report."""

from __future__ import annotations

import pytest

from gpuconsole.diagnosis.models.serving import serving_figures
from gpuconsole.model.finding import Signal
from gpuconsole.model.machine import Peaks

SIGNALS = {
    name: Signal(value, "", "test")
    for name, value in {
        "client.prompt_tokens": 64.0,
        "client.output_tokens": 64.0,
        "server.requests_running": 8.0,
    }.items()
}
WEIGHTS = {"weight_bytes": 1e9, "kv_bytes_per_token": 1e4, "kv_cache_tokens": 16_000.0}
"""What vLLM reports, together with the files of its model."""


@pytest.mark.parametrize(
    ("facts", "figure", "note"),
    [
        (
            {},
            "serving.iteration_s",
            "the bytes of its weights, the bytes of a token's keys and values",
        ),
        ({"weight_bytes": 1e9}, "serving.iteration_s", "the bytes of a token's keys and values"),
        (WEIGHTS, "serving.prefill_s", "the parameters of its layers, their width, their number"),
        ({}, "serving.kv_sequences", "the tokens of its KV cache"),
    ],
)
def test_a_figure_without_a_prediction_names_what_the_server_does_not_report(
    facts: dict[str, float], figure: str, note: str
) -> None:
    found = {one.name: one for one in serving_figures({}, facts, SIGNALS, Peaks(), False)}[figure]
    assert (
        found.predicted is None
        and found.note == f"not predicted: the server does not report {note}"
    )


def test_the_figures_that_the_facts_of_vllm_allow_are_predicted() -> None:
    found = {
        one.name: one.predicted
        for one in serving_figures(
            {}, {**WEIGHTS, "peak_bytes_per_s": 1e10}, SIGNALS, Peaks(), False
        )
    }
    assert found["serving.iteration_s"] == pytest.approx((1e9 + 8 * 96 * 1e4) / 1e10)
    assert found["serving.kv_sequences"] == 125


def test_all_cards_of_a_tensor_parallel_server_read_and_compute() -> None:
    """With the bandwidth of one of its four cards, a token took 42 ms at least: 30 ms were faster
    than the minimum."""
    card = Peaks(memory_bytes_per_s=3.35e12, bf16_flops_per_s=989e12)
    facts = {
        "weight_bytes": 141e9,
        "kv_bytes_per_token": 327_680.0,
        "layer_parameters": 70e9,
        "d_model": 8192.0,
        "n_layer": 80.0,
    }
    by_count = [
        {
            one.name: one
            for one in serving_figures(
                {"dtype": "bfloat16", "tensor_parallel_size": count}, facts, SIGNALS, card, True
            )
        }
        for count in (1, 4)
    ]
    for name in ("serving.iteration_s", "serving.prefill_s"):
        alone, together = (found[name].predicted for found in by_count)
        assert alone is not None and together == pytest.approx(alone / 4)
    reported = {
        one.name: one
        for one in serving_figures(
            {"dtype": "bfloat16"}, {**facts, "tensor_parallel_size": 4.0}, SIGNALS, card, True
        )
    }
    assert reported["serving.iteration_s"].predicted == pytest.approx(0.0106, rel=0.02)
