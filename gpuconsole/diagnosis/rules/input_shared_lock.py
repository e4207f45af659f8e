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
        *loader.ON_HOST, "data_wait_ratio", "loading.lock_ratio", "loader.row_bytes",
        "loader.restart_ratio", "loader.restarts", "loader.sampler_ratio",
        "data_wait_typical_ratio", "data_wait_excess_ratio", "probe.loader_cpu_ratio",
        "probe.loader_receive_ratio", "probe.loader_samples_per_s", "samples_per_step", "step_s",
        "cores", "threads", *loader.PARTS,
    )  # fmt: skip
    text = """The training thread waits for batches, and stack samples of the loading processes
(probe P16) show that the processes wait for a lock: a multiprocessing.Lock, a lock of a file
(flock, lockf), or a library's function named acquire. While one worker holds the lock, the others
wait, so the workers load one after the other. More workers would wait for the same lock:
num_workers changes nothing. What helps: hold the lock for less code, for example for a counter and
not for the read; open a file handle in each worker (in worker_init_fn or at the first sample), not
one handle that all workers share; give each worker its own copy of the file; use a format that
several processes can read at once (for example HDF5, if each process opens the file itself).
Predicted: a step without the waits for the lock, as far as the number of cores allows. If the lock
protects something that serves one reader at a time, such as a disk, the gain is smaller.
Similar case: a loader that waits for storage (input.slow_storage). There, the workers wait at the
same time."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if not loader.locking(case) or cause_of_data_wait(case) != "shared_lock":
            return self.clear(
                level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT))
            )
        locked, workers = case.value("loading.lock_ratio"), int(case.knobs["num_workers"])
        place = case.place("loading.lock_ratio")
        at_line = f", at {place.line}" if place is not None and place.line else ""
        gain = loader.without_lock(case)
        speedup = f" (speedup about {gain:.1f}x without these waits)" if gain is not None else ""
        summary = (
            f"a step waits {percent(wait)} of its time for data. The {workers} workers wait for one"
            f" lock in {percent(locked)} of loading{at_line}{speedup}. They load one after the"
            " other, and more workers would wait for the same lock. Hold the lock for less code, or"
            " open a file handle in each worker"
        )
        evidence = case.evidence(
            ("data_wait_ratio", loader.WAIT), ("loading.lock_ratio", loader.LOCKED)
        )
        evidence += case.if_known(
            "probe.loader_cpu_ratio", "probe.loader_samples_per_s", *loader.PARTS
        ) + case.evidence("step_s")
        recoverable = 1 - 1 / gain if gain is not None else wait * locked
        return self.fires(
            level, evidence, summary, recoverable=recoverable, confidence=high_if(locked >= SURE)
        )
