"""`gpuconsole replay` on a screen."""

from __future__ import annotations

from typing import Any

import pytest

from gpuconsole.cli.commands.sessions import replay
from gpuconsole.cli.main import main


@pytest.mark.parametrize(
    ("words", "eco"),
    [
        (["replay", "session.jsonl", "--eco"], True),
        (["--eco", "replay", "session.jsonl"], True),
        (["replay", "session.jsonl"], False),
    ],
)
def test_a_replay_has_the_eco_option(
    monkeypatch: pytest.MonkeyPatch, words: list[str], eco: bool
) -> None:
    shown: list[dict[str, Any]] = []

    def run_app(api: object, **options: Any) -> int:
        shown.append(options)
        return 0

    monkeypatch.setattr(replay, "Replay", lambda *args: None)
    monkeypatch.setattr(replay, "why_no_terminal", lambda: None)
    monkeypatch.setattr("gpuconsole.tui.app.run_app", run_app)
    assert main(words) == 0
    assert [options.get("eco", False) for options in shown] == [eco]
