"""What the user of a framework writes for a change, where the framework runs the training loop: the
framework's own setting, not a line of a loop that is not the user's."""

from __future__ import annotations

from collections.abc import Callable

from gpuconsole.model.knobs.catalogue import Knobs, Value

TRAINER, LIGHTNING = "transformers", "lightning"
"""Values of `JobFacts.loop`."""
CALLS = {TRAINER: "TrainingArguments", LIGHTNING: "Trainer"}
ARGUMENTS: dict[str, dict[str, Callable[[Value], str]]] = {
    TRAINER: {
        "num_workers": lambda value: f"dataloader_num_workers={value}",
        "prefetch_factor": lambda value: f"dataloader_prefetch_factor={value}",
        "persistent_workers": lambda value: f"dataloader_persistent_workers={value}",
        "pin_memory": lambda value: f"dataloader_pin_memory={value}",
        "batch_size": lambda value: f"per_device_train_batch_size={value}",
        "gradient_accumulation_steps": lambda value: f"gradient_accumulation_steps={value}",
        "gradient_checkpointing": lambda value: f"gradient_checkpointing={value}",
        "log_every": lambda value: f'logging_strategy="steps", logging_steps={value}',
        "save_every": lambda value: f'save_strategy="steps", save_steps={value}',
        "eval_every": lambda value: f'eval_strategy="steps", eval_steps={value}',
    },
    LIGHTNING: {
        "gradient_accumulation_steps": lambda value: f"accumulate_grad_batches={value}",
        "eval_every": lambda value: f"val_check_interval={value}, check_val_every_n_epoch=None",
    },
}
"""The argument of the call for each knob. With Lightning, the DataLoader is the user's own."""
LINES: dict[str, dict[str, Callable[[Value], str]]] = {
    LIGHTNING: {
        "log_every": lambda value: (
            "# in training_step: self.log takes its time in every step; log_every_n_steps spares"
            " only what the logger writes\n"
            f"if batch_idx % {value} == 0:\n    self.log_dict(metrics)"
        ),
    },
}
"""Lines of the user's own, where no argument of the framework has the effect."""


def code_for(loop: str, changes: Knobs) -> str:
    """The call of the framework that runs the loop, or the lines within it; empty where there is
    none, or where it has no argument for one of the changes."""
    if len(changes) == 1 and (lines := LINES.get(loop, {}).get(next(iter(changes)))):
        return lines(*changes.values())
    arguments = ARGUMENTS.get(loop, {})
    if not changes or not changes.keys() <= arguments.keys():
        return ""
    return (
        f"{CALLS[loop]}(..., "
        f"{', '.join(arguments[name](value) for name, value in changes.items())})"
    )
