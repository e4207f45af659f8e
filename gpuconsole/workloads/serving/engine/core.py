"""The engine: the scheduler, and iterations over the present sequences. Each iteration adds one
token to each decoding sequence."""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from gpuconsole.workloads.serving.engine.model import Decoder

# --- the scheduler --------------------------------------------------------------------------------


@dataclass(eq=False)
class Sequence:
    """One active request. `tokens` are prompt and output; the first `computed` tokens are in the KV
    cache.

    `reused`: blocks of the prefix cache to copy into the slot before the first computation.
    """

    prompt: list[int]
    max_tokens: int
    arrived: float
    temperature: float = 0.0
    ignore_eos: bool = True
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    reused: list[torch.Tensor] = field(default_factory=list)
    blocks: int = 0
    slot: int = -1
    admitted: float | None = None
    first: float | None = None
    last: float | None = None
    preemptions: int = 0
    finished: str = ""

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.prompt)

    @property
    def output(self) -> int:
        """Number of generated tokens so far."""
        return len(self.tokens) - len(self.prompt)


@dataclass
class Iteration:
    """The work of the next pass: pieces of prompts (sequence, from, to), and sequences that decode
    one token."""

    prefills: list[tuple[Sequence, int, int]] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(end - start for _, start, end in self.prefills) + len(self.decodes)


class Scheduler:
    """Limits: sequence slots (`max_num_seqs`), tokens per iteration (`max_num_batched_tokens`) and
    KV `blocks` of `block_size` tokens.

    `chunked`: a prompt may be split over several iterations. Otherwise a prompt waits for an
    iteration that has room for all of it.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        blocks: int,
        block_size: int,
        *,
        chunked: bool,
        prefixes: PrefixCache,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.blocks, self.block_size = blocks, block_size
        self._seats = sorted(range(max_num_seqs), reverse=True)
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._chunked = chunked
        self.own_limits: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """Smaller limits for a time (gpuconsole_caps.OwnLimits): sequences, tokens; 0: none."""
        self._free = blocks
        self._prefixes = prefixes

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0..1."""
        return 1 - self._free / self.blocks

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has finished or was cancelled."""
        if sequence in self.running:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def set_limits(self, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Set new limits from the next iteration on, at most the slots of the start. Running
        sequences continue to their end."""
        self._max_num_seqs, self._max_num_batched_tokens = max_num_seqs, max_num_batched_tokens

    def borrow(self) -> int | None:
        """A free slot for temporary use; None when all slots are in use."""
        return self._seats.pop(0) if self._seats else None

    def give_back(self, seat: int) -> None:
        self._seats.insert(0, seat)

    def plan(self, now: float) -> Iteration:
        """The next iteration. Its sequences hold the blocks that the iteration needs."""
        seats, tokens = self.own_limits()
        plan, budget = (
            Iteration(),
            min(self._max_num_batched_tokens, tokens or self._max_num_batched_tokens),
        )
        seats = min(self._max_num_seqs, seats or self._max_num_seqs)
        for sequence in list(self.running):
            if sequence in self.running:  # an earlier sequence may have preempted this sequence
                budget -= self._advance(sequence, budget, plan)
        while (
            self.waiting
            and self._seats
            and len(self.running) < seats
            and budget > 0
            and not plan.preempted
        ):
            if not self._admit(self.waiting[0], budget, now):
                break
            sequence = self.waiting.popleft()
            self.running.append(sequence)
            budget -= self._advance(sequence, budget, plan)
        return plan

    def _advance(self, sequence: Sequence, budget: int, plan: Iteration) -> int:
        """Add `sequence` to the iteration; returns its number of tokens."""
        left = len(sequence.tokens) - sequence.computed
        take = min(left, budget)
        if take <= 0 or (left > 1 and take < left and not self._chunked):
            return 0
        while not self._reserve(sequence, sequence.computed + take):
            victim = self.running[-1]
            self._preempt(victim, plan)
            if victim is sequence:
                return 0
        if left == 1 and sequence.output > 0:
            plan.decodes.append(sequence)
        else:
            plan.prefills.append((sequence, sequence.computed, sequence.computed + take))
        return take

    def _admit(self, sequence: Sequence, budget: int, now: float) -> bool:
        """Assign a slot to `sequence`, and blocks for its first piece."""
        blocks = self._prefixes.matching(sequence.tokens)
        cached = len(blocks) * self.block_size
        left = len(sequence.tokens) - cached
        take = min(left, budget)
        if take < left and not self._chunked:
            return False
        if not self._reserve(sequence, cached + take):
            return False
        sequence.slot = self._seats.pop()
        self._prefixes.count(sequence.tokens, blocks)
        sequence.reused, sequence.computed = blocks, cached
        sequence.admitted = sequence.admitted if sequence.admitted is not None else now
        return True

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Allocate blocks for `tokens` tokens in total."""
        needed = -(-tokens // self.block_size) - sequence.blocks
        if needed > self._free:
            return False
        self._free -= max(0, needed)
        sequence.blocks += max(0, needed)
        return True

    def _preempt(self, sequence: Sequence, plan: Iteration) -> None:
        self.running.remove(sequence)
        plan.prefills = [prefill for prefill in plan.prefills if prefill[0] is not sequence]
        plan.decodes = [decode for decode in plan.decodes if decode is not sequence]
        self._release(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)
        plan.preempted.append(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._free += sequence.blocks
        sequence.blocks = 0
        self._seats.append(sequence.slot)
        # the lowest slot is assigned first: decoding reads all slots up to the highest in use
        self._seats.sort(reverse=True)
        sequence.slot = -1


# --- prefix caching -------------------------------------------------------------------------------


class PrefixCache:
    """Keys and values of whole blocks; the key of a block is all tokens up to its end. The least
    recently used blocks are evicted first.

    `most` 0: caching is off. Cached blocks are copies, separate from the blocks of sequences.
    """

    def __init__(self, most: int, block_size: int) -> None:
        self._most = most
        self._size = block_size
        self._held: OrderedDict[int, tuple[tuple[int, ...], torch.Tensor]] = OrderedDict()
        self.queries = self.hits = 0

    def matching(self, tokens: list[int]) -> list[torch.Tensor]:
        """The cached blocks of the leading tokens. At least one token remains to compute, because
        its logits are needed.

        The returned blocks stay valid after the cache evicts them.
        """
        blocks = []
        for key, block in self._chain(tokens[:-1]):
            held = self._held.get(key)
            if held is None or held[0] != block:
                break
            self._held.move_to_end(key)
            blocks.append(held[1])
        return blocks

    def count(self, tokens: list[int], blocks: list[torch.Tensor]) -> None:
        """Record that `blocks` of `tokens` are used."""
        if self._most:
            self.queries += len(tokens)
            self.hits += len(blocks) * self._size

    def missing(self, tokens: list[int]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Whole blocks of `tokens` that the cache does not hold: key, first position, tokens."""
        chain = enumerate(self._chain(tokens))
        return [
            (key, n * self._size, block)
            for n, (key, block) in chain
            if self._held.get(key, (None,))[0] != block
        ]

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


# --- iterations -----------------------------------------------------------------------------------

END = 0
"""The byte that ends a text; no text contains this byte."""


class TooLong(ValueError):
    """The request exceeds a fixed limit; the message is one line."""


class NoFreeSlot(RuntimeError):
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

    def set_callbacks(
        self, on_token: Callable[[Sequence, int], None], on_iteration: Callable[[Iteration], None]
    ) -> None:
        """Set the functions that the engine calls: `on_token` for each new token, before the
        sequence stores the token's time; `on_iteration` for each pass."""
        self._on_token, self._on_iteration = on_token, on_iteration

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises TooLong."""
        whole = len(sequence.prompt) + sequence.max_tokens
        if whole > self._max_model_len:
            raise TooLong(
                f"{len(sequence.prompt)} prompt tokens and {sequence.max_tokens} to generate are"
                f" more than max_model_len {self._max_model_len}"
            )
        if math.ceil(whole / self.scheduler.block_size) > self.scheduler.blocks:
            raise TooLong(
                f"{whole} tokens do not fit into a KV cache of {self.scheduler.blocks} blocks of"
                f" {self.scheduler.block_size}"
            )
        self.scheduler.add(sequence)

    def iterate(self) -> None:
        """One pass: pieces of prompts one by one, then one token for all decoding sequences."""
        plan = self.scheduler.plan(time.monotonic())
        for sequence in (*(prefilled for prefilled, _, _ in plan.prefills), *plan.decodes):
            for n, held in enumerate(sequence.reused):
                self.decoder.write(sequence.slot, n * self.scheduler.block_size, held)
            sequence.reused = []
        for sequence, start, end in plan.prefills:
            self._prefill(sequence, start, end)
        if plan.decodes:
            self._decode(plan.decodes)
        self._on_iteration(plan)

    def score(self, tokens: list[int]) -> list[float | None]:
        """Log probability of each token given the previous tokens; None for the first token. Raises
        TooLong, NoFreeSlot."""
        if len(tokens) > self._max_model_len:
            raise TooLong(f"{len(tokens)} tokens are more than max_model_len {self._max_model_len}")
        seat = self.scheduler.borrow()
        if seat is None:
            raise NoFreeSlot("all sequence slots are in use: try again")
        logits = self.decoder.prefill(seat, tokens, 0).float().log_softmax(-1)
        self.scheduler.give_back(seat)
        return [
            None,
            *logits[:-1]
            .gather(1, torch.tensor(tokens[1:], device=logits.device)[:, None])[:, 0]
            .tolist(),
        ]

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
        # a slot that does not decode now: its next token overwrites this position
        for sequence in self.scheduler.running:
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
