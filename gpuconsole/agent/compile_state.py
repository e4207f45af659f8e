"""What torch.compile has done so far in this process, from its own counters. Reading them costs microseconds."""

from __future__ import annotations

import torch._dynamo.utils as dynamo  # no public way to these counters (torch 2.13)

from gpuconsole.model.knobs.catalogue import Knobs


def compile_counters(knobs: Knobs) -> dict[str, float]:
    """Cumulative since the process began; empty where nothing is compiled.

    `compile.graphs`: graphs compiled, each shape that needed its own counted. `compile.graph_breaks`: places at which a graph had to
    end early. `compile.given_up`: functions that run uncompiled because they had reached the recompile limit, or failed.
    `compile.total_s`: time spent on all of it.
    """
    if knobs.get("torch_compile", "off") == "off":
        return {}
    frames = dynamo.counters["frames"]
    return {
        "compile.graphs": float(dynamo.counters["stats"]["unique_graphs"]),
        "compile.graph_breaks": float(sum(dynamo.counters["graph_break"].values())),
        "compile.given_up": float(frames["total"] - frames["ok"]),
        "compile.total_s": dynamo.calculate_time_spent()["total_wall_time"],
    }
