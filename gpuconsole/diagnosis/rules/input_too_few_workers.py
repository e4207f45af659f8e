"""input.too_few_workers: the loader computes, and a core is free for one more worker."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent, speedup_interval


class InputTooFewWorkers(Rule):
    id = "input.too_few_workers"
    title = "Too few DataLoader workers"
    clear_title = "Enough DataLoader workers"
    thresholds = (
        loader.WAIT,
        loader.WORKER_GAIN,
        loader.HALF_OF_WAIT,
        loader.LARGE_PART,
        loader.PART_FIRST,
    )
    knobs = ("num_workers",)
    reads = (
        *loader.ON_HOST, *loader.MEMORY, "loader.unsharded", "loader.row_bytes",
        "loading.lock_ratio", *loader.OF_WAIT, "probe.loader_cpu_ratio", "cores", "threads",
        "probe.loader_plus_1_samples_per_s", "probe.loader_plus_4_samples_per_s", "step_s",
        "loader.receive_s", "loader.send_s", "host.others_cpu_ratio", "samples_per_step",
        "loader.restart_ratio", "loader.restarts", "loader.sampler_ratio",
        "data_wait_excess_ratio", "data_wait_typical_ratio", "probe.loader_receive_ratio",
        "probe.loader_samples_per_s", "probe.cached_pass_s", *loader.PARTS,
    )  # fmt: skip
    text = """The training thread waits for batches, and the processes that make them compute rather
than wait. Probe P6 drains the loader alone with the current number of workers and with one more. If
T' = max(T_compute, T_load / k) predicts a gain of 15 % or more for another worker, or half of the
wait, there are too few workers. The finding suggests the smallest number of workers that hides the
wait with a reserve of 20 %. The cores of the host limit this number: the processes of the job on
the host share its cores, and the training threads need some of them. The memory of the workers must
fit into half of the available memory of the host. In a job of your own, the parts of loading are
known. If a step without the largest part would be much faster than a step with more workers, change
this part first; the title of the finding then says so.
Similar cases: a loader that waits for storage (input.slow_storage), and cores that are all in use
(input.cpu_transform)."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if cause_of_data_wait(case) != "too_few_workers":
            return self.clear(
                level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT))
            )
        workers, wanted = loader.suggested_workers(case), loader.wanted_workers(case)
        now = int(case.knobs["num_workers"])
        place = f"with {now} worker{'s' if now > 1 else ''}" if now else "in the training process"
        summary = (
            f"a step waits {percent(wait)} of its time for data{loader.parts_in_words(case)}."
            f" Loading {place} is the bottleneck; a core is free{loader.no_memory(case)}"
        )
        evidence = loader.evidence(case, loader.SATURATED)
        why = "more batches are made while the model computes"
        code = loader.worker_code(case, workers)
        gain = (
            speedup_interval(loader.predicted(case, workers), loader.PREDICTION_ERROR)
            if workers > now
            else None
        )
        change = case.suggest({"num_workers": workers}, gain, why, code)
        by_workers, by_part = max(1.0, loader.predicted(case, wanted)), loader.part_gain(case)
        part_first = by_part >= loader.PART_FIRST * by_workers
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=1 - 1 / (by_part if part_first else by_workers),
            confidence=high_if(wait >= 0.2),
            suggestions=[change],
            title=loader.SLOW_PART if part_first else "",
            for_prediction=loader.parts_wanted(case),
        )
