"""A GPT trained on the bytes of a real text: pre-norm blocks, causal SDPA, learned positions, no
tokenizer. Optionally with LoRA."""

from __future__ import annotations

import math
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.workloads.device import Kind
from gpuconsole.workloads.training.task import Batch, count_training_flops

VOCABULARY = 256
HEAD_SIZE = 64
HELD_OUT = 0.1
LORA_TARGETS = ("qkv", "proj", "up", "down")
"""The Linear layers that get an adapter with `peft` lora (Hu et al. 2021)."""
LORA_SCALE = 2.0
"""alpha / r. The documentation of Hugging Face peft trains with alpha = 2 r."""


class TransformerBlock(nn.Module):
    """Attention and MLP, each behind a LayerNorm and a residual."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.heads = max(1, d_model // HEAD_SIZE)
        self.norm1 = nn.LayerNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model)
        self.down = nn.Linear(4 * d_model, d_model)

    def forward(self, x: torch.Tensor, attention: str) -> torch.Tensor:
        """(batch, tokens, d_model) to the same shape. `attention`: a value of the knob."""
        b, t, d = x.shape
        q, k, v = (
            self.qkv(self.norm1(x)).view(b, t, -1, 3, d // self.heads).permute(3, 0, 2, 1, 4)
        )  # by heads: tensor parallelism splits them
        attended = ATTENTION[attention](q, k, v)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def fused_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention in one kernel that does not write the scores to memory. torch chooses the
    kernel."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same in cuDNN's kernel. Raises RuntimeError where cuDNN has none for this device and
    precision."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def check_attention(knobs: Knobs, device: torch.device) -> None:
    """Raise ValueError, one line, where `attention` cudnn is not possible."""
    if knobs["attention"] == "cudnn" and (
        device.type != "cuda" or knobs["precision"] not in ("bf16", "fp16")
    ):
        raise ValueError(
            f"attention cudnn needs a GPU and precision bf16 or fp16, not {device.type} and"
            f" {knobs['precision']}; try sdpa"
        )


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt d + causal mask) v, (batch, heads, tokens, d). All scores are written to
    memory and read again."""
    tokens = q.shape[-2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
    return F.softmax(scores.masked_fill(later, -math.inf), dim=-1) @ v


ATTENTION = {"sdpa": fused_attention, "cudnn": cudnn_attention, "math": plain_attention}


class GPT(nn.Module):
    def __init__(self, d_model: int, n_layer: int, max_tokens: int) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.attention = "sdpa"
        self.tokens = nn.Embedding(VOCABULARY, d_model)
        self.positions = nn.Embedding(max_tokens, d_model)
        self.blocks = nn.ModuleList(TransformerBlock(d_model) for _ in range(n_layer))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) int64 to logits (batch, tokens, 256)."""
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = (
                checkpoint(block, x, self.attention, use_reentrant=False)
                if self.gradient_checkpointing
                else block(x, self.attention)
            )
        return self.head(self.norm(x))


class LoRALinear(nn.Module):
    """A frozen Linear and its adapter: W x + b + scale B A x. B starts at 0, so training starts
    from the frozen model."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen
        weight = frozen.weight
        self.down = nn.Linear(
            frozen.in_features, rank, bias=False, device=weight.device, dtype=weight.dtype
        )
        self.up = nn.Linear(
            rank, frozen.out_features, bias=False, device=weight.device, dtype=weight.dtype
        )
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.frozen.weight, self.frozen.bias) + LORA_SCALE * self.up(
            self.down(x)
        )


def add_lora(model: nn.Module, rank: int, targets: tuple[str, ...] = LORA_TARGETS) -> None:
    """Freeze `model` and add an adapter to each Linear with one of those names."""
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets and isinstance(child, nn.Linear):
                setattr(module, name, LoRALinear(child, rank))


def next_token_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of each next byte. `inputs` may be longer than `targets`: the rest is padding
    and does not count."""
    logits = model(inputs)[:, : targets.shape[1]]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY).float(), targets.reshape(-1))


class TextStream:
    """Random windows of the text, cut in the training process at almost no cost. Batches are
    (inputs, targets).

    With `varied_lengths` the length is random for each batch. `pad_to_multiple_of` pads the inputs
    with zero bytes.
    """

    def __init__(self, text: torch.Tensor, knobs: Knobs, seed: int) -> None:
        self._text = text
        self._batch_size = int(knobs["batch_size"])
        self._shortest, self._longest = lengths(knobs)
        self._multiple = int(knobs["pad_to_multiple_of"])
        self._random = torch.Generator().manual_seed(seed)

    def next(self) -> Batch:
        tokens = self._longest
        if self._shortest < self._longest:
            tokens = int(
                torch.randint(self._shortest, self._longest + 1, (), generator=self._random)
            )
        starts = torch.randint(
            len(self._text) - tokens - 1, (self._batch_size, 1), generator=self._random
        )
        window = self._text[starts + torch.arange(tokens + 1)].long()
        return F.pad(window[:, :-1], (0, padded(tokens, self._multiple) - tokens)), window[:, 1:]

    def close(self) -> None:
        """Nothing to close."""


def lengths(knobs: Knobs) -> tuple[int, int]:
    """The shortest and the longest sequence, in tokens. All lengths between are equally likely."""
    longest = int(knobs["seq_len"])
    return max(1, longest // 4) if knobs["varied_lengths"] else longest, longest


def padded(tokens: int, multiple: int) -> int:
    return math.ceil(tokens / multiple) * multiple if multiple else tokens


def check_width(d_model: int) -> None:
    """Raise ValueError, one line, for a width that is not divisible by its number of heads."""
    heads = max(1, d_model // HEAD_SIZE)
    if d_model % heads:
        raise ValueError(
            f"d_model {d_model} does not split into {heads} heads: {heads * HEAD_SIZE} does, or any"
            f" multiple of {HEAD_SIZE}"
        )


class GPTTask:
    dense_kind: Kind = "matrix product"

    def __init__(self, knobs: Knobs, device: torch.device, seed: int) -> None:
        text = torch.frombuffer(
            bytearray((files("gpuconsole") / "data/text/kjv.txt").read_bytes()), dtype=torch.uint8
        )
        cut = int(len(text) * (1 - HELD_OUT))
        self._train, self._held_out = text[:cut], text[cut:]
        self._seed, self._device = seed, device
        check_width(int(knobs["d_model"]))
        check_attention(knobs, device)
        self._most_tokens = max(1024, 4 * int(knobs["seq_len"]))
        with device:  # a large model is made on its device: on the host that takes tens of seconds
            self.model: nn.Module = self._new_model(knobs)
        with torch.device("meta"):
            # for counting FLOPs: the model itself may be compiled, wrapped or in shards
            self._twin = self._new_model(knobs)

    def _new_model(self, knobs: Knobs) -> GPT:
        model = GPT(int(knobs["d_model"]), int(knobs["n_layer"]), self._most_tokens)
        if knobs["peft"] == "lora":
            add_lora(model, int(knobs["lora_rank"]))
        return model

    def check(self, knobs: Knobs) -> None:
        check_attention(knobs, self._device)
        tokens = padded(int(knobs["seq_len"]), int(knobs["pad_to_multiple_of"]))
        if tokens > self._most_tokens:
            raise ValueError(
                f"{tokens} tokens: this model has {self._most_tokens} positions; start it with a"
                " longer seq_len"
            )

    def open_stream(self, knobs: Knobs) -> TextStream:
        return TextStream(self._train, knobs, self._seed)

    def eval_batch(self, knobs: Knobs) -> Batch:
        return TextStream(self._held_out, knobs, 0).next()

    def loss(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch
        return next_token_loss(self.model, inputs, targets)

    def sizes(self, batch: Batch) -> tuple[int, int]:
        rows, tokens = batch[1].shape
        return rows, rows * tokens

    def flops_per_sample(self, knobs: Knobs) -> float:
        """FLOPs of a sequence without padding. They are quadratic in the length, so Simpson's rule
        gives the exact mean over lengths."""
        shortest, longest = lengths(knobs)
        if shortest == longest:
            return self._flops(longest)
        return (
            self._flops(shortest)
            + 4 * self._flops((shortest + longest) // 2)
            + self._flops(longest)
        ) / 6

    def facts(self, knobs: Knobs) -> dict[str, float]:
        """Facts that the analytical models need beside the parameters."""
        shortest, longest = lengths(knobs)
        # the masked half of a mean length is not the mean of the masked halves
        causal = {"causal": 1.0} if shortest == longest else {}
        return {
            "tokens_per_sample": (shortest + longest) / 2,
            "vocabulary": float(VOCABULARY),
            **causal,
        }

    def _flops(self, length: int) -> float:
        """Model FLOPs, without recomputation: the twin has no gradient checkpointing."""
        tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
        return count_training_flops(self._twin, lambda twin: next_token_loss(twin, tokens, tokens))


def create(knobs: Knobs, device: torch.device, seed: int) -> GPTTask:
    return GPTTask(knobs, device, seed)
