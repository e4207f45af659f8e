"""A trial on a server that is watched: its limits change in random blocks, while its own clients
send the load."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence

import msgspec

from gpuconsole.engine.children.worker import WorkerGone, WorkerHandle
from gpuconsole.experiments.block_order import Block, order
from gpuconsole.experiments.statistics import BASELINE, CHANGED, MIN_PAIRS, resolution
from gpuconsole.experiments.traffic import MIN_READINGS, TrafficBlock, TrafficPair, block_of, judge
from gpuconsole.experiments.trial import MAX_PAIRS, USUAL, Outcome, TrialFailed, TrialLimits
from gpuconsole.model.experiments import Trial
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.run import COUNTS, Run
from gpuconsole.model.serving import LatencyBound
from gpuconsole.session.run import RunRecord

BLOCK_S = (4.0, 20.0)
"""Bounds of the shortest block, in seconds."""
REQUESTS_LONG = 2.0
ARRIVALS = 12.0
"""A block lasts as long as two requests, and as twelve requests take to come."""
LONGER = 1.5
MIN_ALIKE_SHARE = 0.75
"""Blocks grow by this factor after a pair, while fewer than so many pairs had the same load: a
longer block holds more of the ups and downs of the traffic."""
LATE_S = 20.0
"""A block that has so much less time than planned has lost its readings."""
LOOK_S = 1.0


class TrafficTrial:
    """One trial of new limits on a watched server. The limits of the start are back when it ends: a
    user's server keeps no change of ours."""

    def __init__(
        self,
        trial: Trial,
        run: Run,
        record: RunRecord,
        worker: WorkerHandle,
        on_update: Callable[[Trial], None],
        limits: TrialLimits = USUAL,
        objective: Sequence[LatencyBound] = (),
    ) -> None:
        """`objective`: the latencies that the user wants kept."""
        assert record.serving is not None
        self._cap_s, self._objective = limits.traffic_cap_s, objective
        seed = int.from_bytes(os.urandom(4)) if trial.order_seed is None else trial.order_seed
        trial = msgspec.structs.replace(
            trial, method="live traffic", order_seed=seed, limit_s=self._cap_s
        )
        self._trial, self._run, self._worker, self._on_update = trial, run, worker, on_update
        self._serving = record.serving
        self._values: dict[int, Knobs] = {
            BASELINE: {name: run.knobs[name] for name in trial.changes},
            CHANGED: dict(trial.changes),
        }
        self._block_s = block_s(run)
        self._measuring: asyncio.Task[Trial] | None = None
        self._latest = trial

    async def run(self) -> Outcome:
        """Measure, then give the server its limits back. A trial that cannot be measured ends as
        failed; nothing is raised for it."""
        self._on_update(self._trial)
        self._measuring = asyncio.create_task(self._measure())
        await asyncio.wait([self._measuring])
        if self._measuring.cancelled():
            trial = msgspec.structs.replace(
                self._latest, state="cancelled", verdict="undecided", reason=""
            )
        else:
            trial = self._measuring.result()
        try:
            error = (await self._worker.set_knobs(self._values[BASELINE], 0)).error
        except WorkerGone:  # the worker gives the limits back at its end
            error = None
        if error and trial.error is None:
            trial = msgspec.structs.replace(
                trial, error=f"the server has lost its limits of the trial by itself: {error}"
            )
        self._on_update(trial)
        return Outcome(trial)

    def cancel(self) -> None:
        """End the measurement. The trial ends as cancelled."""
        if self._measuring is not None:
            self._measuring.cancel()

    async def _measure(self) -> Trial:
        begun = time.monotonic()
        trial = self._trial
        assert trial.order_seed is not None
        pairs: list[TrafficPair] = []
        idle = 0
        reason = ""
        try:
            for planned in itertools.islice(order(trial.order_seed), MAX_PAIRS):
                blocks = {block.arm: await self._measured(block) for block in planned}
                found = {arm: block for arm, block in blocks.items() if block is not None}
                if len(found) == len(blocks):
                    pairs.append(TrafficPair(planned[0].arm, found))
                else:
                    idle += 1
                engines = int(self._run.facts.get("live_limit.engines", 1))
                judged = judge(
                    pairs, trial.changes, self._values[BASELINE], engines, self._objective
                )
                reason = judged.reason
                if judged.compared < MIN_ALIKE_SHARE * len(pairs):
                    self._block_s = min(BLOCK_S[1], LONGER * self._block_s)
                log_ratios, nulls = judged.pairs.log_ratios, judged.pairs.null_log_ratios
                trial = msgspec.structs.replace(
                    trial,
                    speedup=judged.effects.get(judged.figure),
                    figure=judged.figure,
                    effects={
                        name: effect
                        for name, effect in judged.effects.items()
                        if name != judged.figure
                    },
                    load_ratio=judged.load,
                    objective=judged.objective,
                    blocks=2 * len(pairs),
                    log_ratios=tuple(log_ratios),
                    null_log_ratios=tuple(nulls),
                    resolution_ratio=resolution(nulls, len(log_ratios)),
                    elapsed_s=time.monotonic() - begun,
                )
                self._latest = trial
                self._on_update(trial)
                if judged.verdict is not None:
                    return msgspec.structs.replace(
                        trial, state="done", verdict=judged.verdict, reason=reason
                    )
                if trial.elapsed_s > self._cap_s and len(pairs) + idle >= MIN_PAIRS:
                    break
        except (TrialFailed, WorkerGone) as error:
            return msgspec.structs.replace(
                trial,
                state="failed",
                verdict="undecided",
                error=str(error),
                elapsed_s=time.monotonic() - begun,
            )
        if idle > len(pairs):
            reason = (
                f"the load is too small: in {idle} of {idle + len(pairs)} pairs of blocks the"
                " server had next to nothing to do"
            )
        return msgspec.structs.replace(trial, state="done", verdict="undecided", reason=reason)

    async def _measured(self, block: Block) -> TrafficBlock | None:
        """Put the limits of the side in force, and return what the server does in the block. Raises
        TrialFailed, WorkerGone."""
        worker, wanted_s = self._worker, self._block_s * block.stretch
        worker.trial_steps.clear()
        answer = await worker.set_knobs(self._values[block.arm], block.arm)
        if answer.error:
            raise TrialFailed(answer.error)
        latest = time.monotonic() + 2 * wanted_s + LATE_S
        while True:
            steps = [
                step for step in worker.trial_steps if step.arm == block.arm and step.kind == COUNTS
            ]
            if len(steps) >= MIN_READINGS - 1 and sum(step.wall_s for step in steps) >= wanted_s:
                break
            if (outage := self._serving.outages.current) is not None:
                raise TrialFailed(f"the server does not answer: {outage.why}")
            if time.monotonic() > latest:
                raise TrialFailed(
                    "the metrics page could not be read in time, or the server has restarted"
                )
            try:
                async with asyncio.timeout(LOOK_S):
                    await worker.next_steps()
            except TimeoutError:
                continue
        first, last = steps[0].t - steps[0].wall_s, steps[-1].t
        try:
            return block_of(
                [state for state in self._serving.states if first - 1e-6 <= state.t <= last]
            )
        except ValueError as problem:
            raise TrialFailed(str(problem)) from None


def block_s(run: Run) -> float:
    """The seconds of the shortest block, by what is known of the requests."""
    e2e, rate = run.summary.e2e_s, run.summary.requests_per_s
    wanted = max(
        REQUESTS_LONG * (e2e.mean if e2e is not None else 0.0),
        ARRIVALS / rate.mean if rate is not None and rate.mean > 0 else 0.0,
    )
    return min(BLOCK_S[1], max(BLOCK_S[0], wanted))
