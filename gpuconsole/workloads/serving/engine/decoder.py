"""A GPT with a KV cache: the keys and values of each sequence stay in its slot, so that a token needs one pass over the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gpuconsole.workloads.training.gpt import GPT, HEAD_SIZE, Block


class Decoder:
    """`model` with a KV cache of `slots` sequences of at most `max_model_len` tokens each.

    The caches are (layers, slots, heads, max_model_len, head size) tensors, allocated once. Decoding reads slots 0 to the highest
    slot in use without a copy, so the scheduler assigns low slots first.
    """

    def __init__(self, model: GPT, slots: int, max_model_len: int, device: torch.device, dtype: torch.dtype) -> None:
        self._model = model.to(device=device, dtype=dtype).eval()
        self._device = device
        self._blocks = [block for block in model.blocks if isinstance(block, Block)]
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
        """Process `tokens` from position `start`; returns logits of all tokens, (tokens, vocabulary)."""
        n = len(tokens)
        end = start + n
        positions = torch.arange(start, end, device=self._device)
        x = (self._model.tokens(torch.tensor(tokens, device=self._device)) + self._model.positions(positions)).unsqueeze(0)
        mask = None if start == 0 else torch.arange(end, device=self._device)[None, :] <= positions[:, None]
        for layer, block in enumerate(self._blocks):
            q, k, v = self._project(block, x)
            self._keys[layer, slot, :, start:end] = k[0]
            self._values[layer, slot, :, start:end] = v[0]
            keys, values = self._keys[layer, slot : slot + 1, :, :end], self._values[layer, slot : slot + 1, :, :end]
            x = self._finish(block, x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=start == 0))
        return self._model.head(self._model.norm(x))[0]

    @torch.inference_mode()
    def decode(self, tokens: list[int], positions: list[int]) -> torch.Tensor:
        """One token for each of the slots 0, 1, ...: `tokens` at `positions`; logits (slots, vocabulary).

        A slot without a decoding sequence gets an arbitrary token at its next position, which is overwritten later.
        """
        high = len(tokens)
        at = torch.tensor(positions, device=self._device)
        longest = max(positions) + 1
        x = (self._model.tokens(torch.tensor(tokens, device=self._device)) + self._model.positions(at)).unsqueeze(1)
        mask = (torch.arange(longest, device=self._device)[None, :] <= at[:, None])[:, None, None, :]
        slots = torch.arange(high, device=self._device)
        for layer, block in enumerate(self._blocks):
            q, k, v = self._project(block, x)
            self._keys[layer][slots, :, at] = k[:, :, 0]
            self._values[layer][slots, :, at] = v[:, :, 0]
            keys, values = self._keys[layer, :high, :, :longest], self._values[layer, :high, :, :longest]
            x = self._finish(block, x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return self._model.head(self._model.norm(x))[:, 0]

    @torch.inference_mode()
    def read(self, slot: int, start: int, end: int) -> torch.Tensor:
        """A copy of the keys and values of `slot` for positions `start` to `end`: (2, layers, heads, end - start, head size)."""
        return torch.stack((self._keys[:, slot, :, start:end], self._values[:, slot, :, start:end]))

    @torch.inference_mode()
    def write(self, slot: int, start: int, held: torch.Tensor) -> None:
        """Write blocks into `slot`; the inverse of `read`."""
        end = start + held.shape[3]
        self._keys[:, slot, :, start:end] = held[0]
        self._values[:, slot, :, start:end] = held[1]

    def _project(self, block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b, t, d = x.shape
        q, k, v = block.qkv(block.norm1(x)).view(b, t, self.heads, 3, d // self.heads).permute(3, 0, 2, 1, 4)
        return q, k, v

    def _finish(self, block: Block, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + block.proj(attended.transpose(1, 2).flatten(2))
        return x + block.down(F.gelu(block.up(block.norm2(x))))
