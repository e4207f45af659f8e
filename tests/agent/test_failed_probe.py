"""Memory around a probe: the gradients of the last step make room for it, and a probe that fails
leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gpuconsole.agent.probes import untouched
from gpuconsole.agent.protocol import Message, RunProbe
from gpuconsole.agent.service import Inbox, Service
from gpuconsole.workloads.training.probes.memory import saved_bytes
from tests.workloads.small import small_gpt_loop


class Answers:
    """A channel that keeps what it is sent."""

    dropped = 0

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message, /) -> None:
        self.sent.append(message)

    def flush(self) -> bool:
        return True


def test_a_probe_begins_without_the_gradients_of_the_last_step(tmp_path: Path) -> None:
    """A scenario whose memory is nearly full has no room for them beside the activations of the
    probe's pass."""
    loop = small_gpt_loop(tmp_path)
    try:
        loop.step()
        assert all(parameter.grad is not None for parameter in loop.model.parameters())
        with untouched(loop):
            assert all(parameter.grad is None for parameter in loop.model.parameters())
    finally:
        loop.close()


def test_a_failed_probe_leaves_no_tensor_behind(tmp_path: Path) -> None:
    """The exception of a pass that ran out of memory refers to its frames, the frames to the
    tensors, and one of them to the exception."""
    held: list[weakref.ref[torch.Tensor]] = []

    def failing() -> dict[str, Any]:
        activations = torch.zeros(8)
        held.append(weakref.ref(activations))
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            circle = error  # noqa: F841
            raise

    loop, answers = small_gpt_loop(tmp_path), Answers()
    loop.probes = {"failing": failing}
    gc.disable()
    try:
        loop.step()
        Service(loop, Inbox(), answers).serve(RunProbe(1, "failing"))
        assert held[0]() is None
        assert any("out of memory" in str(message.get("error")) for message in answers.sent)
    finally:
        gc.enable()
        loop.close()


def test_a_pass_that_breaks_off_while_its_memory_is_counted_is_freed() -> None:
    """exp() saves its own result: a hook that keeps this tensor makes a cycle that Python cannot
    see."""
    held: list[weakref.ref[torch.Tensor]] = []

    def failing() -> torch.Tensor:
        result = torch.ones(8, requires_grad=True).exp()
        held.append(weakref.ref(result))
        raise torch.OutOfMemoryError("CUDA out of memory")

    with suppress(torch.OutOfMemoryError):
        saved_bytes(failing, [])
    gc.collect()
    assert held[0]() is None
