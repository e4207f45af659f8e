"""The reference in plain torch, like nanoGPT's train.py: data, forward, backward and optimizer
only."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F

from benchmarks.training.referee import Course, Referee
from gpuconsole.workloads.training.gpt import GPT, VOCABULARY, TextStream


def main() -> None:
    course = Course()
    torch.set_num_threads(course.num_threads)
    torch.manual_seed(course.seed)
    model = GPT(course.d_model, course.n_layer, course.max_tokens)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = TextStream(course.text, course.stream_knobs, course.seed)
    autocast = (
        torch.autocast("cpu", dtype=torch.bfloat16) if course.bf16 else contextlib.nullcontext()
    )
    referee = Referee()
    while True:
        inputs, targets = data.next()
        with autocast:
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        referee.step_done(loss)


if __name__ == "__main__":
    main()
