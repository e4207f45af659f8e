"""`gpuconsole report` and `gpuconsole compare --html`, as the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuconsole.model.snapshot import encode
from tests.conftest import Cli
from tests.report.small_session import GOLDEN, small_session


@pytest.fixture
def session(tmp_path: Path) -> Path:
    path = tmp_path / "session.json"
    path.write_bytes(encode(small_session()))
    return path


def test_markdown_on_stdout(cli: Cli, session: Path) -> None:
    done = cli("report", str(session))
    assert (done.returncode, done.stderr, done.stdout) == (0, "", GOLDEN.read_text())


def test_both_files(cli: Cli, session: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    done = cli("report", str(session), "--html", str(page), "--markdown", str(text))
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"wrote {page}", f"wrote {text}"])
    assert text.read_text() == GOLDEN.read_text()
    assert (
        page.read_text().startswith("<!DOCTYPE html>") and "2.01x [1.94, 2.08]" in page.read_text()
    )


def test_two_runs_as_a_page(cli: Cli, session: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "page.html", tmp_path / "page.md"
    done = cli(
        "compare", f"{session}#1", str(session), "--html", str(page), "--markdown", str(text)
    )
    assert done.returncode == 0, done.stderr
    assert (
        "<h1>Throughput better: +136.5 % [" in page.read_text()
        and "num_workers 0 -&gt; 2" in page.read_text()
    )
    assert (
        text.read_text().startswith("# Throughput better: +136.5 %")
        and str(tmp_path) not in text.read_text()
    )


def test_a_session_without_a_kept_change_of_a_job_has_no_patch(
    cli: Cli, session: Path, tmp_path: Path
) -> None:
    done = cli("report", str(session), "--patch", str(tmp_path / "faster.patch"))
    assert (
        done.returncode == 1 and "no patch: no change was kept" in done.stderr and done.stdout == ""
    )
    assert not (tmp_path / "faster.patch").exists()


def test_mistakes(cli: Cli, session: Path, tmp_path: Path) -> None:
    for words, why in (
        (["report", "nowhere.json"], "nowhere.json: cannot be read"),
        (["report", str(session), "--html", str(tmp_path / "no" / "page.html")], "--html"),
        (
            [
                "compare",
                str(session),
                str(session),
                "--json",
                "--html",
                str(tmp_path / "page.html"),
            ],
            "--json",
        ),
    ):
        done = cli(*words)
        assert done.returncode == 2 and why in done.stderr and done.stdout == "", words
