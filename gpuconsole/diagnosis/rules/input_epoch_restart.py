"""input.epoch_restart: each epoch starts new loader processes, and the step waits for them."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import Case, Finding, Interval, Rule, high_if, percent, short_of


class InputEpochRestart(Rule):
    id = "input.epoch_restart"
    title = "Every epoch restarts the loader processes"
    clear_title = "Epoch starts take little time"
    thresholds = (
        loader.RESTART,
        loader.EXCESS,
        loader.RESTARTS,
        loader.WAIT,
        loader.SAMPLER,
        loader.MAX_CALLS_PER_EPOCH,
    )
    knobs = ("persistent_workers",)
    reads = (
        *loader.ON_HOST, "loader.restart_ratio", "data_wait_ratio", "loader.restarts",
        "loader.calls_per_epoch", "loader.row_bytes", "loading.lock_ratio", "loader.sampler_ratio",
        "data_wait_excess_ratio", "data_wait_typical_ratio", "probe.loader_cpu_ratio",
        "probe.loader_receive_ratio", "cores", "threads", "probe.loader_plus_1_samples_per_s",
        "probe.loader_plus_4_samples_per_s", "step_s", "loader.receive_s", "loader.send_s",
        "host.others_cpu_ratio", "samples_per_step", "probe.loader_samples_per_s",
    )  # fmt: skip
    text = """Without persistent_workers, a DataLoader ends its processes with every epoch and
starts new processes: fork, import, first batch. The step waits meanwhile. The time is measured from
the end of one epoch to the first batch of the next. The rule fires if this time is most of the wait
for data, or most of the long waits where other waits are short. With persistent_workers only the
queue is empty when an epoch begins; then 8 % of the time is the threshold, as for other long waits.
Short epochs make it worse; a sampler without end avoids it.
The sampler runs in the training process. If the sampler takes half of the wait, because it sorts
all samples or draws them by weight, the finding names the sampler. More workers and
persistent_workers do not shorten that time. Tensor operations that make the order do, and so does
an order for several epochs. A program that calls iter(loader) in each step, as next(iter(loader))
does, makes each step an epoch: new processes, a new order of all samples, and batches that are
prepared and dropped. The finding then names the line.
Predicted: 1 / (1 - s). For the lower end, s is the share of the restarts minus the time to fill the
queue. For the upper end, s is the whole wait for data, because the batches after the first batch
are late too."""

    def judge(self, case: Case) -> Finding:
        if not loader.has_loader(case):
            return self.clear(summary="there is no DataLoader")
        case.value("loader.restart_ratio")
        if loader.renewing(case):
            return self._renewed(case)
        if loader.ordering(case):
            return self._ordered(case)
        ratio = loader.restart_ratio(case)
        if not int(case.knobs.get("num_workers", 0)):
            return self.clear(summary="there are no loader processes to restart")
        limit = loader.least_restart(case)
        evidence = case.evidence(("loader.restart_ratio", limit), "data_wait_ratio")
        evidence += case.if_known(("loader.restarts", loader.RESTARTS), "loader.sampler_ratio")
        cause = cause_of_data_wait(case)
        # where another cause explains the waits, a finding shown before closes at once
        if cause != "epoch_restart":
            return self.clear(0.0 if cause else short_of(ratio / limit), evidence)
        keep = not case.knobs.get("persistent_workers", True)
        summary = (
            f"{percent(ratio)} of the time passes between the end of an epoch and the first batch"
            " of the next epoch"
        )
        why = "the processes stay; only their queue is filled again"
        code = "DataLoader(dataset, ..., persistent_workers=True)"
        gain = Interval(
            1 / (1 - 0.7 * ratio),
            1 / (1 - min(0.95, 1.1 * max(ratio, case.value("data_wait_ratio")))),
        )
        stay = case.suggest({"persistent_workers": True}, gain, why, code)
        recoverable, confidence = (
            (0.9 if keep else 0.5) * ratio,
            high_if(keep and ratio >= 2 * limit),
        )
        return self.fires(
            ratio / limit,
            evidence,
            summary,
            recoverable=recoverable,
            confidence=confidence,
            suggestions=[stay],
        )

    def _renewed(self, case: Case) -> Finding:
        """The program makes an iterator for each batch. What that costs without workers is the
        sampler's time: the batch itself is loaded in any case."""
        workers = int(case.knobs.get("num_workers", 0))
        ratio = (
            case.value("loader.restart_ratio") if workers else case.get("loader.sampler_ratio", 0.0)
        )
        evidence = case.evidence(
            "loader.calls_per_epoch",
            ("loader.restart_ratio", loader.RESTART),
            "data_wait_ratio",
            "loader.restarts",
        )
        evidence += case.if_known("loader.sampler_ratio")
        if ratio < loader.RESTART:
            return self.clear(
                short_of(ratio / loader.RESTART),
                evidence,
                "a new iterator in each step costs little",
            )
        line = case.place("loader.calls_per_epoch")
        at_line = f", at {line}" if line is not None else ""
        starts = (
            f"starts {workers} worker process{'es' * (workers > 1)}, "
            if workers and not case.knobs.get("persistent_workers")
            else ""
        )
        summary = (
            "the program makes a new iterator of the DataLoader for each"
            f" batch{at_line}: {percent(ratio)} of the time. Each one"
            f" {starts}orders all samples"
            f"{' and drops the batches that were prepared' if workers else ''}. Keep one iterator:"
            " `for batch in loader`, or `batches = iter(loader)` once before the loop,"
            " `next(batches)` in it, and a new iterator at StopIteration only"
        )
        stay = None
        if starts:
            why = "second best: the processes stay; each step still begins with an empty queue"
            gain = Interval(
                1 / (1 - 0.5 * ratio),
                1 / (1 - min(0.95, max(ratio, case.value("data_wait_ratio")))),
            )
            stay = case.suggest(
                {"persistent_workers": True},
                gain,
                why,
                "DataLoader(dataset, ..., persistent_workers=True)",
            )
        title = "A new iterator of the DataLoader in every step"
        return self.fires(
            ratio / loader.RESTART,
            evidence,
            summary,
            recoverable=0.9 * ratio,
            confidence=high_if(bool(line)),
            title=title,
            suggestions=[stay],
        )

    def _ordered(self, case: Case) -> Finding:
        """The sampler takes the time, not the processes."""
        ordered, wait = case.value("loader.sampler_ratio"), case.value("data_wait_ratio")
        evidence = case.evidence(
            ("loader.sampler_ratio", loader.SAMPLER * wait),
            ("data_wait_ratio", loader.WAIT),
            ("loader.restarts", loader.RESTARTS),
        )
        summary = (
            f"at the start of each epoch the sampler orders the samples, {percent(ordered)} of the"
            " time. It runs in the training process, so neither more workers nor persistent_workers"
            " shorten that. Order the samples by tensor operations, or keep an order for several"
            " epochs"
        )
        level = max(1.0, ordered / max(1e-9, loader.SAMPLER * wait))
        title = "The sampler delays the start of every epoch"
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=0.8 * ordered,
            confidence=high_if(ordered >= 0.2),
            title=title,
        )
