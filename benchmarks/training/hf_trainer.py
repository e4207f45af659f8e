"""The reference with transformers' Trainer, with the flags that make it fastest; runs in an
environment of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks.training.referee import Course, Referee
from gpuconsole.workloads.training.gpt import GPT, VOCABULARY, TextStream


class LanguageModel(torch.nn.Module):
    """The same GPT with its loss inside, as Trainer expects it."""

    def __init__(self, gpt: GPT) -> None:
        super().__init__()
        self.gpt = gpt
        self.last_loss = torch.zeros(())

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.gpt(inputs)
        loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.reshape(-1))
        self.last_loss = loss.detach()
        return {"loss": loss}


class Text(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Whole batches from our own stream, so that no collation is needed."""

    def __init__(self, course: Course) -> None:
        self._stream = TextStream(course.text, course.stream_knobs, course.seed)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while True:
            inputs, targets = self._stream.next()
            yield {"inputs": inputs, "labels": targets}


class Refereed(TrainerCallback):
    def __init__(self, model: LanguageModel) -> None:
        self._referee = Referee()
        self._model = model

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._referee.step_done(self._model.last_loss)


def main() -> None:
    course = Course()
    words, sys.stdout = sys.stdout, sys.stderr  # stdout belongs to the referee
    torch.set_num_threads(course.num_threads)
    torch.manual_seed(course.seed)
    model = LanguageModel(GPT(course.d_model, course.n_layer, course.max_tokens))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=course.bf16,
        per_device_train_batch_size=1,  # a sample of this dataset is a batch
        max_steps=10**9,
        optim="adamw_torch_fused",
        learning_rate=3e-4,
        weight_decay=0.01,
        max_grad_norm=0.0,
        lr_scheduler_type="constant",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        logging_nan_inf_filter=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=course.seed,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Text(course),
        data_collator=lambda samples: samples[0],
        callbacks=[Refereed(model)],
    )
    sys.stdout = words
    trainer.train()


if __name__ == "__main__":
    main()
