"""The owners of GPU memory over a run, in the terminal, on the page and as Markdown."""

from __future__ import annotations

import itertools
import re

from gpuconsole.model.memory import CARD, KEPT, OWNERS, MemoryByLine, MemoryFailure, MemoryLine
from gpuconsole.model.run import Run, SeriesData
from gpuconsole.model.snapshot import Snapshot
from gpuconsole.report.parts import printed
from gpuconsole.report.run.memory import memory_report, owners_report
from gpuconsole.report.share.html import html_page
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import session_document
from tests.report.small_session import small_session

GIB = 2.0**30
SIZES = {
    "parameters": [1.0, 1.0],
    "gradients": [1.0, 1.0],
    "optimizer": [2.0, 2.0],
    "activations": [4.0, 6.0],
    "cache": [0.5, 1.5],
    "others": [0.5, 0.5],
    "kept": [0.25, 3.25],
    "total": [24.0, 24.0],
}
OWNER_ROWS = {**OWNERS, KEPT.name: KEPT, CARD.name: CARD}


def job(times: tuple[float, ...] = (3.0, 8.0)) -> Snapshot:
    session = small_session()
    run = session.runs[0]
    for name, sizes in SIZES.items():
        values = [size * GIB for size in sizes][: len(times)]
        run.series[f"{OWNER_ROWS[name].metric}{{device=gpu:0}}"] = SeriesData(
            list(times), values, "torch"
        )
    session.runs[:], session.trials[:] = [run], []
    return session


def test_the_terminal_names_each_owner_and_what_grows_between_two_steps() -> None:
    text = printed(owners_report(job().runs[0]))
    assert (
        "parameters 1.00 GiB, gradients 1.00 GiB, optimizer states 2.00 GiB, activations and"
        " other tensors 6.00 GiB, cache 1.50 GiB"
    ) in text
    assert "context and other processes 512 MiB of 24.0 GiB" in text
    assert "kept between two steps: 256 MiB first, 3.25 GiB last (+3.00 GiB)" in text
    assert owners_report(small_session().runs[0]) == []


def test_after_a_failed_allocation_activations_and_cache_are_named_once() -> None:
    """The agent then knows only their sum: the earlier figures of both are out of date."""
    session = job()
    for name, sizes in SIZES.items():
        if name not in ("activations", "cache"):
            session.runs[0].series[f"{OWNER_ROWS[name].metric}{{device=gpu:0}}"] = SeriesData(
                [3.0, 13.0], [size * GIB for size in sizes], "torch"
            )
    session.runs[0].series[f"{OWNERS['unknown'].metric}{{device=gpu:0}}"] = SeriesData(
        [13.0], [9 * GIB], "torch"
    )
    line = printed(owners_report(session.runs[0])).splitlines()[0]
    assert "activations and cache 9.00 GiB" in line
    assert "activations and other tensors" not in line and "cache 1.50 GiB" not in line


def test_the_areas_of_the_page_lie_on_one_another_below_the_line_of_the_card() -> None:
    page = html_page(session_document(job()))
    polygons = re.findall(r'<polygon points="([^"]*)" class="([^"]*)"><title>([^<]*)', page)
    wide = polygons[: len(polygons) // 2]
    assert [title for _, _, title in wide] == [
        owner.title for name, owner in OWNERS.items() if name in SIZES
    ]
    heights = [[float(point.split(",")[1]) for point in points.split()] for points, _, _ in wide]
    for below, above in itertools.pairwise(heights):
        assert sorted(above[2:]) == sorted(below[:2]), "each area begins where the one below ends"
    assert 'class="reference"' in page
    assert "activations and other tensors</td>" in page


def test_markdown_has_the_first_the_last_and_the_largest_value() -> None:
    page = markdown_page(session_document(job()))
    assert "| activations and other tensors | 4.00 GiB | 6.00 GiB | 6.00 GiB |" in page
    assert "| kept between two steps | 256 MiB | 3.25 GiB | 3.25 GiB |" in page


def test_a_run_with_one_reading_has_a_report() -> None:
    session = job((3.0,))
    throughput = session.runs[0].series["workload.samples_per_s{device=cpu}"]
    session.runs[0].series["workload.samples_per_s{device=cpu}"] = SeriesData(
        throughput.t[:1], throughput.v[:1], "step breakdown"
    )
    assert "4.00 GiB" in markdown_page(session_document(session))
    assert "<svg" in html_page(session_document(session))


def test_the_lines_that_hold_memory_are_listed_once() -> None:
    lines = [
        MemoryLine("/home/me/train.py", 42, "forward", 5 * GIB, 12),
        MemoryLine("", 0, "no line of the program", GIB, 3),
    ]
    run = Run(
        "1", "train.py", "job", {}, "gpu:0", memory_lines=[MemoryByLine("cuda:0", lines, 6 * GIB)]
    )
    text = printed(memory_report(run))
    assert "cuda:0: 6.00 GiB at the largest allocation that torch's history has" in text
    assert re.search(r"train\.py:42 forward\s+5\.00 GiB\s+12 blocks", text)
    run.memory_lines = [
        MemoryByLine("cuda:0", reason="no history"),
        MemoryByLine("cuda:0", failed=True, reason="no history"),
    ]
    assert printed(memory_report(run)).count("n/a: no history") == 1


def test_of_errors_that_the_job_caught_the_last_is_explained() -> None:
    failures = [
        MemoryFailure(
            "CUDA out of memory", batch_size=size, phase="forward", caught=True, t=float(-size)
        )
        for size in (64, 32)
    ]
    text = printed(
        memory_report(Run("1", "train.py", "job", {}, "gpu:0", memory_failures=failures))
    )
    assert "the job ran out of GPU memory 2 times and went on" in text
    assert "with batch size 32" in text and "with batch size 64" not in text


def test_of_several_ranks_that_failed_the_first_is_explained() -> None:
    failures = [
        MemoryFailure(
            "CUDA out of memory",
            phase="forward",
            rank=rank,
            t=t,
            total_bytes=8 * GIB,
            free_bytes=GIB,
        )
        for rank, t in ((1, 2.0), (0, 2.1))
    ]
    text = printed(
        memory_report(Run("1", "train.py", "job", {}, "gpu:0", memory_failures=failures))
    )
    assert text.count("out of memory on the GPU, in the forward pass") == 2
    assert text.index("rank 1: out of memory") < text.index("owners") and text.count("owners") == 1
