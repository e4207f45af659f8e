"""What a restart of a model server with other settings has changed, by the recorded hours before and after."""

from __future__ import annotations

import msgspec

from gpuconsole.model.experiments import Speedup, Verdict


class RestartEffect(msgspec.Struct, omit_defaults=True):
    """`t`: the restart, in Unix seconds. `settings`: those that the server reports as changed, in words. `before_s`, `after_s`: the minutes with traffic that were
    recorded on each side, in seconds. `load_before`, `load_after`: the middle half of the requests per second. `compared_ratio`: the share of the time after with a load that
    came before too. `effects`: of each figure, how much better it is after (latencies inverted), at the same load."""

    t: float
    settings: list[str] = []
    before_s: float = 0.0
    after_s: float = 0.0
    load_before: tuple[float, float] = (0.0, 0.0)
    load_after: tuple[float, float] = (0.0, 0.0)
    compared_ratio: float = 0.0
    effects: dict[str, Speedup] = {}
    verdict: Verdict = "undecided"
    reason: str = ""
    notes: list[str] = []
