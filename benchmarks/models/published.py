"""Counted FLOPs of four known models against published counts: a table in docs/models.md.

    python -m benchmarks.models.published

The models have shapes only (the meta device), so nothing is downloaded and no GPU is needed. The
agent's own counting counts one forward and one backward pass. A number of parameters that is known
to the last digit shows that a model is built right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.doc_table import put, table
from gpuconsole.agent.hooks.evidence.arithmetic import StepCount

META = torch.device("meta")
FLASH = torch.ops.aten._scaled_dot_product_flash_attention
"""Attention as torch calls it on a GPU."""


def attend(
    q: Tensor, k: Tensor, v: Tensor, heads: int, kv_heads: int | None = None, causal: bool = False
) -> Tensor:
    """Attention of `heads`; each head of k and v serves as many heads of q."""
    q, k, v = (
        x.unflatten(-1, (n, -1)).transpose(1, 2)
        for x, n in ((q, heads), (k, kv_heads or heads), (v, kv_heads or heads))
    )
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    return FLASH(q, k, v, 0.0, causal)[0].transpose(1, 2).flatten(2)  # type: ignore[no-any-return]


# --- Llama and Mixtral ----------------------------------------------------------------------------


class Decoder(nn.Module):
    """Llama 3, or with several `experts` Mixtral, of which a token goes through two. `hidden`: the
    width of the MLP."""

    def __init__(
        self,
        vocabulary: int,
        experts: int = 1,
        width: int = 4096,
        hidden: int = 14336,
        layers: int = 32,
        kv: int = 1024,
    ) -> None:
        super().__init__()
        self.embedding, self.head = (
            nn.Embedding(vocabulary, width),
            nn.Linear(width, vocabulary, bias=False),
        )
        self.blocks = nn.ModuleList(Block(width, hidden, kv, experts) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, kv: int, experts: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.q, self.k, self.v, self.o = (
            nn.Linear(width, size, bias=False) for size in (width, kv, kv, width)
        )
        self.gate = nn.Linear(width, experts, bias=False) if experts > 1 else None
        self.experts = nn.ModuleList(Mlp(width, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.o(attend(self.q(y), self.k(y), self.v(y), 32, 8, causal=True))
        y = self.norms[1](x)
        if self.gate is None:
            return x + self.experts[0](y)  # type: ignore[no-any-return]
        weights = self.gate(y).topk(2).values.softmax(-1)
        # each token goes through two, and all have the same number of tokens
        even = y.shape[1] * 2 // len(self.experts)
        out = torch.cat([expert(y[:, :even]) for expert in self.experts], 1).unflatten(1, (-1, 2))
        return x + (out * weights.unsqueeze(-1)).sum(2)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False)
            for sizes in ((width, hidden), (width, hidden), (hidden, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


# --- ViT-B/16 -------------------------------------------------------------------------------------


class VisionTransformer(nn.Module):
    def __init__(
        self, width: int = 768, layers: int = 12, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token, self.places = (
            nn.Parameter(torch.empty(1, 1, width)),
            nn.Parameter(torch.empty(1, 197, width)),
        )
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "mlp": nn.Sequential(
                        nn.LayerNorm(width),
                        nn.Linear(width, 4 * width),
                        nn.GELU(),
                        nn.Linear(4 * width, width),
                    ),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            x = x + block["out"](attend(*block["qkv"](block["norm"](x)).chunk(3, -1), 12))
            x = x + block["mlp"](x)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


# --- the UNet of Stable Diffusion 1.5 -------------------------------------------------------------

CHANNELS, TIME, TEXT = (320, 640, 1280, 1280), 1280, 768
"""Channels of each level; the widths of the embedded time and of the text."""


class Residual(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.time = nn.Sequential(nn.SiLU(), nn.Linear(TIME, after))
        self.second = nn.Sequential(
            nn.GroupNorm(32, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.second(y)  # type: ignore[no-any-return]


class CrossAttention(nn.Module):
    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (
            nn.Linear(size, width, bias=False) for size in (width, context, context)
        )
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        seen = y if context is None else context
        return x + self.out(attend(self.q(y), self.k(seen), self.v(seen), 8))  # type: ignore[no-any-return]


class TextTransformer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.own, self.text = CrossAttention(width, width), CrossAttention(width, TEXT)
        self.gated = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8 * width))
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x))
        shape = y.shape
        y = self.text(self.own(y.flatten(2).transpose(1, 2)), text)
        value, gate = self.gated(y).chunk(2, -1)
        y = y + self.down(value * nn.functional.gelu(gate))
        return x + self.leave(y.transpose(1, 2).reshape(shape))  # type: ignore[no-any-return]


class Level(nn.Module):
    """A residual block, with a transformer except at the lowest resolution."""

    def __init__(self, before: int, after: int, transformer: bool) -> None:
        super().__init__()
        self.residual, self.transformer = (
            Residual(before, after),
            TextTransformer(after) if transformer else None,
        )

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, text)  # type: ignore[no-any-return]


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(CHANNELS[0], TIME), nn.SiLU(), nn.Linear(TIME, TIME))
        self.enter = nn.Conv2d(4, CHANNELS[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        width, kept = CHANNELS[0], [CHANNELS[0]]
        for level, channels in enumerate(CHANNELS):
            for _ in range(2):
                self.down.append(Level(width, channels, level < 3))
                width = channels
                kept.append(width)
            if level < 3:
                self.down.append(nn.Conv2d(width, width, 3, 2, 1))
                kept.append(width)
        self.middle = nn.ModuleList((Level(width, width, True), Level(width, width, False)))
        for level, channels in reversed(list(enumerate(CHANNELS))):
            for _ in range(3):
                self.up.append(Level(width + kept.pop(), channels, level < 3))
                width = channels
            if level:
                self.up.append(
                    nn.Sequential(
                        nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)
                    )
                )
        self.leave = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, image: Tensor, time: Tensor, text: Tensor) -> Tensor:
        time, x = self.time(time), self.enter(image)
        kept = [x]
        for part in self.down:
            x = part(x, time, text) if isinstance(part, Level) else part(x)
            kept.append(x)
        for part in self.middle:
            x = part(x, time, text)
        for part in self.up:
            x = (
                part(torch.cat([x, kept.pop()], 1), time, text)
                if isinstance(part, Level)
                else part(x)
            )
        return self.leave(x)  # type: ignore[no-any-return]


# --- counts ---------------------------------------------------------------------------------------


class Counted(NamedTuple):
    """FLOPs of a forward pass, and of both passes without what the backward pass computes again;
    `causal`: these without the masked half of attention."""

    parameters: int
    forward: float
    both: float
    causal: float


def tokens(length: int) -> tuple[Tensor, ...]:
    return (torch.empty(1, length, dtype=torch.long, device=META),)


def shapes(*each: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(shape, device=META) for shape in each)


@dataclass(frozen=True)
class Published:
    """A published count. `flops`: of what `figure` takes from our count, times `units` (tokens of
    the input). `counts`: how the publisher counts."""

    model: str
    parameters: int
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    figure: Callable[[Counted], float]
    what: str
    flops: float
    source: str
    counts: str


def llama() -> nn.Module:
    return Decoder(128256)


def mixtral() -> nn.Module:
    return Decoder(32000, experts=8)


PUBLISHED = (
    Published(
        "Llama 3 8B",
        8_030_261_248,
        llama,
        lambda: tokens(8192),
        lambda counted: counted.both / 8192,
        "a token of 8192, both passes",
        1917e12 / 33_099,
        (
            "[NeMo 25.04](https://docs.nvidia.com/nemo-framework/user-guide/latest/performance/"
            "archive/25.04-performance-summary.html)"
        ),
        "1917 TFLOP/s at 33 099 tokens/s",
    ),
    Published(
        "Llama 3 8B, masked half left out",
        8_030_261_248,
        llama,
        lambda: tokens(8192),
        lambda counted: counted.causal / 8192,
        "a token of 8192, both passes",
        1933e12 / 37_556,
        (
            "[Megatron Bridge 25.11](https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/main/docs/"
            "performance-summary.md)"
        ),
        "1933 TFLOP/s at 37 556 tokens/s",
    ),
    Published(
        "Llama 3 8B",
        8_030_261_248,
        llama,
        lambda: tokens(8192),
        lambda counted: counted.both / 8192,
        "a token of 8192, both passes",
        0.582 * 312e12 / 2973,
        "[torchtitan](https://github.com/pytorch/torchtitan/blob/main/docs/performance.md)",
        (
            "58.2 % of 312 TFLOP/s at 2973 tokens/s; it counts the table of embeddings as a"
            " product, 3.15 GFLOP"
        ),
    ),
    Published(
        "Mixtral 8x7B",
        46_702_792_704,
        mixtral,
        lambda: tokens(4096),
        lambda counted: counted.both / 4096,
        "a token of 4096, both passes",
        1598e12 / 19_275,
        (
            "[NeMo 25.04](https://docs.nvidia.com/nemo-framework/user-guide/latest/performance/"
            "archive/25.04-performance-summary.html)"
        ),
        "1598 TFLOP/s at 19 275 tokens/s; two of eight experts",
    ),
    Published(
        "ViT-B/16",
        86_567_656,
        VisionTransformer,
        lambda: shapes((1, 3, 224, 224)),
        lambda counted: counted.forward,
        "an image of 224 x 224, forward",
        2 * 17.56e9,
        (
            "[torchvision](https://pytorch.org/vision/stable/models/generated/"
            "torchvision.models.vit_b_16.html)"
        ),
        "17.56 G multiply-adds",
    ),
    Published(
        "UNet of Stable Diffusion 1.5",
        859_520_964,
        UNet,
        lambda: shapes((2, 4, 64, 64), (2, 320), (2, 77, TEXT)),
        lambda counted: counted.forward,
        "two images of 512 x 512, forward",
        2 * 888.87e9,
        (
            "[onnx-tool](https://github.com/ThanatosShinji/onnx-tool#models), the same UNet of"
            " version 1.4"
        ),
        "888.87 G multiply-adds; it counts elementwise operations, too: an exponential as 16",
    ),
)


def count(build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]]) -> Counted:
    """Count one step of a model by the agent's own counting."""
    with META:
        model = build()
    step = StepCount()
    step.enter()
    loss = model(*inputs()).sum()
    step.leave()
    forward = step.flops or math.nan
    step.enter(loss)
    loss.backward()
    step.leave()
    both, masked = (step.flops or math.nan) - step.recomputed, step.masked
    step.stop()
    return Counted(
        sum(parameter.numel() for parameter in model.parameters()), forward, both, both - masked
    )


def row(published: Published) -> tuple[str, ...]:
    """A line of the table. Raises ValueError where the model has another number of parameters."""
    counted = count(published.build, published.inputs)
    if counted.parameters != published.parameters:
        raise ValueError(
            f"{published.model} has {counted.parameters} parameters here, {published.parameters}"
            " elsewhere"
        )
    ours = published.figure(counted)
    figures = (
        f"{ours / 1e9:.2f} GFLOP",
        f"{published.flops / 1e9:.2f} GFLOP",
        f"{ours / published.flops - 1:+.2%}",
    )
    return published.model, published.what, *figures, f"{published.source}: {published.counts}"


def main() -> None:
    head = ("model", "of what", "counted", "published", "difference", "source, and how it counts")
    put("models.md", "published counts", table(head, map(row, PUBLISHED)))


if __name__ == "__main__":
    main()
