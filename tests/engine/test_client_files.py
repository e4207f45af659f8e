"""Result files of other clients: what each format says, in the words of this program."""

from __future__ import annotations

import contextlib
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuconsole.engine.clients import MAX_BYTES, ClientFileError, read_results, run_of
from gpuconsole.engine.reader import read_measured
from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.gate import GateError, judge
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import SnapshotError, decode, encode
from tests.fakes.client_results import (
    MODEL,
    aiperf,
    aiperf_records,
    answered,
    duration,
    guidellm,
    serve,
    sglang,
    vllm,
)

SENT = serve(1, failing=0.005)
GOOD = answered(SENT)


def read(result: dict[str, Any] | str) -> list[Run]:
    data = result if isinstance(result, str) else json.dumps(result)
    return [
        run_of(found, str(number)) for number, found in enumerate(read_results(data.encode()), 1)
    ]


FORMATS: dict[str, Callable[..., dict[str, Any] | str]] = {
    "vllm": vllm,
    "sglang": sglang,
    "aiperf": aiperf,
    "aiperf_records": aiperf_records,
    "guidellm": lambda sent: guidellm([sent]),
    "guidellm_old": lambda sent: guidellm([sent], old=True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_figures_of_the_requests(name: str) -> None:
    (run,) = read(FORMATS[name](SENT))
    summary, seconds = run.summary, duration(GOOD)
    assert (summary.requests, summary.failed_requests) == (
        len(GOOD),
        len(SENT) - len(GOOD),
    ) and run.validity is not None
    assert summary.tokens_per_s is not None and summary.requests_per_s is not None
    assert summary.tokens_per_s.mean == pytest.approx(
        sum(one.output for one in GOOD) / seconds, rel=0.002
    )
    assert summary.requests_per_s.mean == pytest.approx(len(GOOD) / seconds, rel=0.002)
    wanted = {
        "ttft_s": [one.ttft for one in GOOD],
        "tpot_s": [(one.e2e - one.ttft) / (one.output - 1) for one in GOOD],
        "e2e_s": [one.e2e for one in GOOD],
    }
    for field, values in wanted.items():
        latency = getattr(summary, field)
        assert latency.mean == pytest.approx(statistics.fmean(values), rel=1e-6), field
        assert latency.p50 == pytest.approx(statistics.median(values), rel=0.02), field
        assert latency.p99 == pytest.approx(
            sorted(values)[math.ceil(0.99 * len(values)) - 1], rel=0.15
        ), field
    assert run.facts["prompt_tokens_mean"] == pytest.approx(
        statistics.fmean(one.prompt for one in GOOD)
    )
    assert run.facts["output_tokens_mean"] == pytest.approx(
        statistics.fmean(one.output for one in GOOD)
    )
    if name != "aiperf_records":
        assert (
            run.server is not None
            and run.server.model is not None
            and run.server.model.value == MODEL
        )
        assert run.knobs["concurrency"] == 8 and run.knobs["requests"] == len(SENT)


@pytest.mark.parametrize(
    ("result", "itl", "gap"),
    [
        (vllm(SENT), False, True),
        (sglang(SENT), True, False),
        (sglang(SENT, backend="sglang-oai"), False, True),
        (aiperf_records(SENT), False, True),
    ],
    ids=["vllm", "sglang", "sglang-oai", "aiperf"],
)
def test_what_a_client_calls_itl_is_named_by_what_it_measures(
    result: dict[str, Any] | str, itl: bool, gap: bool
) -> None:
    """vLLM and the OpenAI backends of SGLang pool the gaps between chunks; the own backend of
    SGLang divides each gap among its tokens."""
    (run,) = read(result)
    assert (run.summary.itl_s is not None, run.summary.chunk_gap_s is not None) == (itl, gap)
    found = run.summary.itl_s or run.summary.chunk_gap_s
    assert found is not None and found.mean == pytest.approx(
        statistics.fmean(gap for one in GOOD for gap in one.gaps)
    )


@pytest.mark.parametrize("name", ["vllm", "aiperf_records", "guidellm", "guidellm_old"])
def test_single_requests_give_series_whose_mean_is_the_rate(name: str) -> None:
    (run,) = read(FORMATS[name](SENT))
    tokens, ttft = (
        run.series["workload.tokens_per_s{device=server}"],
        run.series["workload.ttft_s{device=server}"],
    )
    assert statistics.fmean(tokens.v) == pytest.approx(
        run.summary.tokens_per_s.mean if run.summary.tokens_per_s else 0, rel=0.05
    )
    assert len(tokens.v) == 40 and sum(ttft.weights) > 0.9 * len(GOOD)
    assert all(later > before for before, later in zip(tokens.t, tokens.t[1:], strict=False))


@pytest.mark.parametrize(
    ("result", "option"),
    [
        (vllm(SENT, detailed=False), "--save-detailed"),
        (sglang(SENT, detailed=False), "--output-details"),
        (aiperf(SENT), "profile_export.jsonl"),
    ],
    ids=["vllm", "sglang", "aiperf"],
)
def test_a_file_of_percentiles_has_no_series_and_says_which_option_writes_them(
    result: dict[str, Any], option: str
) -> None:
    (run,) = read(result)
    assert not run.series and option in run.unavailable["workload.intervals"]
    assert run.summary.ttft_s is not None and run.summary.ttft_s.p99 is not None
    assert run.summary.tokens_per_s is not None and run.summary.tokens_per_s.n == 1


def test_an_old_file_of_vllm_is_read() -> None:
    """benchmarks/benchmark_serving.py had no failures and no times of sending, and a colon in the
    name of the goodput."""
    (run,) = read(vllm(SENT, old=True) | {"request_goodput:": 7.5})
    assert run.summary.failed_requests == len(SENT) - len(GOOD) and run.summary.goodput_per_s == 7.5
    assert run.summary.e2e_s is not None and "workload.ttft_s{device=server}" in run.series
    # without times there is no rate over time
    assert "workload.tokens_per_s{device=server}" not in run.series


def test_aiperf_before_0_9_is_read() -> None:
    (run,) = read(aiperf(SENT, old=True))
    assert run.client == "AIPerf 0.4.0" and run.knobs == {
        "requests": len(SENT),
        "concurrency": 8,
        "request_rate": 0.0,
    }


@pytest.mark.parametrize(
    ("result", "load"),
    [
        (vllm(SENT, rate=4.0), {"request_rate": 4.0, "arrivals": "gamma", "burstiness": 1.0}),
        (vllm(SENT, users=None), {"concurrency": 200}),
        (
            vllm(SENT, ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=9),
            {"request_rate": 9.0, "arrivals": "linear ramp from 1/s"},
        ),
        (sglang(SENT, rate=4.0), {"request_rate": 4.0, "arrivals": "poisson"}),
        (sglang(SENT, users=None), {"concurrency": 200}),
        (sglang(SENT, request_rate="trace"), {"arrivals": "trace"}),
        (aiperf(SENT, rate=4.0), {"request_rate": 4.0, "arrivals": "poisson"}),
        (aiperf(SENT, rate=4.0, old=True), {"request_rate": 4.0, "arrivals": "poisson"}),
        (
            guidellm([SENT], rates=[4.0]),
            {"request_rate": 4.0, "arrivals": "poisson", "requests": 200},
        ),
        (guidellm([SENT], rates=[4.0], old=True), {"request_rate": 4.0, "requests": 200}),
    ],
)
def test_the_load_is_read(result: dict[str, Any], load: dict[str, Any]) -> None:
    assert load.items() <= read(result)[0].knobs.items()


def test_files_with_several_results_have_several_runs() -> None:
    lines = "\n".join(json.dumps(sglang(serve(seed))) for seed in (1, 2, 3))
    assert [run.id for run in read(lines)] == ["1", "2", "3"]
    assert len(read("\n".join(json.dumps(vllm(serve(seed))) for seed in (1, 2)))) == 2
    sweep = read(guidellm([serve(1, rate=2.0), serve(2, rate=4.0)], rates=[2.0, 4.0]))
    assert [run.knobs["request_rate"] for run in sweep] == [2.0, 4.0] and sweep[0].started < sweep[
        1
    ].started


def test_the_start_of_a_run(tmp_path: Path) -> None:
    seconds = duration(SENT)
    (run,) = read(vllm(SENT))
    assert run.started and abs(run.duration_s - seconds) < 1e-6
    assert (
        read(guidellm([SENT]))[0].started == read(aiperf_records(SENT))[0].started[:19] + "+00:00"
    )
    (untimed,) = read(sglang(SENT))
    assert not untimed.started and "--tag" in untimed.unavailable["workload.started"]
    (tagged,) = read(sglang(SENT, tag="2026-06-01T10:00:00+02:00"))
    assert (
        tagged.started == "2026-06-01T10:00:00+02:00"
        and "workload.started" not in tagged.unavailable
    )


def test_the_two_files_of_aiperf_are_one_run_by_their_content(tmp_path: Path) -> None:
    """Their names do not count, and the requests of another run in the same folder are not
    taken."""
    (tmp_path / "a.dat").write_text(json.dumps(aiperf(SENT), indent=2))
    (tmp_path / "b.txt").write_text(aiperf_records(serve(5)))
    assert not read_measured(tmp_path / "a.dat").runs[0].series
    (tmp_path / "c.log").write_text(aiperf_records(SENT))
    for name in ("a.dat", "c.log"):
        (run,) = read_measured(tmp_path / name).runs
        assert run.series and run.knobs["concurrency"] == 8 and run.server is not None, name
    (other,) = read_measured(tmp_path / "b.txt").runs
    assert not other.knobs and "profile_export_aiperf.json" in other.unavailable["workload.load"]


def test_requests_of_the_warm_up_and_of_other_units_count_as_they_should() -> None:
    lines = aiperf_records(SENT, warmup=7)
    assert read(lines)[0].summary.requests == len(GOOD)
    seconds = lines.replace('"unit": "ms"', '"unit": "sec"')
    assert read(seconds)[0].summary.ttft_s.mean == pytest.approx(
        1000 * read(lines)[0].summary.ttft_s.mean
    )  # type: ignore[union-attr]
    with pytest.raises(ClientFileError, match="'parsec' is no unit of time"):
        read(lines.replace('"unit": "ms"', '"unit": "parsec"'))


def test_a_sample_of_the_requests_gives_no_series() -> None:
    (run,) = read(guidellm([SENT], sampled=True))
    assert (
        not run.series
        and run.unavailable["workload.intervals"] == "the report has a sample of the requests only"
    )
    assert run.summary.requests == len(GOOD)


def test_requests_of_guidellms_warm_up_are_left_out() -> None:
    """The report has them, and its figures do not."""
    (run,) = read(guidellm([SENT], warmup_s=5.0))
    counted = [one for one in GOOD if one.end > 5.0]
    assert run.summary.requests == len(counted) < len(GOOD)
    ttft = run.series["workload.ttft_s{device=server}"]
    assert sum(ttft.weights) <= len(counted) and run.summary.ttft_s is not None
    assert run.summary.ttft_s.mean == pytest.approx(statistics.fmean(one.ttft for one in counted))


def test_failures_degrade_a_run_and_most_failures_make_it_invalid() -> None:
    (some,) = read(vllm(serve(1, failing=0.05)))
    assert (
        some.validity is not None
        and some.validity.verdict == "degraded"
        and "the commonest cause: ServerDisconnectedError" in some.validity.reasons[0]
    )
    (most,) = read(aiperf(serve(1, failing=0.8)))
    assert most.validity is not None and most.validity.verdict == "invalid"
    (cancelled,) = read(aiperf(SENT, was_cancelled=True))
    assert cancelled.validity is not None and "cancelled" in cancelled.validity.reasons[0]


def test_a_run_is_a_snapshot_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "result").write_text(json.dumps(vllm(SENT)))
    snapshot = read_measured(tmp_path / "result")
    assert decode(encode(snapshot)) == snapshot


# --- what is no result ----------------------------------------------------------------------------


def damaged(
    change: Callable[[dict[str, Any]], object], result: dict[str, Any] | None = None
) -> str:
    result = vllm(SENT) if result is None else result
    change(result)
    return json.dumps(result)


def _shorter(result: dict[str, Any]) -> None:
    result["itls"] = result["itls"][:-1]


WHOLE = json.dumps(vllm(SENT))
BROKEN: dict[str, tuple[str, str]] = {
    "empty": ("", "the file is empty"),
    "blank": ("  \n \n", "the file is empty"),
    "text": ("hello", "not JSON with an object at its top"),
    "list": ("[1, 2]", "not JSON with an object at its top"),
    "foreign": ('{"loss": 3}', "no known result"),
    "a trace": ('{"traceEvents": []}', "no known result"),
    "cut off": (WHOLE[: len(WHOLE) // 2], "not JSON with an object at its top"),
    "last line cut off": (
        json.dumps(sglang(SENT)) + "\n" + json.dumps(sglang(SENT))[:-20],
        "line 2, the last one, is cut off",
    ),
    "a line of something else": (
        json.dumps(sglang(SENT)) + "\n[1]\n" + json.dumps(sglang(SENT)),
        "line 2 is not a JSON object",
    ),
    "two formats": (json.dumps(sglang(SENT)) + "\n" + json.dumps(vllm(SENT)), "no known result"),
    "no duration": (
        damaged(lambda result: result.update(duration=0)),
        "duration: must be the seconds",
    ),
    "negative": (
        damaged(lambda result: result.update(output_throughput=-5)),
        "output_throughput: -5.0 must be 0 or more",
    ),
    "a word for a number": (
        damaged(lambda result: result.update(completed="many")),
        "completed: Expected",
    ),
    "another kind": (damaged(lambda result: result.update(itls={"a": 1})), "itls: Expected"),
    "lists of two lengths": (damaged(_shorter), "differ in length"),
    "not finite": (
        damaged(lambda result: result.update(duration=math.nan)),
        "duration: must be the seconds",
    ),
    "embeddings": (damaged(lambda result: result.pop("output_throughput")), "embeddings"),
    "no benchmark": ('{"benchmarks": []}', "no known result"),
    "deep": ("[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_result_is_one_line(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(SnapshotError) as raised:
        read_measured(path)
    assert (
        words in str(raised.value)
        and "\n" not in str(raised.value)
        and str(path) in str(raised.value)
    )
    if "known" in words or "empty" in words:
        assert (
            "allowed: a gpuconsole snapshot, or a JSON result of vllm bench serve, SGLang"
            " bench_serving, AIPerf or GuideLLM"
        ) in str(raised.value)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(SnapshotError, match="more than 32 MiB"):
        read_measured(path)


def test_texts_of_a_file_stay_texts() -> None:
    hostile = "x\x1b[2J\n" + "y" * 5000
    (run,) = read(
        vllm(SENT, model=hostile) | {"errors": [hostile if one.error else "" for one in SENT]}
    )
    assert run.server is not None and run.server.model is not None
    assert "\x1b" not in str(run.server.model.value) and len(str(run.server.model.value)) <= 210
    assert all("\x1b" not in cause and len(cause) < 100 for cause in run.summary.failures)


def test_prompts_and_answers_are_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(vllm(SENT) | {"generated_texts": ["the secret answer"] * len(SENT)}))
    assert b"secret" not in encode(read_measured(path))


NASTY = [
    None,
    -1,
    0,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    10**400,
    "",
    "x",
    "\x1b[2J",
    [],
    {},
    [1],
    True,
    "\ud800",
    1e-320,
    [[]],
    {"a": 1},
    2**63,
    [None],
    [1e308] * 30,
]


def _places(
    value: Any, chance: random.Random, path: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, ...]]:
    """The places of a JSON value: all keys, and a few items of each list."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], chance, (*path, key))
    elif isinstance(value, list):
        for place in chance.sample(range(len(value)), min(2, len(value))):
            yield from _places(value[place], chance, (*path, place))


@pytest.mark.parametrize("name", FORMATS)
def test_any_damage_is_one_line_or_no_harm(name: str, tmp_path: Path) -> None:
    """One value of the file is replaced by another at random: the file is read and compared, or
    refused in one line."""
    made, chance = FORMATS[name](serve(1, count=30, failing=0.1)), random.Random(7)
    objects = [json.loads(line) for line in made.splitlines()] if isinstance(made, str) else [made]
    whole = json.dumps(objects[0]) if len(objects) == 1 else "\n".join(map(json.dumps, objects))
    (good,) = read(whole)
    path, lines = tmp_path / "file", list[str]()
    for _ in range(60):
        damaged_objects = json.loads(json.dumps(objects))
        *way, last = chance.choice(list(_places(damaged_objects, chance)))
        place: Any = damaged_objects
        for key in way:
            place = place[key]
        place[last] = chance.choice(NASTY)
        path.write_text("\n".join(map(json.dumps, damaged_objects)))
        try:
            snapshot = read_measured(path)
        except SnapshotError as refused:
            lines.append(str(refused))
            continue
        assert decode(encode(snapshot)).runs
        sides = [
            MeasuredRun(label, run, snapshot)
            for label, run in (("a", snapshot.runs[-1]), ("b", good))
        ]
        # a number that is too large, which the commands say in one line
        with contextlib.suppress(ArithmeticError, GateError):
            compare(*sides)
            judge(sides[:1], sides[1:], 0.9)
    assert lines and not any("\n" in line or len(line) > 600 for line in lines)


def test_a_field_of_the_users_own_is_no_mistake() -> None:
    (run,) = read(vllm(SENT, rate=4.0) | {"metadata": "night", "burstiness": None})
    assert (run.knobs["arrivals"], run.knobs["burstiness"]) == ("gamma", 1.0)


@pytest.mark.parametrize(
    ("info", "model"),
    [("not reachable", None), ({"decode": [{"model_path": "decoder"}]}, "decoder")],
    ids=["a word", "two servers"],
)
def test_a_server_says_what_it_is_in_several_ways(info: Any, model: str | None) -> None:
    (run,) = read(sglang(SENT) | {"server_info": info})
    assert run.server is not None
    assert (run.server.model and run.server.model.value) == model


def test_a_tag_that_is_no_time_is_not_the_time_of_the_run() -> None:
    (run,) = read(sglang(SENT) | {"tag": "20260101-000000"})
    assert not run.started and "workload.started" in run.unavailable


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (aiperf, ("benchmark_duration",)),
        (lambda sent: guidellm([sent]), ("benchmarks", 0, "duration")),
    ],
    ids=["aiperf", "guidellm"],
)
def test_a_file_without_its_duration_has_the_duration_of_its_figures(
    made: Callable[..., Any], path: tuple[Any, ...]
) -> None:
    (whole,) = read(made(SENT))
    cut = made(SENT)
    inner = cut
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    (run,) = read(cut)
    assert run.summary.requests_per_s is not None and whole.summary.requests_per_s is not None
    assert run.summary.requests_per_s.mean == pytest.approx(
        whole.summary.requests_per_s.mean, rel=0.01
    )
