"""`gpuconsole models`: predictions without a run."""

from __future__ import annotations

import json

import pytest

from gpuconsole.cli.main import main

H200 = ["--device-name", "NVIDIA H200"]


def test_every_prediction_has_its_formula(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "train-gpt", *H200, "--json"]) == 0
    found = {figure["name"]: figure for figure in json.loads(capsys.readouterr().out)}
    assert all(
        figure["predicted"] > 0 and figure["formula"] and "measured" not in figure
        for figure in found.values()
    )
    assert {
        "memory.allocated_peak_bytes",
        "flops.per_sample",
        "flops.step_s",
        "bandwidth.step_s",
        "mfu.published",
    } <= set(found)


def test_checkpointing_shows_in_memory_and_work(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*more: str) -> dict[str, float]:
        assert main(["models", "train-gpt", *H200, "--json", *more]) == 0
        return {
            figure["name"]: figure["predicted"] for figure in json.loads(capsys.readouterr().out)
        }

    keep, again = ask(), ask("--set", "gradient_checkpointing=true")
    assert again["memory.allocated_peak_bytes"] < keep["memory.allocated_peak_bytes"]
    assert again["flops.hardware_per_sample"] > keep["flops.per_sample"]


def test_as_text_it_says_whether_it_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "train-gpt", *H200]) == 0
    shown = capsys.readouterr().out
    assert "predicted, not measured" in shown
    assert "of the 131 GiB" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train-vision"], "only scenarios of training.gpt"),
        (["train-gpt", "--device-name", "NVIDIA H9000"], "no datasheet peaks"),
        (["train-gpt", "--set", "batch=3"], "batch_size"),
    ],
)
def test_what_cannot_be_predicted_is_bad_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *words]) == 2
    assert said in capsys.readouterr().err
