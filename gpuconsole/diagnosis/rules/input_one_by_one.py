"""input.one_by_one: the loader fetches small rows of tensors one by one and stacks them again."""

from __future__ import annotations

from gpuconsole.diagnosis.families import loader
from gpuconsole.diagnosis.precedence import cause_of_data_wait
from gpuconsole.diagnosis.rule import Case, Finding, Rule, high_if, percent


class InputOneByOne(Rule):
    id = "input.one_by_one"
    title = "Rows of tensors are fetched one by one"
    clear_title = "Samples are not rows of tensors that are fetched one by one"
    thresholds = (loader.WAIT, loader.SMALL_ROW)
    reads = (
        *loader.OF_WAIT, "loader.row_bytes", "samples_per_step", "loader.restart_ratio",
        "loader.restarts", "loader.sampler_ratio", "data_wait_excess_ratio",
        "data_wait_typical_ratio", "step_s", "probe.loader_samples_per_s",
    )  # fmt: skip
    text = """The dataset is a torch.utils.data.TensorDataset, whose tensors are in memory. The
DataLoader asks it for each row of a batch: an index in Python for each tensor, and a stack of all
rows. One index with all numbers of the batch gives the same tensors at once. Workers would fetch
one by one too, and send each batch to the training process. What helps: batches of indices as the
samples of the loader, with batch_size=None, so that nothing is stacked. The order of the samples is
the sampler's, as before."""
    ignore = "The dataset becomes one that reads and transforms each sample by itself."

    def judge(self, case: Case) -> Finding:
        if not loader.has_loader(case):
            return self.clear(summary="there is no DataLoader")
        wait = case.value("data_wait_ratio")
        level = wait / loader.WAIT
        if not case.get("loader.row_bytes", 0.0):
            return self.clear(0.0, summary="the samples are no rows of a TensorDataset")
        if not loader.fetching_rows(case) or cause_of_data_wait(case) != "one_by_one":
            return self.clear(
                level if level < 1 else 0.0, case.evidence(("data_wait_ratio", loader.WAIT))
            )
        evidence = case.evidence(
            ("data_wait_ratio", loader.WAIT),
            ("loader.row_bytes", loader.SMALL_ROW),
            "samples_per_step",
            "step_s",
        )
        batch = int(case.knobs.get("batch_size") or case.value("samples_per_step"))
        summary = (
            f"a step waits {percent(wait)} of its time for data. The DataLoader fetches {batch}"
            " rows of a TensorDataset one by one, and stacks them. Index a batch at once:"
            f" DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), {batch},"
            " drop_last=False), batch_size=None), with SequentialSampler in place of RandomSampler"
            " where shuffle is False"
        )
        return self.fires(
            level, evidence, summary, recoverable=0.8 * wait, confidence=high_if(wait >= 0.2)
        )
