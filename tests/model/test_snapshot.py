import json
import re

import jsonschema
import pytest

from gpuconsole.model.figures import FIGURES
from gpuconsole.model.run import Run, SeriesData, Summary
from gpuconsole.model.snapshot import (
    SCHEMA,
    Environment,
    Snapshot,
    SnapshotError,
    decode,
    decode_with_unknown,
    encode,
    json_schema,
)


def snapshot() -> Snapshot:
    run = Run(
        "1",
        "train-gpt",
        "training.gpt",
        {"batch_size": 8, "pin_memory": True, "precision": "fp32"},
        "cpu",
    )
    run.series = {"gpu.power_w{device=gpu:0}": SeriesData([0.0, 1.0], [300.0, 301.5], "nvml")}
    return Snapshot(
        created="2026-11-21T10:32:07Z",
        gpuconsole="0.1.0",
        environment=Environment(),
        runs=[run],
        trials=[],
    )


def test_round_trip_and_schema() -> None:
    data = encode(snapshot())
    again, raw = decode_with_unknown(data)
    assert again == snapshot()
    assert raw["schema"] == SCHEMA
    jsonschema.validate(raw, json_schema())


def test_unknown_fields_are_kept_on_reading() -> None:
    raw = json.loads(encode(snapshot()))
    raw["from_the_future"] = 1
    raw["runs"][0]["also_new"] = [1, 2]
    _, kept = decode_with_unknown(json.dumps(raw).encode())
    assert kept["from_the_future"] == 1
    assert kept["runs"][0]["also_new"] == [1, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a gpuconsole snapshot"),
        (b'{"schema": "gpuconsole.snapshot/2"}', "newer gpuconsole"),
        (b'{"schema": "gpuconsole.snapshot/1"}', "not a valid snapshot"),
    ],
)
def test_what_is_no_snapshot_is_said_in_one_line(data: bytes, words: str) -> None:
    with pytest.raises(SnapshotError, match=words) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("gpu.power_w{device=gpu:0}", "v", 1e308),
        ("gpu.power_w{device=gpu:0}", "t", -1e308),
        ("workload.step_time_s{device=cpu}", "v", -1.0),
        ("gpu.power_w{device=gpu:0}", "w", -1.0),
    ],
)
def test_a_number_that_makes_no_figure_is_named_by_its_place(
    key: str, field: str, value: float
) -> None:
    damaged = snapshot()
    damaged.runs[0].series = {key: SeriesData([0.0, 1.0], [300.0, 301.5], "a", [1.0, 2.0])}
    assert decode(encode(damaged)) == damaged
    getattr(damaged.runs[0].series[key], field)[1] = value
    with pytest.raises(SnapshotError, match=re.escape(f"series['{key}'].{field}")):
        decode(encode(damaged))


def test_what_may_be_negative_is_read() -> None:
    run = snapshot()
    run.runs[0].series = {
        "workload.loss{device=cpu}": SeriesData([-1.0, 1.0], [-0.5, -2.0], "a"),
        "gpu.temperature_c{device=gpu:0}": SeriesData([0.0], [-4.0], "nvml"),
    }
    assert decode(encode(run)) == run


def test_each_number_of_a_summary_has_one_row() -> None:
    """The row says what a figure is. `compare` and the reports read it there."""
    no_figures = {
        "phases_ratio",
        "mfu_peak_source",
        "mbu_peak_source",
        "requests",
        "failures",
        "steps",
        "mfu_at_least",
        "mfu_above_peak",
        "whole_ratio",
    }
    assert set(Summary.__struct_fields__) - no_figures == set(FIGURES)
    assert (FIGURES["ttft_s"].unit, FIGURES["ttft_s"].better) == ("s", "lower")
    assert {figure.peak for figure in FIGURES.values()} - {""} <= no_figures
