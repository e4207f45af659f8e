"""gpu.elementwise_membw: elementwise operations, run one by one, carry the same values to memory and back."""

from __future__ import annotations

from gpuconsole.diagnosis.case import Case
from gpuconsole.diagnosis.rule import Rule, Threshold
from gpuconsole.diagnosis.rules import _claims
from gpuconsole.diagnosis.suggest import suggest
from gpuconsole.model.finding import Evidence, Finding, Interval

SHARE = Threshold("share_of_step", 0.35, "ratio", "a third of the step: healthy GPTs and convnets spend 10-15 % so, an unfused chain 85 %")
CLASSES = ("elementwise", "normalization", "reduction")
"""What torch.compile fuses with its neighbours."""
LEFT = (2 / 9, 0.5)
"""Time of a fused chain over that of its operations one by one. n operations read n + 1 and write n times, fused they read and write once:
2/5 for two, 2/9 for four; arithmetic (exp, division) stays. Measured on a CPU: 0.17 for cheap operations, 0.36 with SiLU and norms."""


class GpuElementwiseMembw(Rule):
    id = "gpu.elementwise_membw"
    title = "Elementwise operations are not fused"
    clear_title = "Elementwise operations take little time"
    thresholds = (SHARE,)
    knobs = ("torch_compile",)
    text = """A short profiler window says which classes of kernels a pass consists of. Elementwise operations, norms and reductions do a few
FLOPs for every value that they fetch, so their time is memory traffic, and one after the other they fetch the same values again.
Utilisation reads 100 % all the while. torch.compile generates one kernel for such a chain. Where matrix products dominate it
gains little, and on a CPU it may lose: the trial decides. The gradient of an embedding table is filled elementwise, too; what
gpu.dense_embedding_grad claims is taken off."""

    def check(self, case: Case) -> Finding:
        passes = case.value("forward_ratio") + case.value("backward_ratio")
        if case.knobs.get("torch_compile") != "off":
            return self.clear(0.0, (), "compiled already, or nothing to compile")
        found = tuple(case.evidence(f"profile.{name}_ratio") for name in CLASSES)
        share = passes * sum(item.value for item in found) - _claims.embedding_claim(case)
        source = "their shares of a pass, of the step's forward and backward part"
        whole = Evidence("elementwise, normalization, reduction", share, "ratio", SHARE.value, source)
        evidence = (whole, *found, *case.if_known("profile.elementwise_bytes_per_s"))
        level = share / SHARE.value
        if level < 1:
            return self.clear(max(0.0, level), evidence)
        gain = Interval(1 / (1 - share * (1 - LEFT[1])), 1 / (1 - share * (1 - LEFT[0])))
        return self.fires(
            f"{share:.0%} of the step are operations with hardly any arithmetic, each of which reads from memory and writes to it",
            recoverable=1 - 1 / gain.middle,
            confidence="high" if share >= 0.5 else "medium",
            evidence=evidence,
            suggestions=[
                suggest(
                    case,
                    {"torch_compile": "default"},
                    gain,
                    "one kernel of many: it reads once and writes once; compiling takes some seconds first",
                    "model = torch.compile(model)",
                )
            ],
            level=level,
        )
