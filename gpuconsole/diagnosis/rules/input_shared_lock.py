"""input.shared_lock: the workers wait for one lock, so they load one after the other."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent

SURE = 0.4


class InputSharedLock(Rule):
    id = "input.shared_lock"
    title = "The workers wait for one lock"
    clear_title = "The workers do not wait for each other"
    jobs_only = True
    thresholds = (loader.WAIT, loader.LOCKED)
    reads = (
        "data_wait_ratio", "loading.lock_ratio", "loader.row_bytes", "loader.restart_ratio", "loader.restarts", "loader.sampler_ratio",
        "data_wait_typical_ratio", "data_wait_excess_ratio", "probe.loader_cpu_ratio", "probe.loader_receive_ratio",
        "probe.loader_samples_per_s", "samples_per_step", "step_s", "cores", "threads", *loader.PARTS,
    )  # fmt: skip
    text = """The training thread waits for batches, and stack samples of the loading processes (probe P16) show that the processes wait for a lock: a
multiprocessing.Lock, a lock of a file (flock, lockf), or a library's function named acquire. While one worker has the lock, the others wait, so their waits add
up to one, and the workers load one after the other. More workers would wait for the same lock: num_workers changes nothing. What helps: a lock around less, for
example around a counter and not around the read; a file handle for each worker, opened in worker_init_fn or at the first sample, in place of one handle that all
share; a copy of the file for each worker; a format that several processes may read at once (HDF5 may: each process opens the file for itself).
Predicted: the step without the waits for the lock, as far as the cores allow. Where the lock is about something that serves one reader at a time, such as one
disk, the gain is smaller.
Similar case: a loader that waits for storage (input.slow_storage), whose workers wait side by side."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if not loader.locking(case) or cause_of_data_wait(case) != "shared_lock":
            return self.clear(level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT)))
        locked, workers = case.value("loading.lock_ratio"), int(case.knobs["num_workers"])
        line = case.signal("loading.lock_ratio").source.rpartition(" at ")[2]
        gain = loader.without_lock(case)
        speedup = f" (speedup about {gain:.1f}x without these waits)" if gain is not None else ""
        summary = (
            f"a step waits {percent(wait)} of its time for data. The {workers} workers wait for one lock in {percent(locked)} of loading, at {line}{speedup}."
            " They load one after the other, and more workers would wait for the same lock. Hold the lock for less, or give each worker a file handle of its own"
        )
        evidence = case.evidence(("data_wait_ratio", loader.WAIT), ("loading.lock_ratio", loader.LOCKED))
        evidence += case.if_known("probe.loader_cpu_ratio", "probe.loader_samples_per_s", *loader.PARTS) + case.evidence("step_s")
        recoverable = 1 - 1 / gain if gain is not None else wait * locked
        return self.fires(level, evidence, summary, recoverable=recoverable, confidence=high_if(locked >= SURE))
