"""Ways to distribute training over processes: replicated, sharded, or with split matrices in each
layer; and the plan for the present knobs."""

from __future__ import annotations

from gpuconsole.agent.world import World
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.training.parallel.plan import ParallelPlan


def check_precision(knobs: Knobs) -> None:
    """Raise ValueError, one line, for fp16 with tensor parallelism: GradScaler accepts no mixture
    of split and whole gradients."""
    if int(knobs.get("tensor_parallel", 1)) > 1 and knobs.get("precision") == "fp16":
        raise ValueError(
            "precision fp16 does not go with tensor_parallel: gradients of split and whole tensors"
            " cannot be scaled together; try bf16"
        )


def plan_for(knobs: Knobs, world: World) -> ParallelPlan:
    """The plan for `knobs`.

    Raises ValueError, one line, where knobs contradict each other. Imports torch.distributed only
    where necessary.
    """
    sharding, matrices = str(knobs.get("sharding", "none")), int(knobs.get("tensor_parallel", 1))
    if world.size == 1 and (sharding != "none" or matrices > 1):
        wanted = f"sharding {sharding}" if sharding != "none" else f"tensor_parallel {matrices}"
        raise ValueError(f"{wanted} needs several processes: --set nproc=2")
    check_precision(knobs)
    if matrices > 1:
        if world.size % matrices:
            raise ValueError(
                f"tensor_parallel {matrices} does not divide the {world.size} processes"
            )
        if sharding in ("ddp", "zero1"):
            raise ValueError(
                f"tensor_parallel goes with sharding none, zero2 or zero3, not {sharding}"
            )
        if sharding == "none" and world.size != matrices:
            raise ValueError(
                f"tensor_parallel {matrices} on {world.size} processes needs sharding zero2 or"
                " zero3 for the rest"
            )
    if sharding in ("ddp", "zero1"):
        from gpuconsole.workloads.training.parallel.replicated import Replicated

        return Replicated(world, zero1=sharding == "zero1")
    if sharding != "none" or matrices > 1:
        from gpuconsole.workloads.training.parallel.sharded import Sharded

        return Sharded(world, sharding, matrices)
    return ParallelPlan(world)
