"""host.numa_node: a process of the job may run on no core of the NUMA node of its GPU."""

from __future__ import annotations

from gpuconsole.diagnosis.rule import Case, Finding, Rule, Threshold

PROCESSES = Threshold(
    "processes",
    1,
    "",
    "a process that may use one core beside its GPU is not counted: the scheduler may choose it",
)


class HostNumaNode(Rule):
    id = "host.numa_node"
    title = "The process runs on cores of another NUMA node than its GPU"
    jobs_only = gpu_only = True
    clear_title = "The process may run on cores beside its GPU"
    thresholds = (PROCESSES,)
    reads = ("host.off_node_processes", "hw.numa_node", "is_gpu")
    text = """A machine with several NUMA nodes has cores and memory that are near to a GPU, and
others that are not. The agent reads on which cores the kernel lets the training thread run
(os.sched_getaffinity), and NVML names the node of the GPU and its cores. The finding is a note for
a job of which a process may run on no core of that node, as after a `taskset` or a CPU set for all
processes. What a process launches and copies then crosses the link between the nodes, also what its
DataLoader workers prepare. What that costs is known only when the job has run on the other cores:
torch's documentation speaks of 1 to 10 % in practice, and of jobs that gain nothing
(docs.pytorch.org, NUMA Binding). There is no conclusion where the driver names no node, or several.
What helps: `numactl --cpunodebind=N --membind=N` before the command, `torchrun --numa-binding=node`
from torch 2.9 on, or the option of the system that gives the cores."""
    ignore = "The cores of the GPU's node belong to other programs."

    def judge(self, case: Case) -> Finding:
        off_node, node = case.value("host.off_node_processes"), f"{case.value('hw.numa_node'):.0f}"
        evidence = case.evidence(("host.off_node_processes", PROCESSES), "hw.numa_node")
        if off_node < PROCESSES:
            return self.clear(0.0, evidence)
        several = int(case.knobs.get("nproc", 1)) > 1
        bind = (
            "`torchrun --numa-binding=node` (from torch 2.9 on)"
            if several
            else f"`numactl --cpunodebind={node} --membind={node}`"
        )
        what = f"{off_node:.0f} of the processes" if several else "the training thread"
        nodes = "the node of each GPU" if several else f"node {node}"
        summary = (
            f"{what} may run only on cores of another NUMA node than the GPU. What that costs is"
            f" not known before the job has run beside its GPU: start it with {bind}. If a"
            f" container or a batch system assigns the cores, request cores of {nodes}"
        )
        title = (
            f"{off_node:.0f} processes run on cores of another NUMA node than their GPU"
            if several and off_node > 1
            else ""
        )
        return self.note(off_node / PROCESSES, evidence, summary, confidence="high", title=title)
