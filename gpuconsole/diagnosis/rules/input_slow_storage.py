"""input.slow_storage: the loader waits for storage; more workers overlap their waits."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import (
    Case,
    Finding,
    Rule,
    Threshold,
    high_if,
    percent,
    speedup_interval,
)

HELPS = Threshold(
    "helps",
    1.05,
    "x",
    "more workers are suggested from a predicted gain of 5 % on: less is not worth a trial",
)


class InputSlowStorage(Rule):
    id = "input.slow_storage"
    title = "The DataLoader waits for storage"
    clear_title = "The DataLoader does not wait for storage"
    thresholds = (loader.WAIT, loader.SLEEPS, HELPS, loader.LARGE_PART)
    knobs = ("num_workers",)
    reads = (
        *loader.ON_HOST, *loader.MEMORY, "loader.unsharded", "loader.row_bytes",
        "loading.lock_ratio", *loader.OF_WAIT, "loader.restart_ratio", "loader.restarts",
        "loader.sampler_ratio", "data_wait_typical_ratio", "data_wait_excess_ratio",
        "probe.loader_cpu_ratio", "probe.loader_receive_ratio", "samples_per_step", "step_s",
        "cores", "probe.loader_samples_per_s", "probe.loader_plus_4_samples_per_s", "threads",
        "loader.receive_s", "loader.send_s", "host.others_cpu_ratio",
        "probe.loader_plus_1_samples_per_s", "probe.cached_pass_s", *loader.PARTS,
    )  # fmt: skip
    text = """The training thread waits for batches while the processes that load them do not use
the CPU: they wait for disk, network or a lock. Probe P6 measures the loader alone: CPU seconds over
wall time less run-queue delay, below one half. A waiting worker needs no core, so there may be more
workers than cores: four for each core where the job has one process on the host, else one. The
finding suggests the smallest number that hides the wait with a reserve of 20 %, or reaches the
limit of the storage, and that fits into half of the available memory of the host. Throughput grows
in proportion to the workers until the storage reaches its limit; P6 measures that with four workers
more. Local copies, packed formats and read-ahead remove the cause.
Similar case: a transform that computes (input.cpu_transform) has a CPU share near 1."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if cause_of_data_wait(case) != "slow_storage":
            return self.clear(
                level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT))
            )
        suggested, wanted = loader.suggested_workers(case), loader.wanted_workers(case)
        cpu_ratio, present = loader.loading_cpu_ratio(case), int(case.knobs["num_workers"])
        speedup = max(1.0, loader.predicted(case, wanted)) if wanted > present else 1.0
        helps = suggested > present and loader.predicted(case, suggested) >= HELPS
        why_not_more = (
            loader.no_memory(case)
            if speedup >= HELPS
            else ". More workers would get no more from the storage"
        )
        summary = (
            f"a step waits {percent(wait)} of its time for data{loader.parts_in_words(case)}."
            " The loading processes wait for storage:"
            f" they use the CPU only {percent(cpu_ratio)} of the time{why_not_more}"
        )
        evidence = loader.evidence(case, loader.SLEEPS)
        why = "waiting workers need no core, so their waits overlap"
        code = (
            loader.worker_code(case, suggested)
            + "\n# or: stage the data on local disk, or pack small files into shards"
        )
        gain = (
            speedup_interval(loader.predicted(case, suggested), loader.PREDICTION_ERROR)
            if helps
            else None
        )
        change = case.suggest({"num_workers": suggested}, gain, why, code) if helps else None
        confidence = high_if(wait >= 0.2 and cpu_ratio < 0.4)
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=1 - 1 / speedup,
            confidence=confidence,
            suggestions=[change],
            for_prediction=loader.parts_wanted(case),
        )
