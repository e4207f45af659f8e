"""Prefix caching: what earlier prompts left behind, block by block, so that the same beginning is not computed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import torch


class PrefixCache:
    """Keys and values of whole blocks, found by all tokens up to the block's end. The least recently used go first.

    `most` 0: caching is off, nothing ever matches. Cached blocks are copies, beside the ones that sequences hold.
    """

    def __init__(self, most: int, block_size: int) -> None:
        self._most = most
        self._size = block_size
        self._held: OrderedDict[int, tuple[tuple[int, ...], torch.Tensor]] = OrderedDict()
        self.queries = self.hits = 0

    def matching(self, tokens: list[int]) -> list[torch.Tensor]:
        """The blocks of the leading tokens that are here. At least one token is left to compute: its logits are needed.

        Whoever gets them has them, also when the cache gives them up before they are used.
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
        """`blocks` were found of `tokens`, and are going to be used."""
        if self._most:
            self.queries += len(tokens)
            self.hits += len(blocks) * self._size

    def missing(self, tokens: list[int]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Whole blocks of `tokens` that are not here: key, first position, tokens."""
        chain = enumerate(self._chain(tokens))
        return [(key, n * self._size, block) for n, (key, block) in chain if self._held.get(key, (None,))[0] != block]

    def keep(self, key: int, block: tuple[int, ...], held: torch.Tensor) -> None:
        self._held[key] = (block, held)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    def _chain(self, tokens: list[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Every whole block with a key that stands for it and all before it."""
        key = 0
        if self._most:
            for start in range(0, len(tokens) - self._size + 1, self._size):
                block = tuple(tokens[start : start + self._size])
                key = hash((key, block))
                yield key, block
