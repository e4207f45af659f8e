"""The knob catalogue: one typed setting per name, under the ecosystem's own name.

A workload's TOML file lists which of these it has. `apply` says when a change takes effect: *hot* between two
steps, *cold* by restarting the worker.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

import msgspec

Value = bool | int | float | str
Knobs = dict[str, Value]


class KnobError(ValueError):
    """A knob or a value that does not exist; the message is one line fit for a user."""


class Knob(msgspec.Struct, frozen=True):
    """One setting. `low`/`high` bound numbers (inclusive), `choices` lists words.

    `loader`: the change is felt through the DataLoader, so a trial must time wall clock, not the training
    thread's own time, and must let the new loader's queue reach its steady state first.
    `changes_training`: the change alters what is learnt per step (batch size), not only how fast.
    """

    name: str
    kind: Literal["int", "float", "choice", "bool"]
    meaning: str
    apply: Literal["hot", "cold"] = "hot"
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    unit: str = ""
    loader: bool = False
    changes_training: bool = False
    examples: tuple[Value, ...] = ()

    def allowed(self) -> str:
        """The allowed values in words."""
        if self.kind == "choice":
            return "|".join(self.choices)
        if self.kind == "bool":
            return "true|false"
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.kind} {self.low:g}..{self.high:g}{unit}"

    def check(self, value: object) -> Value:
        """`value` as this knob's type; raises KnobError when it is not allowed."""
        if self.kind == "bool" and isinstance(value, bool):
            return value
        if self.kind == "choice" and isinstance(value, str) and value in self.choices:
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high:
            if self.kind == "float":
                return float(value)
            if self.kind == "int" and int(value) == value:
                return int(value)
        hint = nearest(str(value), self.choices) if self.kind == "choice" else ""
        raise KnobError(f"{self.name}: {value!r} is not allowed; allowed: {self.allowed()}{hint}")

    def parse(self, text: str) -> Value:
        """A value typed by a user."""
        if self.kind == "choice":
            return self.check(text)
        if self.kind == "bool":
            words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
            return self.check(words.get(text.lower(), text))
        try:
            return self.check(float(text) if self.kind == "float" else int(text))
        except ValueError as error:
            if isinstance(error, KnobError):
                raise
            raise KnobError(f"{self.name}: {text!r} is not allowed; allowed: {self.allowed()}") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is close."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


_ALL = (
    Knob("batch_size", "int", "samples in one forward pass", low=1, high=65536, changes_training=True, examples=(4, 8, 16, 32)),
    Knob(
        "seq_len", "int", "tokens in a training sequence", low=8, high=32768, unit="tokens", changes_training=True, examples=(64, 128, 256)
    ),
    Knob(
        "precision",
        "choice",
        "matrix arithmetic: fp32, TF32 matmuls, or autocast to bf16",
        choices=("fp32", "tf32", "bf16"),
        examples=("fp32", "tf32", "bf16"),
    ),
    Knob(
        "torch_compile",
        "choice",
        "torch.compile of the model",
        apply="cold",
        choices=("off", "default", "max-autotune"),
        examples=("off", "default"),
    ),
    Knob(
        "gradient_accumulation_steps",
        "int",
        "forward/backward passes per optimizer step",
        low=1,
        high=1024,
        changes_training=True,
        examples=(1, 2, 4),
    ),
    Knob("gradient_checkpointing", "bool", "recompute activations in the backward pass instead of keeping them", examples=(False, True)),
    Knob(
        "optim",
        "choice",
        "AdamW implementation",
        choices=("adamw", "adamw_foreach", "adamw_fused"),
        examples=("adamw", "adamw_foreach", "adamw_fused"),
    ),
    Knob("num_threads", "int", "intra-op CPU threads of the training process; 0: all cores but one", low=0, high=1024, examples=(0, 1, 2)),
    Knob("log_every", "int", "steps between two log records; 0: never", low=0, high=1_000_000, unit="steps", examples=(1, 10, 50)),
    Knob("log_gradients", "bool", "write a histogram of every parameter's gradient into each log record", examples=(False, True)),
    Knob("save_every", "int", "steps between two checkpoints; 0: never", low=0, high=1_000_000, unit="steps", examples=(0, 10, 200)),
    Knob("eval_every", "int", "steps between two evaluations; 0: never", low=0, high=1_000_000, unit="steps", examples=(0, 50, 200)),
    Knob("num_workers", "int", "DataLoader worker processes", low=0, high=256, loader=True, examples=(0, 1, 2, 4, 8)),
    Knob("prefetch_factor", "int", "batches each DataLoader worker keeps ready", low=1, high=64, loader=True, examples=(2, 4, 8)),
    Knob("pin_memory", "bool", "collate batches into page-locked host memory (GPU only)", loader=True, examples=(False, True)),
    Knob("persistent_workers", "bool", "keep DataLoader workers between epochs", loader=True, examples=(False, True)),
    Knob("channels_last", "bool", "NHWC memory layout for convolutions", examples=(False, True)),
    Knob(
        "transform_cost",
        "int",
        "exercise: how often the augmentation's blur is applied to a sample",
        low=0,
        high=64,
        loader=True,
        examples=(0, 1, 4),
    ),
    Knob(
        "storage_latency_ms",
        "float",
        "exercise: wait before each sample is read, as remote storage would make it",
        low=0,
        high=1000,
        unit="ms",
        loader=True,
        examples=(0.0, 2.0, 10.0),
    ),
    Knob("d_model", "int", "width of the transformer", apply="cold", low=32, high=8192, examples=(192, 768)),
    Knob("n_layer", "int", "transformer blocks", apply="cold", low=1, high=128, examples=(4, 12)),
    Knob("image_size", "int", "side of the square training image, pixels", apply="cold", low=32, high=512, unit="px", examples=(64, 224)),
    Knob("width", "int", "channels of the convnet's first stage", apply="cold", low=8, high=512, examples=(16, 64)),
)

CATALOGUE: dict[str, Knob] = {knob.name: knob for knob in _ALL}


def check_knobs(values: dict[str, object], known: tuple[str, ...], owner: str) -> Knobs:
    """`values` checked against the knobs that `owner` has; raises KnobError naming the first bad one."""
    return {name: find(name, known, owner).check(value) for name, value in values.items()}


def parse_assignment(text: str, known: tuple[str, ...], owner: str) -> tuple[str, Value]:
    """`KNOB=VALUE` as typed after `--set`; raises KnobError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise KnobError(f"{text!r}: expected KNOB=VALUE")
    return name, find(name, known, owner).parse(value)


def find(name: str, known: tuple[str, ...], owner: str) -> Knob:
    """The knob `name` of `owner`; raises KnobError with the nearest match."""
    if name not in known:
        raise KnobError(f"{owner} has no knob {name!r}{nearest(name, known)}; it has: {', '.join(known)}")
    return CATALOGUE[name]


def describe_changes(changes: Knobs, before: Knobs | None = None) -> str:
    """`num_workers 0 -> 4, prefetch_factor 4`."""
    parts = []
    for name, value in changes.items():
        old = f"{show(before[name])} -> " if before and name in before else ""
        parts.append(f"{name} {old}{show(value)}")
    return ", ".join(parts)


def show(value: Value) -> str:
    """A knob value as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
