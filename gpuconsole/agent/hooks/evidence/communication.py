"""What DistributedDataParallel (DDP) itself times of its exchanges of gradients: how long the step
waits after its own computation.

DDP has a timer (torch/csrc/distributed/c10d/reducer_timer.hpp and logger.cpp). In its first ten
iterations, and then in each 100th, it notes when the backward computation begins and ends, and when
the exchange begins and ends. The exchange outlasts the computation by `backward_comm_time -
backward_compute_comm_overlap_time`: computation does not hide this part. The agent only reads the
last of these times.

A reading takes 10 µs between two steps (up to 40 µs with cold caches), at most ten times a second,
and waits for nothing. An iteration that is timed takes 10 to 20 µs more on a CPU. There the agent
lets DDP time more iterations, about one in TIMED_EVERY_S seconds. On a GPU it never does: at the
start of the pass after such an iteration, DDP waits for the events of that iteration.
"""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from ...clock import now
from ...forks import in_forked_children
from ...protocol import Exchange, Knobs
from ..borders.border import Border, NotedCall
from ..calls import segment
from ..guard import switch
from ..recorder import COMM
from ..watch import recorder, watch

FIRST = 10
"""DDP times each of its first iterations."""
TORCH_RATE = 100
RATES = tuple(3**power for power in range(8))
"""Iterations from one that is timed to the next. Each divides the next one, so that processes with
other rates have timed iterations in common. None shares a factor with 10 or 100, the usual
distances of logging and saving."""
TIMED_EVERY_S = 0.05
MAX_KEPT_EXCHANGES = 200
NS = 1e-9
HOOKS_OF_TORCH = {
    "": "none", "allreduce_hook": "none", "BuiltinCommHookType.ALLREDUCE": "none",
    "bf16_compress_hook": "bf16", "fp16_compress_hook": "fp16",
    "BuiltinCommHookType.FP16_COMPRESS": "fp16", "powerSGD_hook": "powersgd",
    "batched_powerSGD_hook": "powersgd",
}  # fmt: skip
"""The knob `comm_hook` by the name that DDP's logger has of a hook."""


class Replica:
    """One DDP module of the program, and what is known of its exchanges. `number`: in the order in
    which the program made them."""

    def __init__(self, number: int, module: Any) -> None:
        self.number = number
        self.ref = weakref.ref(module)
        self.bytes = self.buffer_bytes = 0.0
        """The bytes of the gradients, and of the buffers that process 0 sends before each forward
        pass."""
        self.buckets = self.first_buckets = 0
        """Into how many pieces the gradients are divided, and were in the first iteration."""
        self.hook: str | None = None
        """The knob `comm_hook`; None for a hook of the program's own."""
        self._rate = TORCH_RATE
        self._iteration = self._ended = 0
        self._first: tuple[int, int] | None = None
        self._before: tuple[int, float] | None = None
        self._may_set_rate = getattr(module, "device_type", "") == "cpu"
        self.per_step = 1.0
        """Exchanges in a step."""

    def newest(self) -> Exchange | None:
        """The last iteration that DDP has timed; None where it is known already, or where its times
        are those of an earlier one."""
        module = self.ref()
        if module is None or module.logger is None:
            return None
        record = module.logger._get_ddp_logging_data()
        times = record.ints_map
        iteration = times.get("iteration", 0)
        if iteration == self._iteration:
            return None
        if iteration <= FIRST or self.hook is None:
            self._describe(times, record.strs_map)
        self._iteration = iteration
        ended, before = times.get("backward_comm_time_end", 0), self._ended
        self._ended = ended
        self._count(iteration)
        self._choose_rate(iteration)
        compute, comm = times.get("backward_compute_time", 0), times.get("backward_comm_time", 0)
        exposed = comm - times.get("backward_compute_comm_overlap_time", 0)
        # the pass had no backward pass
        if ended == before or compute <= 0 or comm <= 0 or exposed < 0:
            return None
        forward = (
            0
            if module.broadcast_buffers and module.modules_buffers
            else times.get("forward_compute_time", 0)
        )
        seconds = (round(time * NS, 9) for time in (forward, compute, comm, exposed))
        return Exchange(self.number, iteration, recorder.index, *seconds)

    def _describe(self, numbers: dict[str, int], texts: dict[str, str]) -> None:
        module = self.ref()
        if module is not None and module.broadcast_buffers:
            self.buffer_bytes = float(
                sum(buffer.numel() * buffer.element_size() for buffer in module.modules_buffers)
            )
        self.bytes = float(numbers.get("total_parameter_size_bytes", 0))
        self.first_buckets = _pieces(texts.get("bucket_sizes", ""))
        self.buckets = _pieces(texts.get("rebuilt_bucket_sizes", "")) or self.first_buckets
        self.hook = HOOKS_OF_TORCH.get(texts.get("comm_hook", ""))
        if texts.get("torch_distributed_debug") == "DETAIL":  # torch prints each time that it takes
            self._may_set_rate = False

    def _count(self, iteration: int) -> None:
        if self._first is None:
            self._first = iteration, recorder.index
        elif recorder.index > self._first[1]:
            self.per_step = (iteration - self._first[0]) / (recorder.index - self._first[1])

    def _choose_rate(self, iteration: int) -> None:
        t = now()
        if self._before is not None and self._may_set_rate and iteration > self._before[0]:
            each_s = (t - self._before[1]) / (iteration - self._before[0])
            rate = next((rate for rate in RATES if rate * each_s >= TIMED_EVERY_S), RATES[-1])
            self.set_rate(rate)
        self._before = iteration, t

    def set_rate(self, rate: int) -> None:
        """DDP times each iteration whose number `rate` divides."""
        if self._may_set_rate and rate != self._rate:
            self._ask(rate)
            self._rate = rate

    def _ask(self, rate: int) -> None:
        module = self.ref()
        if module is not None:
            module.reducer._set_ddp_runtime_logging_sample_rate(rate)


def _pieces(sizes: str) -> int:
    return len([size for size in sizes.split(",") if size.strip()])


class DdpExchanges:
    """The exchanges of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """As in a process that has made no DDP module yet."""
        self.replicas: list[Replica] = []
        """Of the modules that the program still has."""
        self._made = 0
        """DDP modules that were made so far."""
        self._new: list[Exchange] = []

    def made(self, module: Any) -> None:
        """The program has made a DDP module."""
        if not self._made:
            switch.undo.append(self.give_back)
        self.replicas = [replica for replica in self.replicas if replica.ref() is not None]
        self.replicas.append(Replica(self._made, module))
        self._made += 1

    def look(self) -> None:
        """Read what DDP has timed since the last call. Call it between two steps."""
        if self.replicas:  # names of torch that are not public: another version may lack them
            switch.attempt("communication.look", self._look)

    def _look(self) -> None:
        for replica in self.replicas:
            exchange = replica.newest()
            if exchange is not None and len(self._new) < MAX_KEPT_EXCHANGES:
                self._new.append(exchange)

    def take(self) -> list[Exchange]:
        """The exchanges that were read since the last call."""
        new, self._new = self._new, []
        return new

    def give_back(self) -> None:
        """DDP times as many iterations as before."""
        for replica in self.replicas:
            replica.set_rate(TORCH_RATE)

    def _in_use(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.bytes and replica.ref() is not None]

    def facts(self) -> dict[str, float]:
        """Return the bytes of gradients that an exchange sends, the bytes of the buffers that are
        sent before each forward pass, and the number of gradient pieces now and in the first
        iteration. Empty before the first readings."""
        used = self._in_use()
        if not used:
            return {}
        return {
            "exchange.bytes": sum(replica.bytes for replica in used),
            "exchange.buffer_bytes": sum(replica.buffer_bytes for replica in used),
            "exchange.buckets": float(sum(replica.buckets for replica in used)),
            "exchange.first_buckets": float(sum(replica.first_buckets for replica in used)),
        }

    def knobs(self) -> Knobs:
        """Settings of the exchanges, where the program has DDP modules."""
        used = self._in_use()
        knobs: Knobs = {}
        if not used:
            return knobs
        if watch.micro_batches > 1:
            knobs["sync_each_batch"] = max(replica.per_step for replica in used) > 1.5
        hook = used[-1].hook
        # torch refuses the bf16 hook on a CPU
        if hook is not None and getattr(used[-1].ref(), "device_type", "") == "cuda":
            knobs["comm_hook"] = hook
        return knobs


exchanges = DdpExchanges()
in_forked_children(exchanges.reset)


def sharding() -> str:
    """How several processes divide the state of the model: `zero3` where a module of FSDP is in
    use, else `ddp`."""
    kinds = {kind.__name__ for root in watch.alive(watch.roots) for kind in type(root).__mro__}
    return "zero3" if kinds & {"FSDPModule", "FullyShardedDataParallel"} else "ddp"


def ddp_made(frame: FrameType, result: Any) -> None:
    """The program has made a DDP module."""
    module = frame.f_locals["self"]
    watch.note_made("ddp", module)
    exchanges.made(module)


def begin_gather(frame: FrameType) -> bool:
    """FSDP 2 waits for parameters of a layer that it has gathered from the other processes. On a
    GPU the stream of the computation waits there; the host does not. On a CPU the host waits in the
    collectives themselves."""
    if not recorder.thread or not recorder.on_stream or COMM in recorder.stack:
        return False
    recorder.enter(COMM)
    return True


def end_gather(failed: bool) -> None:
    """The parameters are there."""
    if recorder.thread:
        recorder.leave()


_DDP = "torch.nn.parallel.distributed"
BORDERS = (
    NotedCall(_DDP, "DistributedDataParallel.__init__", ddp_made, "communication"),
    # before a forward pass, process 0 sends its buffers, such as those of batch normalization, to
    # the others
    segment(_DDP, "DistributedDataParallel._sync_buffers", COMM),
    Border(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group",
        "FSDPParamGroup.wait_for_unshard",
        begin_gather,
        end_gather,
        "communication",
    ),
)
