"""serve.tp_over_pcie: GPUs that share each layer exchange its results over PCIe."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _gpu
from gpuconsole.diagnosis.suggest import speedup_interval, suggest
from gpuconsole.model.finding import Finding, Suggestion

SHARE = Threshold("share", 0.20, "ratio", "the link is in use for a fifth of the time (DIAGNOSIS I15: all-reduce share of a step)")
FITS = 0.8
"""Of a GPU's memory: weights beyond leave no room for keys and values."""
ERROR = 0.5


class ServeTpOverPcie(Rule):
    id = "serve.tp_over_pcie"
    title = "Tensor parallelism runs over PCIe"
    clear_title = "Tensor parallelism does not load PCIe"
    subject = "serving"
    thresholds = (SHARE,)
    knobs = ("tensor_parallel_size",)
    text = """With tensor parallelism every layer ends in two all-reduces over all GPUs, which nothing hides. Over NVLink they are cheap; over PCIe they
take a good part of each token's time. How much of the link's bandwidth is in use, under load, is a lower bound of that part: small
exchanges, which wait for latency, do not show in it. The model 2 layers (2 (N-1)/N bytes / bandwidth + latency) says what half as many
GPUs would gain; it is suggested only where that is more than those GPUs bring, and the weights fit."""

    def check(self, case: Case) -> Finding:
        if not _gpu.on_gpu(case):
            return self.not_on_gpu()
        size = int(case.knobs.get("tensor_parallel_size", 1))
        if size < 2 or case.knobs.get("server") != "vllm":
            return self.clear(0.0, summary="one GPU serves: nothing is exchanged")
        if case.value("link.nvlink_joined"):
            return self.clear(0.0, (case.evidence("link.nvlink_joined"),), "NVLinks join these GPUs")
        peak = case.value("link.pcie_peak_bytes_per_s")
        share = max(case.value("link.pcie_rx_bytes_per_s"), case.value("link.pcie_tx_bytes_per_s")) / peak
        evidence = (
            case.evidence("link.nvlink_joined"),
            case.evidence("link.pcie_rx_bytes_per_s", SHARE.value * peak),
            case.evidence("link.pcie_tx_bytes_per_s", SHARE.value * peak),
            case.evidence("link.pcie_peak_bytes_per_s"),
        )
        level = share / SHARE.value
        if level < 1:
            return self.clear(level, evidence, "little is exchanged; how long small exchanges wait does not show in traffic")
        share = min(_gpu.MOST, share)
        return self.fires(
            f"{size} GPUs without NVLink between them keep PCIe busy for {share:.0%} of the time: fewer GPUs for each model and several servers"
            " side by side give more tokens per GPU, pipeline parallelism exchanges far less",
            recoverable=share,
            confidence="medium",
            evidence=evidence,
            suggestions=[_smaller(case, size, share)],
            level=level,
        )


def _smaller(case: Case, size: int, share: float) -> Suggestion | None:
    """Half as many GPUs, if the model fits and the exchange costs more than they bring."""
    smaller = size // 2
    weights, memory = case.get("server.weight_bytes", 0.0), case.get("hw.memory_bytes", 0.0)
    if not weights or weights / smaller > FITS * memory:
        return None
    # a ring sends 2 (N-1)/N of the bytes; the work is shared by half as many
    exchange = share * ((smaller - 1) / smaller) / ((size - 1) / size)
    gain = 1 / ((1 - share) * size / smaller + exchange)
    if gain <= 1:
        return None
    return suggest(
        case,
        {"tensor_parallel_size": smaller},
        speedup_interval(gain, ERROR),
        "less to exchange than the other GPUs bring",
        f"vllm serve ... --tensor-parallel-size {smaller}",
    )
