"""serve.tp_over_pcie: GPUs that share each layer exchange its results over PCIe."""

from __future__ import annotations

from gpuconsole.diagnosis.families import serving
from gpuconsole.diagnosis.rule import (
    MAX_SHARE,
    NOT_ON_GPU,
    Case,
    Finding,
    Rule,
    Suggestion,
    Threshold,
    percent,
    speedup_interval,
)

SHARE = Threshold(
    "share",
    0.20,
    "ratio",
    "the link is in use for 20 % of the time (survey I15: share of all-reduces in a step)",
)
FITS = 0.8
"""Largest share of a GPU's memory for weights; the rest is needed for keys and values."""
ERROR = 0.5


class ServeTpOverPcie(Rule):
    id = "serve.tp_over_pcie"
    title = "Tensor parallelism runs over PCIe"
    clear_title = "Tensor parallelism does not load PCIe"
    subject = "serving"
    thresholds = (SHARE,)
    knobs = ("tensor_parallel_size",)
    reads = (
        "is_gpu", "link.nvlink_joined", "link.pcie_peak_bytes_per_s", "link.pcie_rx_bytes_per_s",
        "link.pcie_tx_bytes_per_s", "server.weight_bytes", "hw.memory_bytes",
    )  # fmt: skip
    text = """With tensor parallelism every layer ends in two all-reduces over all GPUs, and no
computation hides them. They are cheap over NVLink; over PCIe they take a large part of each token's
time. The used share of the link's bandwidth under load is a lower bound of that part: small
exchanges wait for latency, which traffic does not show. The model 2 layers (2 (N-1)/N bytes /
bandwidth + latency) predicts the gain of half the GPUs. The rule suggests half the GPUs only if the
weights fit and the exchange costs more than the other half gains."""

    def judge(self, case: Case) -> Finding:
        if not case.has("is_gpu"):
            why = "the GPUs of this server are not known on this machine"
            return self.cant_tell(why, ("is_gpu",))
        size = int(case.knobs.get("tensor_parallel_size", 1))
        if size < 2 or case.knobs.get("server") == "embedded":
            return self.clear(summary="one GPU serves alone and exchanges nothing")
        if not case.on_gpu:
            return self.clear(summary=NOT_ON_GPU)
        if case.value("link.nvlink_joined"):
            return self.clear(
                0.0, case.evidence("link.nvlink_joined"), "NVLink connects these GPUs"
            )
        peak = case.value("link.pcie_peak_bytes_per_s")
        traffic = ("link.pcie_rx_bytes_per_s", "link.pcie_tx_bytes_per_s")
        share = max(map(case.value, traffic)) / peak
        limits = ((signal, SHARE * peak) for signal in traffic)
        evidence = case.evidence("link.nvlink_joined", *limits, "link.pcie_peak_bytes_per_s")
        level = share / SHARE
        if level < 1:
            return self.clear(
                level,
                evidence,
                "there is little traffic; the latency of small exchanges does not show in traffic",
            )
        share = min(MAX_SHARE, share)
        summary = (
            f"{size} GPUs without NVLink keep PCIe busy for {percent(share)} of the time. Several"
            " servers with fewer GPUs each give more tokens per GPU; pipeline parallelism exchanges"
            " far less"
        )
        return self.fires(
            level,
            evidence,
            summary,
            recoverable=share,
            confidence="medium",
            suggestions=[_smaller(case, size, share)],
        )


def _smaller(case: Case, size: int, share: float) -> Suggestion | None:
    """Suggest half the GPUs, if the model fits and the exchange costs more than the other half
    gains."""
    smaller = size // 2
    weights, memory = case.get("server.weight_bytes", 0.0), case.get("hw.memory_bytes", 0.0)
    if not weights or weights / smaller > FITS * memory:
        return None
    # a ring sends 2 (N-1)/N of the bytes; half the GPUs share the work
    exchange = share * ((smaller - 1) / smaller) / ((size - 1) / size)
    gain = 1 / ((1 - share) * size / smaller + exchange)
    if gain <= 1:
        return None
    why = "the exchange costs more than the other GPUs gain"
    return serving.restart(
        case, {"tensor_parallel_size": smaller}, speedup_interval(gain, ERROR), why
    )
