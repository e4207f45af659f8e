"""input.cpu_transform: the loader computes, and no core is free for more workers."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent, speedup_interval

HALF_A_CORE = 0.5


class InputCpuTransform(Rule):
    id = "input.cpu_transform"
    title = "CPU transforms use all cores"
    clear_title = "CPU transforms are not the bottleneck"
    thresholds = (
        loader.WAIT,
        loader.SATURATED,
        loader.WORKER_GAIN,
        loader.HALF_OF_WAIT,
        loader.LARGE_PART,
        loader.PART_FIRST,
    )
    knobs = ("transform_cost",)
    reads = (
        *loader.ON_HOST, "loader.row_bytes", "loading.lock_ratio", *loader.OF_WAIT,
        "probe.loader_cpu_ratio", "cores", "loader.restart_ratio", "loader.restarts",
        "loader.sampler_ratio", "data_wait_typical_ratio", "data_wait_excess_ratio",
        "probe.loader_receive_ratio", "samples_per_step", "step_s", "threads",
        "probe.loader_plus_1_samples_per_s", "probe.loader_plus_4_samples_per_s",
        "loader.receive_s", "loader.send_s", "host.others_cpu_ratio", "probe.loader_samples_per_s",
        "probe.cached_pass_s", *loader.PARTS,
    )  # fmt: skip
    text = """The training thread waits for batches, the loading processes compute most of the time
(CPU seconds over wall time less run-queue delay), and by T' = max(T_compute, T_load / min(k, free
cores)) one more worker gains less than 15 % and less than half of the wait. Without workers and
with a free core, a worker gains little where sending and receiving a batch takes as long as making
it, or where other programs use the core. Less work per sample helps: cheaper or vectorised
transforms, images stored at training size, augmentation on the GPU, a cache of decoded samples; or
more cores. In loader workers, torch.set_num_threads(1) is right. In a job of your own, probe P16
samples the stacks of the loading processes: the finding names the transforms, functions and lines
that take a quarter of the loading or more, each with the speed of a step without it."""

    def judge(self, case: Case) -> Finding:
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if cause_of_data_wait(case) != "cpu_transform":
            return self.clear(
                level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT))
            )
        cpu = loader.loading_cpu_ratio(case)
        cost = int(case.knobs.get("transform_cost", 0))
        cores = loader.cores_here(case)
        free = cores - case.value("threads") >= 1 and not int(case.knobs.get("num_workers", 0))
        who = (
            f"Loading computes {percent(cpu)} of this time in the training process"
            if free
            else f"The transforms compute {percent(cpu)} of the time"
        )
        taken = cores * case.get("host.others_cpu_ratio", 0.0)
        longest = case.value("samples_per_step") / loader.one_worker_rate(case) > loader.compute_s(
            case
        ) + case.get("loader.receive_s", 0.0)
        if not free:
            limit = "no core is free for more workers"
        elif cores - case.value("threads") - taken < HALF_A_CORE:
            limit = "other programs on this machine leave no core for a worker"
        elif longest:
            limit = "a worker would gain little: loading takes longer than the rest of a step"
        else:
            limit = "a worker would gain little: sending and receiving a batch takes time too"
        summary = (
            f"a step waits {percent(wait)} of its time for data{loader.parts_in_words(case)}."
            f" {who}, and {limit}"
        )
        evidence = loader.evidence(case, loader.SATURATED)
        why = "half of the blur in the augmentation; the gain depends on its share of the transform"
        code = (
            "# make transforms cheaper: resize offline, decode to the training size, move"
            " augmentation to the GPU"
        )
        change = (
            case.suggest(
                {"transform_cost": cost // 2}, speedup_interval(1 / (1 - wait / 2), 0.8), why, code
            )
            if cost
            else None
        )
        title = "Loading takes time that a worker would not save" if free else ""
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=wait,
            confidence=high_if(cpu >= loader.SATURATED),
            suggestions=[change],
            title=loader.SLOW_PART if loader.part_gain(case) >= loader.PART_FIRST else title,
            for_prediction=loader.parts_wanted(case),
        )
