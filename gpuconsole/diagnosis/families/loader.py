"""Shared by the input rules: what each cause of a wait for data looks like, and what more workers
would gain."""

from __future__ import annotations

import math
from collections.abc import Callable

from gpuconsole.diagnosis.families import device
from gpuconsole.diagnosis.frameworks import code_for
from gpuconsole.diagnosis.rule import Case, Evidence, Threshold, percent, placed
from gpuconsole.diagnosis.signals.job import IN_TIME
from gpuconsole.model.job import EFFECTS, MAY_DIFFER
from gpuconsole.model.knobs.catalogue import CATALOGUE

KNOB = CATALOGUE["num_workers"]

WAIT = Threshold(
    "data_wait",
    0.10,
    "ratio",
    "TraceML and PyTorch profiler guidance: 5-10 % of a step is notable, 20 % is serious",
)
SLEEPS = Threshold(
    "sleeps",
    0.5,
    "ratio",
    "loading processes that use the CPU for less than half of their time wait for storage",
)
SATURATED = Threshold(
    "saturated",
    0.7,
    "ratio",
    (
        "loading processes that use the CPU for 70 % of their time compute (loadtune,"
        " datapath-doctor: 85-90 %)"
    ),
)
WORKER_GAIN = Threshold(
    "worker_gain", 1.15, "x", "there are too few workers if one more gains 15 %"
)
HALF_OF_WAIT = Threshold(
    "half_of_wait",
    0.5,
    "ratio",
    "... or if one more hides half of the wait: a wait of 12 % is worth 14 % at most",
)
PREDICTION_ERROR = 0.35
MORE_WORKERS = 4
"""If the loader waits for storage, probe P6 tries this number of additional workers."""
ADDS_UP = 0.8
"""Share of the sum of the workers' own rates. Below this share, the storage or the cores are the
limit."""
NEARLY_ALL = 0.95
RESTART = Threshold(
    "restart",
    0.03,
    "ratio",
    "3 % of the time between the end of an epoch and the first batch of the next epoch",
)
RESTARTS = Threshold("restarts", 2, "", "one restart does not show how often restarts come")
SAMPLER = Threshold(
    "sampler", 0.5, "ratio", "the sampler takes half of the wait for data, or of the long waits"
)
EXCESS = Threshold(
    "excess",
    0.08,
    "ratio",
    (
        "the parts of waits beyond the median wait add up to 8 % of step time (loadtune: p90 of 1.5"
        " medians)"
    ),
)
TYPICAL = Threshold(
    "typical", IN_TIME, "ratio", "the median step waits for less than 5 % of its time"
)
RECEIVES = Threshold(
    "receives",
    0.5,
    "ratio",
    "the training process receives for half of the time that the loader alone takes",
)


OF_WAIT = ("data_wait_ratio", *device.IDLE_SIGNALS)
"""What `waits` reads."""


def has_loader(case: Case) -> bool:
    """Whether a DataLoader makes the batches. Without one, the script's own lines make them: see
    host.python_overhead."""
    return "num_workers" in case.knobs


def waits(case: Case) -> bool:
    """Return whether a step waits for data. On a GPU, time with running kernels does not count as a
    wait."""
    wait = case.value("data_wait_ratio")
    return wait >= WAIT and not device.works_in(case, wait)


def _workers(case: Case) -> int:
    return int(case.knobs.get("num_workers", 0))


def receiving(case: Case) -> bool:
    """Whether receiving batches takes the training process more time than the computing of the
    loading processes."""
    if not waits(case) or not _workers(case):
        return False
    cpu = loading_cpu_ratio(case)
    return case.get("probe.loader_receive_ratio", 0.0) >= max(RECEIVES, cpu)


def sleeping(case: Case) -> bool:
    return waits(case) and loading_cpu_ratio(case) < SLEEPS


def lacking_workers(case: Case) -> bool:
    """Whether one more worker gains WORKER_GAIN, or half of what a step without its wait would
    gain. A wait just above WAIT is worth less than WORKER_GAIN, with however many cores."""
    if not waits(case):
        return False
    workers = wanted_workers(case)
    if workers == _workers(case):
        return False
    without_wait = 1 / (1 - min(0.99, case.value("data_wait_ratio")))
    return predicted(case, workers) >= min(
        float(WORKER_GAIN), 1 + HALF_OF_WAIT * (without_wait - 1)
    )


def restarting(case: Case) -> bool:
    """Whether ends of epochs cause most of the wait, or, if ordinary batches are in time, most of
    the long waits.

    Batches soon after an end of an epoch are late too.
    """
    if ordering(case):
        return True
    return (
        bool(_workers(case))
        and restart_ratio(case) >= least_restart(case).value
        and _most_of_wait(case, restart_ratio(case), 0.5)
    )


def batch_code(case: Case, batch: int) -> str:
    """The line that sets the size of a batch."""
    if case.is_job and not has_loader(case):
        return f"batch_size = {batch}   # where the program makes its batches"
    return f"DataLoader(dataset, batch_size={batch}, ...)"


MAX_CALLS_PER_EPOCH = Threshold(
    "calls",
    1.2,
    "",
    (
        "a loop over a loader calls next() at least twice for each iterator, also where an epoch is"
        " one batch"
    ),
)


def renewing(case: Case) -> bool:
    """Whether the program makes a new iterator for each batch: iter(loader) in every step."""
    return (
        case.get("loader.restarts", 0.0) >= RESTARTS
        and case.get("loader.calls_per_epoch", 2.0) <= MAX_CALLS_PER_EPOCH
    )


SMALL_ROW = Threshold(
    "row",
    65536.0,
    "B",
    "to copy a row of 64 KiB takes as long as to fetch it in Python: some microseconds",
)


def fetching_rows(case: Case) -> bool:
    """Whether the step waits while the loader fetches small rows of tensors one by one, and stacks
    them."""
    return waits(case) and 0 < case.get("loader.row_bytes", 0.0) <= SMALL_ROW


def ordering(case: Case) -> bool:
    """Whether the sampler, which runs in the training process, causes most of the wait at the
    starts of epochs: it sorts all samples, or draws by weight. Neither workers nor their processes
    that stay shorten that."""
    ordered = case.get("loader.sampler_ratio", 0.0)
    return waits(case) and ordered >= RESTART and _most_of_wait(case, ordered, SAMPLER.value)


def restart_ratio(case: Case) -> float:
    """The share of time between an epoch and the next epoch's first batch, less that of the
    sampler."""
    return max(0.0, case.get("loader.restart_ratio", 0.0) - case.get("loader.sampler_ratio", 0.0))


def _most_of_wait(case: Case, ratio: float, share: float) -> bool:
    """Whether what comes once in an epoch takes this share of the wait; or, if ordinary batches are
    in time, of the long waits."""
    if case.get("loader.restarts", 0.0) < RESTARTS:
        return False
    wait = case.value("data_wait_ratio")
    in_time = case.get("data_wait_typical_ratio", 1.0) < TYPICAL
    return ratio >= share * wait or (
        in_time and ratio >= share * case.get("data_wait_excess_ratio", wait)
    )


def least_restart(case: Case) -> Threshold:
    """The threshold for restarts. With persistent workers, an epoch only begins with an empty
    queue, which is a long wait like others."""
    return EXCESS if case.knobs.get("persistent_workers", False) else RESTART


def stalling(case: Case) -> bool:
    """Whether few waits are long, and ordinary batches are in time.

    With one worker, the median step does not wait if ordinary batches are in time. Several workers
    may deliver their batches in bursts, so the rate of the loader alone decides.
    """
    wait = case.value("data_wait_ratio")
    if not _workers(case) or wait < EXCESS or device.works_in(case, wait):
        return False
    if (
        case.get("data_wait_excess_ratio", 0.0) < EXCESS
        or case.value("data_wait_typical_ratio") >= TYPICAL
    ):
        return False
    eaten = case.value("samples_per_step") / compute_s(case)
    return _workers(case) == 1 or case.value("probe.loader_samples_per_s") > 1.1 * eaten


def loading_cpu_ratio(case: Case) -> float:
    """Share of the time in which the loading processes use the CPU (probe P6)."""
    return case.value("probe.loader_cpu_ratio")


# --- the number of workers that a finding suggests ------------------------------------------------

RESERVE = 1.2
"""Workers that hide a wait deliver 20 % more samples than the model uses without its wait."""
WAITING_ON_A_CORE = 4
"""A worker that waits for storage uses less than half a core: a job of one process may have four of
them for each core."""
WORKER_BYTES = 256e6
"""Memory of a worker where none was measured: what a fork writes, or a new process that imports
torch, with its batches."""
FREE_MEMORY = 0.5
"""More workers may take half of the memory that is available on this host."""
ON_HOST, MEMORY = ("host.processes",), ("loader.private_bytes", "host.memory_available_bytes")
"""Signals that say for how many workers this host has cores, and for how many it has memory."""


def processes_here(case: Case) -> float:
    """Return the number of processes of the job on this host: each has its own workers."""
    # of a job, `nproc` counts the processes of all hosts
    nproc = 1.0 if case.is_job else float(case.knobs.get("nproc", 1))
    return max(1.0, case.get("host.processes", nproc))


def cores_here(case: Case) -> float:
    """Return the cores of this host for each process of the job."""
    return case.value("cores") / processes_here(case)


def free_cores(case: Case) -> float:
    """Return the cores that the training threads of a process leave to its workers; at least one,
    which they then share."""
    return max(1.0, cores_here(case) - case.value("threads"))


def suggested_workers(case: Case, enough: Callable[[int], bool] | None = None) -> int:
    """Return the number of workers that a finding suggests: the smallest number that is `enough`,
    within the cores and the memory of this host. The present number where there is room for no
    more. `enough`: by default whether this number hides the wait (`hides_wait`)."""
    return _fewest(case, enough, min(most_workers(case), workers_in_memory(case)))


def wanted_workers(case: Case) -> int:
    """Return the number of workers that a finding would suggest if this host had memory for them
    all."""
    return _fewest(case, None, most_workers(case))


def workers_in_memory(case: Case) -> int:
    """Return the largest number of workers for which this host has memory; the maximum of the
    setting where the free memory is not known. Each process of the job gets as many more."""
    now = _workers(case)
    each = case.get("loader.private_bytes", 0.0) / now if now else 0.0
    available = case.get("host.memory_available_bytes", math.inf)
    more = FREE_MEMORY * available / ((each or WORKER_BYTES) * processes_here(case))
    return int(KNOB.high) if math.isinf(more) else now + int(more)


def most_workers(case: Case) -> int:
    """Return the largest number of workers for which this host has cores, for each process of the
    job; at most the maximum of the setting.

    Workers that compute use no more than the cores beside the training threads: with 51 % of a core
    each, two share one core. Workers that wait for storage need no core of their own; how much the
    storage gives to several processes at once is not measured, so these get one for each core.
    """
    cpu = case.get("probe.loader_cpu_ratio", 0.0)
    if cpu >= SLEEPS:
        most = min(max(1, int(cores_here(case))), round(free_cores(case) / cpu))
    else:
        most = max(
            MORE_WORKERS,
            int(cores_here(case)) * (WAITING_ON_A_CORE if processes_here(case) == 1 else 1),
        )
    return int(min(KNOB.high, most))


def hides_wait(case: Case, workers: int) -> bool:
    """Return whether these workers make batches as fast as the model uses them, with RESERVE, or as
    fast as the storage allows."""
    demand = RESERVE * case.value("samples_per_step") / compute_s(case)
    if loading_cpu_ratio(case) >= SLEEPS:
        return workers * one_worker_rate(case) >= demand
    return rate_of_waiting(case, workers) >= min(
        demand, NEARLY_ALL * rate_of_waiting(case, most_workers(case))
    )


def _fewest(case: Case, enough: Callable[[int], bool] | None, most: int) -> int:
    now = _workers(case)
    fits = enough or (lambda workers: hides_wait(case, workers))
    return next((workers for workers in range(now + 1, most) if fits(workers)), max(now, most))


def no_memory(case: Case) -> str:
    """Return the sentence for a loader that could use more workers, where this host has no memory
    for one; else empty."""
    return (
        ". This host has too little free memory for one more worker"
        if workers_in_memory(case) <= _workers(case) < most_workers(case)
        else ""
    )


def rate_of_waiting(case: Case, workers: int) -> float:
    """Samples/s of `workers` that wait for storage. Rates add up to the limit of the storage, which
    probe P6 finds with MORE_WORKERS more."""
    alone, tried = one_worker_rate(case), int(case.knobs["num_workers"]) + MORE_WORKERS
    together = case.get("probe.loader_plus_4_samples_per_s", math.inf)
    limited = together < ADDS_UP * alone * tried
    return min(alone * workers, together) if limited or workers <= tried else alone * workers


def one_worker_rate(case: Case) -> float:
    """Samples/s of one worker: from the probe with one worker more; if the loader waits for
    storage, from the present workers."""
    workers = int(case.knobs["num_workers"])
    if loading_cpu_ratio(case) < SLEEPS:
        return case.value("probe.loader_samples_per_s") / max(1, workers)
    return case.value("probe.loader_plus_1_samples_per_s") / (workers + 1)


def compute_s(case: Case) -> float:
    """Seconds of a step without its wait for data, from the account."""
    return max(case.value("step_s") * (1 - case.value("data_wait_ratio")), 1e-9)


def predicted(case: Case, workers: int) -> float:
    """Speed-up with `workers`: T' = max(T_compute + T_receive, (T_load + T_send) / k). T_receive
    and T_send count for a job without workers. Free cores limit workers that compute; the storage
    limits workers that wait. No step is shorter than its CPU time divided by the cores that other
    programs leave free."""
    cpu = loading_cpu_ratio(case)
    useful = min(workers, max(1.0, free_cores(case) / max(cpu, 0.05)))
    rate = min(one_worker_rate(case) * useful, rate_of_waiting(case, workers))
    receive_s, send_s = case.get("loader.receive_s", 0.0), case.get("loader.send_s", 0.0)
    load_s = case.value("samples_per_step") / rate + send_s / max(1.0, useful)
    busy_s = 0.0
    if send_s:
        cores = cores_here(case)
        others = cores * case.get("host.others_cpu_ratio", 0.0)
        work_s = (
            compute_s(case) * case.value("threads")
            + receive_s
            + send_s
            + cpu * case.value("samples_per_step") / one_worker_rate(case)
        )
        busy_s = work_s / max(1.0, cores - others)
    return case.value("step_s") / max(compute_s(case) + receive_s, load_s, busy_s)


def evidence(case: Case, cpu_threshold: Threshold) -> tuple[Evidence, ...]:
    """Evidence of every input finding: the wait, the loader's CPU share, its rate now and with more
    workers, and the pass without input (probe P1) where it was measured."""
    rates = case.evidence(
        ("data_wait_ratio", WAIT),
        ("probe.loader_cpu_ratio", cpu_threshold),
        "probe.loader_samples_per_s",
    )
    rates += case.if_known("probe.loader_plus_1_samples_per_s", "probe.loader_plus_4_samples_per_s")
    return (
        rates
        + case.if_known(*PARTS)
        + case.evidence("step_s")
        + case.if_known("probe.cached_pass_s")
    )


# --- the parts of loading (probe P16, in a job of the user's own) ---------------------------------

PARTS = ("loading.first_ratio", "loading.second_ratio", "loading.third_ratio")
WORTH_SAYING = 1.05
LARGE_PART = Threshold(
    "large_part",
    0.25,
    "ratio",
    "a part with a quarter of the loading is worth a change of the code",
)
PART_FIRST = Threshold(
    "part_first",
    1.25,
    "",
    (
        "the finding puts the largest part of loading first, if a step without this part would be"
        " 25 % faster than a step with more workers"
    ),
)
SLOW_PART = "One part of loading slows every step"
"""The title of a finding about loading that advises to change the largest part first."""


def parts_wanted(case: Case) -> tuple[str, ...]:
    """The signals of probe P16 that a finding about the loader still lacks."""
    return PARTS[:1] if case.is_job and not case.has(PARTS[0]) else ()


def parts_in_words(case: Case) -> str:
    """The parts of loading with most of its time, and the step without each, as sentences that
    follow another one; empty where no large part is known."""
    large = [name for name in PARTS if case.get(name, 0.0) >= LARGE_PART]
    return "".join(f". {_part_in_words(case, name)}" for name in large)


def part_gain(case: Case) -> float:
    """Speed-up of the step without the largest part of loading; 1 where no large part is known."""
    gains = [
        without_part(case, case.value(name)) for name in PARTS if case.get(name, 0.0) >= LARGE_PART
    ]
    return max((gain for gain in gains if gain is not None), default=1.0)


def _part_in_words(case: Case, name: str) -> str:
    share = case.value(name)
    place, gain = case.place(name), without_part(case, share)
    return (
        f"{placed(place) if place is not None else 'one part'} takes {percent(share)} of loading"
        + (
            f" (speedup about {gain:.1f}x without this part)"
            if gain is not None and gain >= WORTH_SAYING
            else ""
        )
    )


def without_part(case: Case, share: float) -> float | None:
    """Speed-up of the step without a part that takes `share` of the loading; None where the rate of
    the loader is not known.

    T' = T_compute + (1 - share) T_load without workers, else max(T_compute + T_receive, (1 - share)
    T_load).
    """
    if not case.has("probe.loader_samples_per_s"):
        return None
    step_s = case.value("step_s")
    load_s = case.value("samples_per_step") / case.value("probe.loader_samples_per_s") * (1 - share)
    if not _workers(case):
        return step_s / (compute_s(case) + load_s)
    receive_s = step_s * case.value("data_wait_ratio") * case.get("probe.loader_receive_ratio", 0.0)
    return step_s / max(compute_s(case) + receive_s, load_s)


# --- one lock for all workers (probe P16) ---------------------------------------------------------

LOCKED = Threshold(
    "locked",
    0.3,
    "ratio",
    (
        "if two workers wait for the lock 30 % of the time, more workers gain at most 25 %; with"
        " eight such workers, more gain nothing"
    ),
)
SEVERAL = 2
"""The least number of workers that can wait for each other."""


def locking(case: Case) -> bool:
    """Return whether the workers wait for one lock, so that more workers would only wait for the
    same lock. False if the workers keep all cores busy: then the cores are the limit."""
    if not waits(case) or _workers(case) < SEVERAL or case.get("loading.lock_ratio", 0.0) < LOCKED:
        return False
    gain = without_lock(case)
    return gain is None or gain >= WORTH_SAYING


def without_lock(case: Case) -> float | None:
    """Speed-up of the step where no worker waits for the lock; None where the rate of the loader is
    not known. The cores limit this speed-up, because the workers share the cores with the training
    thread."""
    gain = without_part(case, case.value("loading.lock_ratio"))
    if gain is None:
        return None
    load_cpu_s = (
        case.value("samples_per_step")
        * _workers(case)
        * loading_cpu_ratio(case)
        / case.value("probe.loader_samples_per_s")
    )
    busy_s = (load_cpu_s + case.value("threads") * compute_s(case)) / max(1.0, cores_here(case))
    return min(gain, case.value("step_s") / max(compute_s(case), busy_s))


def worker_code(case: Case, workers: int) -> str:
    """The call. Workers that stay over the epochs do not see what a program changes in its dataset,
    so only those of a job stay that stay already."""
    prefetch = case.knobs.get("prefetch_factor", 2)
    stay = (
        "persistent_workers=True, " if case.knobs.get("persistent_workers", not case.is_job) else ""
    )
    own = f"DataLoader(dataset, ..., num_workers={workers}, {stay}prefetch_factor={prefetch})"
    call = code_for(case.loop, {"num_workers": workers}) or own
    ahead = f"# {EFFECTS[MAY_DIFFER]}\n" if case.is_job else ""
    return f"{ahead}{SHARDING}\n{call}" if case.get("loader.unsharded", 0.0) else f"{ahead}{call}"


SHARDING = """# first, in the IterableDataset: each worker has a copy, and would load all samples
def __iter__(self):
    worker = torch.utils.data.get_worker_info()
    number, count = (worker.id, worker.num_workers) if worker is not None else (0, 1)
    for sample in itertools.islice(self.samples(), number, None, count):
        yield sample   # self.samples(): what __iter__ gives now
# then:"""
