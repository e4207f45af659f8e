"""The model of the embedded server: a GPT with a KV cache, int8 weights, and weights that are
random or trained for a minute.

The keys and values of each sequence stay in its slot, so that a token needs one pass over the
weights.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from gpuconsole.host.files import writing
from gpuconsole.host.folders import make_private
from gpuconsole.model.knobs.catalogue import CATALOGUE, GROUPS, Knobs
from gpuconsole.workloads import process
from gpuconsole.workloads.process import cache_folder
from gpuconsole.workloads.training import gpt
from gpuconsole.workloads.training.gpt import GPT, HEAD_SIZE, TransformerBlock
from gpuconsole.workloads.training.loop import TrainingLoop

# --- A GPT with a KV cache ------------------------------------------------------------------------


class Decoder:
    """`model` with a KV cache of `slots` sequences of at most `max_model_len` tokens each.

    The caches are (layers, slots, heads, max_model_len, head size) tensors, allocated once.
    Decoding reads slots 0 to the highest slot in use without a copy, so the scheduler assigns low
    slots first.
    """

    def __init__(
        self, model: GPT, slots: int, max_model_len: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._model = model.to(device=device, dtype=dtype).eval()
        self._device = device
        self._blocks = [block for block in model.blocks if isinstance(block, TransformerBlock)]
        width = model.tokens.embedding_dim
        self.heads = max(1, width // HEAD_SIZE)
        shape = (len(model.blocks), slots, self.heads, max_model_len, width // self.heads)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    @staticmethod
    def bytes_per_token(model: GPT, dtype: torch.dtype) -> int:
        """Bytes of keys and values in all layers."""
        return 2 * len(model.blocks) * model.tokens.embedding_dim * dtype.itemsize

    @property
    def kv_bytes_per_token(self) -> int:
        return self.bytes_per_token(self._model, self._keys.dtype)

    @torch.inference_mode()
    def prefill(self, slot: int, tokens: list[int], start: int) -> torch.Tensor:
        """Process `tokens` from position `start`; returns logits of all tokens, (tokens,
        vocabulary)."""
        n = len(tokens)
        end = start + n
        positions = torch.arange(start, end, device=self._device)
        x = (
            self._model.tokens(torch.tensor(tokens, device=self._device))
            + self._model.positions(positions)
        ).unsqueeze(0)
        mask = (
            None
            if start == 0
            else torch.arange(end, device=self._device)[None, :] <= positions[:, None]
        )
        for layer, block in enumerate(self._blocks):
            q, k, v = self._project(block, x)
            self._keys[layer, slot, :, start:end] = k[0]
            self._values[layer, slot, :, start:end] = v[0]
            keys, values = (
                self._keys[layer, slot : slot + 1, :, :end],
                self._values[layer, slot : slot + 1, :, :end],
            )
            x = self._finish(
                block,
                x,
                F.scaled_dot_product_attention(
                    q, keys, values, attn_mask=mask, is_causal=start == 0
                ),
            )
        return self._model.head(self._model.norm(x))[0]

    @torch.inference_mode()
    def decode(self, tokens: list[int], positions: list[int]) -> torch.Tensor:
        """One token for each of the slots 0, 1, ...: `tokens` at `positions`; logits (slots,
        vocabulary).

        A slot without a decoding sequence gets an arbitrary token at its next position, which is
        overwritten later.
        """
        high = len(tokens)
        at = torch.tensor(positions, device=self._device)
        longest = max(positions) + 1
        x = (
            self._model.tokens(torch.tensor(tokens, device=self._device))
            + self._model.positions(at)
        ).unsqueeze(1)
        mask = (torch.arange(longest, device=self._device)[None, :] <= at[:, None])[
            :, None, None, :
        ]
        slots = torch.arange(high, device=self._device)
        for layer, block in enumerate(self._blocks):
            q, k, v = self._project(block, x)
            self._keys[layer][slots, :, at] = k[:, :, 0]
            self._values[layer][slots, :, at] = v[:, :, 0]
            keys, values = (
                self._keys[layer, :high, :, :longest],
                self._values[layer, :high, :, :longest],
            )
            x = self._finish(
                block, x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
            )
        return self._model.head(self._model.norm(x))[:, 0]

    @torch.inference_mode()
    def read(self, slot: int, start: int, end: int) -> torch.Tensor:
        """A copy of the keys and values of `slot` for positions `start` to `end`: (2, layers,
        heads, end - start, head size)."""
        return torch.stack((self._keys[:, slot, :, start:end], self._values[:, slot, :, start:end]))

    @torch.inference_mode()
    def write(self, slot: int, start: int, held: torch.Tensor) -> None:
        """Write blocks into `slot`; the inverse of `read`."""
        end = start + held.shape[3]
        self._keys[:, slot, :, start:end] = held[0]
        self._values[:, slot, :, start:end] = held[1]

    def _project(
        self, block: TransformerBlock, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, t, d = x.shape
        q, k, v = (
            block.qkv(block.norm1(x))
            .view(b, t, self.heads, 3, d // self.heads)
            .permute(3, 0, 2, 1, 4)
        )
        return q, k, v

    def _finish(
        self, block: TransformerBlock, x: torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        x = x + block.proj(attended.transpose(1, 2).flatten(2))
        return x + block.down(F.gelu(block.up(block.norm2(x))))


# --- linear layers with int8 weights for GPUs -----------------------------------------------------

MAX_INT8 = 127
MIN_SCALE = 1e-8
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Int8Linear(nn.Module):
    """Nearly the same result as `linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = (weight.abs().amax(1, keepdim=True).float() / MAX_INT8).clamp(min=MIN_SCALE)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0].to(weight.dtype))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())
        self.weight: torch.Tensor
        self.scale: torch.Tensor
        self.bias: torch.Tensor | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., columns) to (..., rows)."""
        if x.numel() == x.shape[-1]:
            product = compiled_product() if x.is_cuda else one_row
            y = product(x.reshape(-1), self.weight, self.scale).view(*x.shape[:-1], -1)
        else:
            y = F.linear(x, self.weight.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


def one_row(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(columns,) and (rows, columns) int8 to (rows,). The sum is fp32."""
    return ((weight * x.float()).sum(1) * scale).to(x.dtype)


@cache
def compiled_product() -> Product:
    """`one_row` as one kernel for each shape."""
    process.keep_measurements()
    product: Product = torch.compile(one_row, dynamic=False)
    return product


@torch.no_grad()
def quantize(module: nn.Module) -> None:
    """Replace every linear layer in `module`, one after the other, so that one matrix at most
    exists twice. After that the module cannot train."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            quantize(child)


@torch.inference_mode()
def warm_up(module: nn.Module, dtype: torch.dtype) -> None:
    """Compile the product of one row for each shape. Takes some seconds on a GPU. Raises ValueError
    where torch cannot compile for this GPU."""
    from torch.utils._triton import has_triton

    layers = {
        tuple(layer.weight.shape): layer
        for layer in module.modules()
        if isinstance(layer, Int8Linear)
    }
    if any(layer.weight.is_cuda for layer in layers.values()) and not has_triton():
        raise ValueError(
            "quantization int8 on a GPU needs torch.compile, and this torch has no Triton for the"
            " GPU"
        )
    for layer in layers.values():
        layer(torch.zeros(1, layer.weight.shape[1], device=layer.weight.device, dtype=dtype))


# --- the model of the embedded server -------------------------------------------------------------

TRAIN_S = 60.0
POSITIONS = 1024
"""Positions of a trained model. Training used only the first positions, the length of a training
sequence."""
TRAINING: Knobs = {
    "batch_size": 16,
    "seq_len": 128,
    "precision": "fp32",
    "lr_scheduler": "constant",
    "log_every": 0,
    "eval_every": 0,
}


def trained_model(d_model: int, n_layer: int, progress: Callable[[str], None]) -> gpt.GPT:
    """A GPT of that shape, trained on the King James Bible by the loop of `train-gpt`, or loaded
    from the cache."""
    path = models_folder() / f"gpt-bytes-{d_model}-{n_layer}.pt"
    model = gpt.GPT(d_model, n_layer, POSITIONS)
    if not path.exists():
        keep(train(d_model, n_layer, progress), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    return model


def train(d_model: int, n_layer: int, progress: Callable[[str], None]) -> dict[str, torch.Tensor]:
    """The weights after a minute, on the CPU."""
    names = {knob.name for group in ("loop", "model", "parallel") for knob in GROUPS[group]} | {
        "varied_lengths",
        "straggler_ms",
        "straggler_phase",
    }
    knobs = {name: default for name in names if (default := CATALOGUE[name].default) is not None}
    knobs |= {**TRAINING, "d_model": d_model, "n_layer": n_layer}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        task = gpt.create(knobs, device, 0)
        loop = TrainingLoop(task, knobs, device, Path(scratch))
        begun = reported = time.monotonic()
        while (now := time.monotonic()) - begun < TRAIN_S:
            loop.step()
            if now - reported >= 1.0:
                reported = now
                progress(f"training the model, once: {now - begun:.0f} of {TRAIN_S:.0f} s")
        loop.close()
    return {name: value.cpu() for name, value in task.model.state_dict().items()}


def keep(weights: dict[str, torch.Tensor], path: Path) -> None:
    """Write the file completely or not at all: another server may write it at the same time."""
    make_private(path.parent)
    with writing(path, follow=False) as file:
        torch.save(weights, file)


def models_folder() -> Path:
    return cache_folder() / "models"


def in_int8(model: gpt.GPT) -> gpt.GPT:
    """Linear layers with int8 weights and dynamically scaled activations (torch's dynamic
    quantization; CPUs only). Raises ValueError."""
    import warnings

    with warnings.catch_warnings():
        # torch recommends torchao, which would be another dependency
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.ao.quantization import quantize_dynamic

        quantized = quantize_dynamic(model.float().eval(), {torch.nn.Linear}, dtype=torch.qint8)
    assert isinstance(quantized, gpt.GPT)
    return quantized
