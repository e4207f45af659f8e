"""Prefix caching: keys and values of earlier prompts, block by block, so that a shared prefix is not computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch


class PrefixCache:
    """Keys and values of whole blocks; the key of a block is all tokens up to its end. The least recently used blocks are evicted first.

    `most` 0: caching is off. Cached blocks are copies, separate from the blocks of sequences.
    """

    def __init__(self, most: int, block_size: int) -> None:
        self._most = most
        self._size = block_size
        self._held: OrderedDict[int, tuple[tuple[int, ...], torch.Tensor]] = OrderedDict()
        self.queries = self.hits = 0

    def matching(self, tokens: list[int]) -> list[torch.Tensor]:
        """The cached blocks of the leading tokens. At least one token remains to compute, because its logits are needed.

        The returned blocks stay valid after the cache evicts them.
        """
        found = []
        for key, block in self._chain(tokens[:-1]):
            held = self._held.get(key)
            if held is None or held[0] != block:
                break
            self._held.move_to_end(key)
            found.append(held[1])
        return found

    def count(self, tokens: list[int], blocks: list[torch.Tensor]) -> None:
        """Record that `blocks` of `tokens` are used."""
        if self._most:
            self.queries += len(tokens)
            self.hits += len(blocks) * self._size

    def missing(self, tokens: list[int]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Whole blocks of `tokens` that the cache does not hold: key, first position, tokens."""
        chain = enumerate(self._chain(tokens))
        return [(key, n * self._size, block) for n, (key, block) in chain if self._held.get(key, (None,))[0] != block]

    def keep(self, key: int, block: tuple[int, ...], held: torch.Tensor) -> None:
        self._held[key] = (block, held)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def _chain(self, tokens: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every whole block with a key for the block and all tokens before it."""
        key = 0
        if self._most:
            for start in range(0, len(tokens) - self._size + 1, self._size):
                block = tuple(tokens[start : start + self._size])
                key = hash((key, block))
                yield key, block
