"""The engine: runs iterations over the present sequences. Each iteration adds one token to each decoding sequence."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from gpuconsole.workloads.serving.engine.model import Decoder
from gpuconsole.workloads.serving.engine.scheduler import Iteration, PrefixCache, Scheduler, Sequence

END = 0
"""The byte that ends a text; no text contains this byte."""


class TooLong(ValueError):
    """The request exceeds a fixed limit; the message is one line."""


class Busy(RuntimeError):
    """No sequence slot is free at the moment."""


class Core:
    """Scheduler and decoder together."""

    def __init__(
        self,
        decoder: Decoder,
        scheduler: Scheduler,
        prefixes: PrefixCache,
        max_model_len: int,
        seed: int = 0,
    ) -> None:
        self.decoder, self.scheduler, self.prefixes = decoder, scheduler, prefixes
        self._max_model_len = max_model_len
        self._on_token: Callable[[Sequence, int], None] = lambda sequence, token: None
        self._on_iteration: Callable[[Iteration], None] = lambda plan: None
        self._random = torch.Generator().manual_seed(seed)

    def set_callbacks(self, on_token: Callable[[Sequence, int], None], on_iteration: Callable[[Iteration], None]) -> None:
        """Set the functions that the engine calls: `on_token` for each new token, before the sequence stores the token's time; `on_iteration` for
        each pass."""
        self._on_token, self._on_iteration = on_token, on_iteration

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises TooLong."""
        whole = len(sequence.prompt) + sequence.max_tokens
        if whole > self._max_model_len:
            raise TooLong(
                f"{len(sequence.prompt)} prompt tokens and {sequence.max_tokens} to generate are more than max_model_len {self._max_model_len}"
            )
        if math.ceil(whole / self.scheduler.block_size) > self.scheduler.blocks:
            raise TooLong(f"{whole} tokens do not fit into a KV cache of {self.scheduler.blocks} blocks of {self.scheduler.block_size}")
        self.scheduler.add(sequence)

    def iterate(self) -> None:
        """One pass: pieces of prompts one by one, then one token for all decoding sequences."""
        plan = self.scheduler.plan(time.monotonic())
        for sequence in (*(one for one, _, _ in plan.prefills), *plan.decodes):
            for n, held in enumerate(sequence.reused):
                self.decoder.write(sequence.slot, n * self.scheduler.block_size, held)
            sequence.reused = []
        for sequence, start, end in plan.prefills:
            self._prefill(sequence, start, end)
        if plan.decodes:
            self._decode(plan.decodes)
        self._on_iteration(plan)

    def score(self, tokens: list[int]) -> list[float | None]:
        """Log probability of each token given the previous tokens; None for the first token. Raises TooLong, Busy."""
        if len(tokens) > self._max_model_len:
            raise TooLong(f"{len(tokens)} tokens are more than max_model_len {self._max_model_len}")
        seat = self.scheduler.borrow()
        if seat is None:
            raise Busy("all sequence slots are in use: try again")
        logits = self.decoder.prefill(seat, tokens, 0).float().log_softmax(-1)
        self.scheduler.give_back(seat)
        return [None, *logits[:-1].gather(1, torch.tensor(tokens[1:], device=logits.device)[:, None])[:, 0].tolist()]

    def _prefill(self, sequence: Sequence, start: int, end: int) -> None:
        logits = self.decoder.prefill(sequence.slot, sequence.tokens[start:end], start)
        sequence.computed = end
        if end < len(sequence.tokens):
            return
        for key, at, block in self.prefixes.missing(sequence.prompt):
            self.prefixes.keep(key, block, self.decoder.read(sequence.slot, at, at + len(block)))
        self._emit([sequence], logits[-1:])

    def _decode(self, sequences: list[Sequence]) -> None:
        high = max(sequence.slot for sequence in sequences) + 1
        tokens, positions = [0] * high, [0] * high
        for sequence in self.scheduler.running:  # a slot that does not decode now: its next token overwrites this position
            if sequence.slot < high:
                positions[sequence.slot] = min(sequence.computed, self._max_model_len - 1)
        for sequence in sequences:
            tokens[sequence.slot] = sequence.tokens[-1]
        logits = self.decoder.decode(tokens, positions)
        for sequence in sequences:
            sequence.computed += 1
        self._emit(sequences, logits[[sequence.slot for sequence in sequences]])

    def _emit(self, sequences: list[Sequence], logits: torch.Tensor) -> None:
        chosen = self._choose(sequences, logits)
        now = time.monotonic()
        for sequence, token in zip(sequences, chosen, strict=True):
            sequence.tokens.append(token)
            if token == END and not sequence.ignore_eos:
                sequence.finished = "stop"
            elif sequence.output >= sequence.max_tokens:
                sequence.finished = "length"
            self._on_token(sequence, token)
            sequence.first = sequence.first if sequence.first is not None else now
            sequence.last = now
            if sequence.finished:
                self.scheduler.remove(sequence)

    def _choose(self, sequences: list[Sequence], logits: torch.Tensor) -> list[int]:
        """The most probable token; with a temperature above 0 a token drawn by its probability."""
        best = logits.argmax(-1).tolist()
        for n, sequence in enumerate(sequences):
            if sequence.temperature > 0:
                shares = (logits[n].float() / sequence.temperature).softmax(-1).cpu()
                best[n] = int(torch.multinomial(shares, 1, generator=self._random))
        return best
