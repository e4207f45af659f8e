"""Ranks the flags of a watched server under a latency objective: by a small model of its batch, from the server's own figures.

The model takes the requests in the server (running and waiting) as given, as with clients that wait for their answers. With another limit of sequences, R' of them run. The time
between tokens grows with the batch between not at all (the weights are read once for all) and in proportion (all work is of the requests): where the number of
running requests has varied, its course says how much, else both ends are shown. By Little's law the rate is R' over the time of a request, and the wait is the queue over the rate.
A percentile moves with its mean. That is coarse: it ranks changes and proves none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gpuconsole.diagnosis.families.serving import restart_code
from gpuconsole.model.finding import Finding
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import Distribution, Run
from gpuconsole.model.serving import LatencyBound

NEEDED = {
    "server.requests_running": "the number of running requests",
    "server.requests_waiting": "the number of waiting requests",
    "server.itl_s": "the time between tokens",
    "server.ttft_s": "the time to the first token",
    "server.sequence_limit": "the limit of running sequences",
}
FACTORS = (0.25, 0.5, 0.75, 1.5, 2.0, 4.0, 8.0, 16.0)
FULL = 0.95
LEAST_POINTS, LEAST_SPREAD = 20, 0.2
EITHER = (0.0, 1.0)
"""How much of the time between tokens grows with the batch, where nothing tells."""
AROUND = 0.15
"""The error of that share where the course of the run tells it."""


class Advice(NamedTuple):
    """One change of a flag. `tokens`: tokens/s over those now, low and high. `bounds`: for each bound of the objective, the figure now and its predicted low and high. `meets`: `unknown`
    where the model has no prediction."""

    changes: Knobs
    why: str
    meets: Literal["yes", "perhaps", "no", "unknown"] = "unknown"
    tokens: tuple[float, float] | None = None
    bounds: tuple[tuple[LatencyBound, float, float, float], ...] = ()
    code: str = ""

    @property
    def rank(self) -> tuple[int, float, float]:
        """Lower is better: first what meets the objective, then what misses it by least, then more tokens."""
        excess = max([0.0, *(math.log(math.sqrt(low * high) / bound.limit_s) for bound, _, low, high in self.bounds)])
        tokens = math.sqrt(self.tokens[0] * self.tokens[1]) if self.tokens else 0.0
        return (("yes", "perhaps", "unknown", "no").index(self.meets), excess, -tokens)


class Advised(NamedTuple):
    """`now`: for each bound of the objective the present figure; None: not reported. `lacks`: why the model predicts nothing; empty where it does."""

    advice: list[Advice]
    now: list[tuple[LatencyBound, float | None]]
    lacks: str = ""


def advise(run: Run, objective: Sequence[LatencyBound], course: Sequence[tuple[float, float]] = ()) -> Advised:
    """All changes worth a restart, the best first. `course`: running requests and the time between tokens, at several times."""
    now = [(bound, _present(run, bound)) for bound in objective]
    signals = {name: signal.value for name, signal in run.signals.items()}
    lacks = [words for name, words in NEEDED.items() if name not in signals]
    predicted = [] if lacks else _of_limits(run, signals, objective, growth(course))
    others = [
        Advice(suggestion.changes, f"{finding.title}: {suggestion.why}", code=suggestion.code)
        for finding in _firing(run)
        for suggestion in finding.suggestions
        if not any(entry.changes.keys() == suggestion.changes.keys() for entry in predicted)
    ]
    return Advised(sorted([*predicted, *others], key=lambda entry: entry.rank), now, f"not reported: {', '.join(lacks)}" if lacks else "")


def growth(course: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The share of the time between tokens that grows with the batch, low and high (least squares over the course of the run)."""
    course = [(running, itl_s) for running, itl_s in course if running > 0 and itl_s > 0]
    if len(course) < LEAST_POINTS:
        return EITHER
    running, times = ([point[place] for point in course] for place in (0, 1))
    if statistics.pstdev(running) < LEAST_SPREAD * statistics.fmean(running):
        return EITHER
    slope, _ = statistics.linear_regression(running, times)
    share = min(1.0, max(0.0, slope * statistics.fmean(running) / statistics.fmean(times)))
    return max(0.0, share - AROUND), min(1.0, share + AROUND)


def _of_limits(run: Run, now: Mapping[str, float], objective: Sequence[LatencyBound], share: tuple[float, float]) -> list[Advice]:
    """The advice about the limit of sequences, for several values of it."""
    limit, running, waiting = now["server.sequence_limit"], now["server.requests_running"], now["server.requests_waiting"]
    inside, found = running + waiting, list[Advice]()
    present_bounds = [(bound, _present(run, bound)) for bound in objective]
    for factor in FACTORS:
        value = max(1, round(limit * factor))
        most = running * FULL / now["server.kv_cache_usage_ratio"] if now.get("server.kv_cache_usage_ratio") else math.inf
        then = min(float(value), inside, max(running, most) if value > limit else math.inf)
        if value == limit or running <= 0 or abs(then - running) < 0.05 * running:
            continue  # the other limit would not bind, or the cache does
        ends = [_with(now, then, part) for part in share]
        bounds = []
        for bound in objective:
            present, mean = _present(run, bound), _with(now, running, 1.0)[bound.figure]  # as the model has it: only its changes count
            if present is not None and mean > 0:
                figures = sorted(present * end[bound.figure] / mean for end in ends)
                bounds.append((bound, present, figures[0], figures[1]))
        rates = sorted(end["tokens"] for end in ends)
        known = len(bounds) == len(objective)
        meets: Literal["yes", "perhaps", "no", "unknown"] = (
            "unknown" if not known else "yes" if all(high <= bound.limit_s for bound, _, _, high in bounds)
            else "perhaps" if all(low <= bound.limit_s for bound, _, low, _ in bounds) else "no"
        )  # fmt: skip
        if rates[1] < 1.02 and all(present is not None and present <= bound.limit_s for bound, present in present_bounds):
            continue  # where the objective is kept, and without one, only more tokens are worth a restart
        why = f"{then:.0f} requests run in place of {running:.0f}, and {max(0.0, inside - then):.0f} wait in place of {waiting:.0f}"
        code = restart_code(str(run.settings.get("server", "")), "max_num_seqs", value)
        found.append(Advice({"max_num_seqs": value}, why, meets, (rates[0], rates[1]), tuple(bounds), code))
    best: dict[str, Advice] = {}
    for entry in sorted(found, key=lambda entry: entry.rank):
        best.setdefault("up" if int(entry.changes["max_num_seqs"]) > limit else "down", entry)
    return list(best.values())


def _with(now: Mapping[str, float], then: float, share: float) -> dict[str, float]:
    """Mean seconds of the latencies, and tokens/s over those now, if `then` requests run."""
    running, waiting, itl_s = now["server.requests_running"], now["server.requests_waiting"], now["server.itl_s"]
    queue_s = now.get("server.queue_s", 0.0)
    first_s = max(0.0, now["server.ttft_s"] - queue_s)
    decode_s = max(0.0, now.get("server.e2e_s", now["server.ttft_s"] + 50 * itl_s) - now["server.ttft_s"])
    slower = 1 + share * (then / running - 1)
    before_s, after_s = first_s + decode_s, (first_s + decode_s) * slower
    rate = (then / after_s) / (running / before_s) if before_s > 0 else 1.0
    wait_s = max(0.0, running + waiting - then) * after_s / then
    return {"itl_s": itl_s * slower, "ttft_s": wait_s + first_s * slower, "e2e_s": wait_s + after_s, "tokens": rate}


def _present(run: Run, bound: LatencyBound) -> float | None:
    distribution: Distribution | None = getattr(run.summary, bound.figure)
    return getattr(distribution, bound.statistic) if distribution is not None else None


def _firing(run: Run) -> list[Finding]:
    return [finding for finding in run.findings if finding.state == "fires"]


def restart_words(words: Sequence[str], changes: Knobs, flag: str) -> list[str]:
    """The command line `words` of a server with one setting changed: the flag takes the new value, or is added. Keys are left out."""
    ((_, value),) = changes.items()
    found, result, skip = False, list[str](), False
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name.replace("_", "-") == flag and name.startswith("--"):
            found = True
            result += [f"{flag}={value}"] if equals else [flag, str(value)]
            skip = not equals and not following.startswith("--")
        elif "key" in name or "token" in name.replace("batched-tokens", "").replace("batched_tokens", "").replace("tokenizer", ""):
            result += [f"{name}=..."] if equals else [name, "..."] if name.startswith("--") else [word]
            skip = name.startswith("--") and not equals and not following.startswith("--")
        else:
            result.append(word)
    return result if found else [*result, flag, str(value)]
