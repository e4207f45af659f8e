"""host.deterministic: the program allows deterministic algorithms only."""

from __future__ import annotations

from gpuconsole.diagnosis.families import host
from gpuconsole.diagnosis.rule import Case, Finding, Rule


class HostDeterministic(Rule):
    id = "host.deterministic"
    title = "Only deterministic algorithms are allowed"
    jobs_only = True
    clear_title = "Torch may choose the fastest algorithms"
    thresholds = (host.ON,)
    reads = ("mode.deterministic_ratio", "mode.cudnn_deterministic_ratio")
    text = """The program has called torch.use_deterministic_algorithms(True), or, on a GPU, has set
torch.backends.cudnn.deterministic. Torch's documentation: "Deterministic operations are often
slower than nondeterministic operations, so single-run performance may decrease for your model." The
first setting also fills new memory of torch.empty with a known value;
torch.utils.deterministic.fill_uninitialized_memory = False leaves that out. The finding is a note:
the cost of the setting in this job is not known. Only you know whether the program needs the same
numbers in each run. To measure the cost, run the job once without the setting."""
    ignore = "You need the same numbers in each run."

    def judge(self, case: Case) -> Finding:
        whole, cudnn = (
            case.value("mode.deterministic_ratio"),
            case.value("mode.cudnn_deterministic_ratio"),
        )
        evidence = case.evidence(
            ("mode.deterministic_ratio", host.ON), ("mode.cudnn_deterministic_ratio", host.ON)
        )
        level = max(whole, cudnn) / host.ON
        if level < 1:
            return self.clear(level, evidence)
        setting = (
            "torch.use_deterministic_algorithms(True)"
            if whole >= host.ON
            else "torch.backends.cudnn.deterministic = True"
        )
        summary = (
            f"{setting} is in force. Torch's documentation says that deterministic operations are"
            " often slower; what they cost here is not known. If"
        )
        summary += " you do not need the same numbers in each run, try the job without it"
        return self.note(level, evidence, summary, confidence="medium")
