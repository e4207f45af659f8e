"""The shared report: the same figures as in the terminal, nothing from outside is markup, and
nothing is loaded."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
import pytest
from markdown_it import MarkdownIt

from gpuconsole.experiments.compare import compare
from gpuconsole.experiments.throughput import MeasuredRun
from gpuconsole.model import units
from gpuconsole.model.experiments import Sweep, SweepPoint
from gpuconsole.model.figures import Attainable, RatePair, TimePart
from gpuconsole.model.finding import Evidence
from gpuconsole.model.machine import Device
from gpuconsole.model.run import Run, SeriesData, Validity
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report.parts import printed
from gpuconsole.report.run.diagnosis import details_report
from gpuconsole.report.run.figures import in_row
from gpuconsole.report.run.models import models_report
from gpuconsole.report.session import session_text
from gpuconsole.report.share import markdown
from gpuconsole.report.share.comparison import comparison_document
from gpuconsole.report.share.document import Document, Waterfall
from gpuconsole.report.share.html import html_page
from gpuconsole.report.share.markdown import markdown_page
from gpuconsole.report.share.session import NOTHING, session_document
from tests.report.small_session import GOLDEN, small_session
from tests.report.test_same_figures import figures, serving, snapshot, training
from tests.tui.fake_session import gpu_view, tuned_view

VOID = {"meta", "link", "br"}
HOSTILE = "<script>alert('x')</script>&amp;<b>"
MARKED = "a|b `c` *d* _e_ [f](javascript:g) @everyone #12 https://evil.example/h ~~i~~ $j$ <k>"
CONTROLS = "x\x1b[31m\x07\u202egnp.exe\u2066\u200f\ny"
LONG = "name" * 300


class Page(HTMLParser):
    """What a browser would read: tags, attributes, text outside and inside of charts. Fails where
    tags are not balanced."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.chart_words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            (self.chart_words if "svg" in self.open else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def swept() -> Snapshot:
    points = [
        SweepPoint({"batch_size": 4}, [1510.0, 1490.2], low=1480.0, high=1520.0),
        SweepPoint({"batch_size": 16}, error="out of memory"),
    ]
    sweep = Sweep("train-gpt", "cpu", "tokens/s", {}, points, 2)
    return Snapshot(
        created="", gpuconsole="", environment=Environment(), runs=[], trials=[], sweeps=[sweep]
    )


def failed() -> Snapshot:
    made = small_session()
    made.runs, made.trials = (
        [
            Run(
                "1",
                "train-gpt",
                "training.gpt",
                {},
                "cpu",
                "failed",
                "out of memory at batch_size 64",
            )
        ],
        [],
    )
    return made


def cancelled() -> Snapshot:
    made = small_session()
    made.trials[1] = msgspec.structs.replace(
        made.trials[1], state="cancelled", speedup=None, verdict=None
    )
    return made


def empty() -> Snapshot:
    return msgspec.structs.replace(small_session(), runs=[], trials=[])


def compared() -> Document:
    made = small_session()
    before, after = (MeasuredRun(f"a.json#{run.id}", run, made) for run in made.runs)
    return comparison_document(compare(before, after), before, after)


SESSIONS = {
    "small": small_session(), "training": snapshot(training()), "serving": snapshot(serving()),
    "tuned": snapshot(tuned_view(False)), "gpu": snapshot(gpu_view()), "sweep": swept(),
    "failed": failed(), "cancelled": cancelled(), "empty": empty(),
}  # fmt: skip
DOCUMENTS = {name: session_document(one) for name, one in SESSIONS.items()} | {
    "comparison": compared()
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_is_whole_and_loads_nothing(name: str) -> None:
    text = html_page(DOCUMENTS[name])
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>") and page.tags.count("h1") == 1
    assert not {"script", "img", "iframe", "object", "embed", "base", "form", "a"} & set(page.tags)
    assert {
        value
        for key, value in page.attributes
        if key in ("src", "href", "srcset", "action", "xlink:href")
    } == {"data:,"}
    assert not [key for key, _ in page.attributes if key.startswith("on") or key == "style"]
    style = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1 and "url(" not in style[0] and "@import" not in style[0]
    assert "default-src 'none'" in text
    assert all(chart in text for chart in ('class="wide"', 'class="narrow"')) or "<svg" not in text


@pytest.mark.parametrize("name", ["small", "training", "serving", "tuned", "gpu"])
def test_the_page_has_the_figures_of_the_terminal(name: str) -> None:
    terminal = figures(session_text(SESSIONS[name]))
    page = Page(html_page(DOCUMENTS[name]))
    shown = figures(page.text)
    assert len(terminal) >= 15
    assert not terminal - shown
    runs = SESSIONS[name].runs
    beside = [
        printed(report(run)) for run in runs for report in (details_report, models_report)
    ] + [in_row(run, field) for run in runs for field in ("mfu_ratio", "mbu_ratio")]
    beside += [units.duration(run.steady_from_s) for run in runs]
    # words, and the environment
    beside += [
        "95 % 2 % 1x",
        DOCUMENTS[name].answers[0][1].cost,
        "16.0 GiB 4.80 TB/s 989 TFLOP/s 140 GiB",
    ]
    assert sorted(shown - terminal - figures("  ".join(beside))) == []


@pytest.mark.parametrize("name", ["small", "training", "serving", "tuned", "gpu"])
def test_the_markdown_has_the_figures_of_the_terminal(name: str) -> None:
    terminal = figures(session_text(SESSIONS[name]))
    text = markdown_page(DOCUMENTS[name])
    assert not terminal - figures(text.replace("\\", "").replace("*", "").replace("|", " "))


def test_the_markdown_of_a_small_session() -> None:
    """After a change of the report: `python -m tests.report.small_session --write`, and read the
    difference."""
    assert markdown_page(session_document(small_session())) == GOLDEN.read_text()


def hostile(words: str) -> Snapshot:
    """A session in which every word from outside is `words`."""
    made = small_session()
    first, last = made.runs
    first.scenario = last.scenario = words
    finding = first.findings[0]
    evidence = (Evidence(words, 0.5, "ratio", None, words),)
    suggestion = msgspec.structs.replace(finding.suggestions[0], why=words, code=words)
    first.findings = [
        msgspec.structs.replace(
            finding, title=words, summary=words, evidence=evidence, suggestions=(suggestion,)
        )
    ]
    first.knobs = {**first.knobs, "collate_fn": words}
    last.state, last.error, last.validity = "failed", words, Validity("degraded", [words])
    made.trials[1] = msgspec.structs.replace(
        made.trials[1], state="failed", error=words, speedup=None
    )
    made.unavailable = {words: words}
    device = Device("cpu", words)
    made.environment = Environment(words, words, words, 4, 1 << 30, words, words, devices=[device])
    return made


@pytest.mark.parametrize(
    "words", [HOSTILE, MARKED, CONTROLS, LONG], ids=["tags", "marks", "controls", "long"]
)
def test_words_from_outside_are_text(words: str) -> None:
    document = session_document(hostile(words))
    text = html_page(document)
    page = Page(text)
    assert "script" not in page.tags and "k" not in page.tags and "b" not in page.tags
    assert text.isprintable() or not [
        char for char in text if not char.isprintable() and char != "\n"
    ]
    if words in (HOSTILE, MARKED):
        assert words in page.text
    written = markdown_page(document)
    tokens = MarkdownIt("gfm-like", {"html": True}).parse(written)
    inside = [child for token in tokens for child in token.children or []]
    assert not [one for one in inside if one.type in ("link_open", "image", "em_open", "s_open")]
    raw = " ".join(one.content for one in [*tokens, *inside] if one.type.startswith("html"))
    assert set(re.findall(r"<(/?\w+)", raw)) <= {
        "details",
        "/details",
        "summary",
        "/summary",
        "sub",
        "/sub",
    }
    assert not [char for char in written if not char.isprintable() and char != "\n"]
    outside = re.sub(r"(`{3,})text\n.*?\n\1", "", written, flags=re.DOTALL)
    assert "@everyone" not in outside and "#12" not in outside


def test_a_folded_title_is_read_as_written() -> None:
    made = small_session()
    for run in made.runs:
        run.scenario = "it's <b>"
    written = markdown_page(session_document(made))
    assert "settings of it's &lt;b&gt; on cpu</summary>" in written and "x27" not in written


def test_backquotes_do_not_end_a_code_block() -> None:
    written = markdown_page(session_document(hostile("```\n<b>x</b> ````")))
    fences = [token for token in MarkdownIt("commonmark").parse(written) if token.type == "fence"]
    assert all(token.info == "text" for token in fences)
    assert any("````" in token.content for token in fences)


def test_the_answer_is_the_cause_that_the_kept_change_cured() -> None:
    headline = DOCUMENTS["small"].answers[0][1]
    assert (headline.headline, headline.cost) == (
        "The DataLoader waits for storage",
        "54 % recoverable: 90.0 of the 167 ms of each step",
    )
    assert (
        "".join(words for words, _ in headline.fixes[0])
        == "use 2 DataLoader workers (num_workers 0 -> 2)  2.01x [1.94, 2.08]  faster: kept"
    )
    changed = small_session()
    changed.trials[0] = msgspec.structs.replace(changed.trials[0], changes_training=True)
    assert "alters what the model learns" in "".join(
        words for words, _ in session_document(changed).answers[0][1].fixes[0]
    )
    assert "alters what the model learns" in session_text(changed)
    last = "".join(words for words, _ in DOCUMENTS["cancelled"].answers[0][1].fixes[1])
    assert last == "compute in bf16 (precision fp32 -> bf16)  cancelled"
    assert DOCUMENTS["failed"].title == "Run 1 failed: out of memory at batch_size 64"
    assert DOCUMENTS["empty"].title == NOTHING
    assert DOCUMENTS["sweep"].title == "batch_size=4 is the best of 2 settings"


def test_a_change_that_helped_without_a_finding_is_the_answer() -> None:
    made = small_session()
    made.runs[0].findings = []
    found = session_document(made).answers[0][1]
    assert (
        found.headline == "Use 2 DataLoader workers: 2.01x [1.94, 2.08]  faster: kept"
        and "no rule" in found.cost
    )


def test_the_kind_of_the_device_is_on_the_page() -> None:
    assert DOCUMENTS["small"].labels == ["CPU: no number is GPU data"]
    simulated = small_session()
    simulated.runs[0].device = simulated.runs[1].device = "gpu:0"
    simulated.environment.devices = [Device("gpu:0", "simulated NVIDIA H100")]
    simulated.recording = True
    labels = session_document(simulated).labels
    assert labels == [
        "simulated GPU: no number is GPU data",
        "recording: a replay of an earlier session",
    ]
    page = Page(html_page(session_document(simulated))).text
    assert all(label in page for label in labels)


def test_a_value_that_was_not_measured_has_its_reason() -> None:
    made = small_session()
    for run in made.runs:
        run.series = {}
        run.summary.phases_ratio = {}
    for text in (
        Page(html_page(session_document(made))).text,
        markdown_page(session_document(made)),
    ):
        assert "n/a: the snapshot has no series of the throughput" in text
        assert "n/a: the parts of a step were not measured" in text
        assert "n/a: the device reports no power" in text


def test_changes_and_trials_stand_in_the_chart_of_the_throughput() -> None:
    text = html_page(DOCUMENTS["small"])
    wide = text.partition('<div class="wide">')[2].partition("</svg>")[0]
    assert wide.count('class="mark"') == 1 and wide.count('class="band"') == 2
    assert wide.count("<polyline") == 2, "a line for each run"
    assert "00:20 · num_workers 0 -&gt; 2: kept" in text


def test_a_gap_in_the_series_is_a_gap_in_the_line() -> None:
    made = small_session()
    key, data = next(iter(made.runs[0].series.items()))
    kept = [n for n, t in enumerate(data.t) if not 8 < t < 16]
    made.runs[0].series[key] = SeriesData(
        [data.t[n] for n in kept], [data.v[n] for n in kept], data.source
    )
    wide = (
        html_page(session_document(made)).partition('<div class="wide">')[2].partition("</svg>")[0]
    )
    assert wide.count("<polyline") == 3


def test_a_report_that_is_too_long_for_an_issue_tracker_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = DOCUMENTS["small"]
    whole = markdown_page(document)
    monkeypatch.setattr(markdown, "MAX_CHARACTERS", len(whole) - 1)
    shorter = markdown_page(document)
    assert len(shorter) < len(whole) and "Left out" in shorter
    assert "2.01x" in shorter


def test_the_waterfall_begins_at_the_attainable_rate_and_ends_at_the_reached_rate() -> None:
    made = small_session()
    parts = (
        TimePart("attainable", "at the hardware limit", 0.04),
        TimePart("data_wait", "data wait", 0.13, 70.0),
        TimePart("early", "early", -0.01, note="ahead"),
    )
    rates = (RatePair("samples", "samples", "samples/s", 96.0, 400.0),)
    made.runs[0].attainable = Attainable(
        rates, "compute", "measured here", "FLOPs / peak", parts=parts
    )
    made.runs[1].attainable = Attainable(reason="the peak of this device is not known")
    document = session_document(made)
    (section,) = (one for one in document.sections if one.title == "What this hardware could reach")
    fall = section.blocks[0]
    assert isinstance(fall, Waterfall) and fall.title == "before: 24 % of hardware limit"
    assert [(row.label, round(row.start_s, 3), row.duration, row.cost) for row in fall.rows] == [
        ("at the hardware limit", 0.0, "40.0 ms", ""),
        ("data wait", 0.04, "130 ms", "-70.0 samples/s"),
        ("early", 0.17, "-10.0 ms", ""),
        ("at the reached rate", 0.0, "160 ms", ""),
    ]
    page = Page(html_page(document))
    assert "-70.0 samples/s" in " ".join(page.chart_words)
    for text in (page.text, markdown_page(document)):
        assert "n/a: the peak of this device is not known" in text and "early: ahead" in text
    assert "| data wait | 130 ms | -70.0 samples/s |" in markdown_page(document)
