"""The embedded engine: whatever the schedule, the tokens are those of the plain model."""

from __future__ import annotations

import math

import pytest
import torch

from gpuconsole.workloads.serving.engine.core import Core, PrefixCache, Scheduler, Sequence, TooLong
from gpuconsole.workloads.serving.engine.model import Decoder
from gpuconsole.workloads.serving.engine.packing import can_pack, pack
from gpuconsole.workloads.serving.engine.server import Metrics
from gpuconsole.workloads.training.gpt import GPT

LENGTH, BLOCK = 128, 8
PROMPTS = [
    list(text.encode())
    for text in ("In the beginning", "And God said", "the earth was without form, and void", "x")
]


def make_model() -> GPT:
    torch.manual_seed(0)
    model = GPT(64, 2, LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            # so far apart that rounding does not decide which token is likeliest
            parameter.mul_(4.0)
    return model.eval()


def core(
    *, seats: int = 4, tokens: int = 256, blocks: int = 64, cached: int = 0, packed: bool = False
) -> Core:
    prefixes = PrefixCache(cached, BLOCK)
    model = make_model()
    if packed:
        pack(model)
    decoder = Decoder(model, seats, LENGTH, torch.device("cpu"), torch.float32)
    return Core(
        decoder,
        Scheduler(seats, tokens, blocks, BLOCK, chunked=True, prefixes=prefixes),
        prefixes,
        LENGTH,
    )


def generate(engine: Core, prompts: list[list[int]], tokens: int = 12) -> list[list[int]]:
    sequences = [Sequence(prompt, tokens, 0.0) for prompt in prompts]
    for sequence in sequences:
        engine.add(sequence)
    for _ in range(2000):
        if not engine.busy:
            return [sequence.tokens[len(sequence.prompt) :] for sequence in sequences]
        engine.iterate()
    raise AssertionError("it does not come to an end")


@torch.inference_mode()
def plainly(prompt: list[int], tokens: int = 12) -> list[int]:
    """The whole text through the whole model for every token."""
    model, text = make_model(), list(prompt)
    for _ in range(tokens):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "limits",
    [{}, {"seats": 1}, {"tokens": 5}, {"blocks": 6}, {"cached": 64}, {"packed": True}],
    ids=[
        "batched",
        "one at a time",
        "prompts in pieces",
        "preempted",
        "prefix cache",
        "weights packed",
    ],
)
def test_the_schedule_changes_no_token(limits: dict[str, int]) -> None:
    if "packed" in limits and not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("no oneDNN in this torch")
    engine = core(**limits)  # type: ignore[arg-type]
    expected = [plainly(prompt) for prompt in PROMPTS]
    assert generate(engine, PROMPTS) == expected
    assert generate(engine, PROMPTS) == expected, "what is left in slots and caches must not matter"
    if "blocks" in limits:
        assert engine.scheduler.preemptions > 0
    if "cached" in limits:
        assert engine.prefixes.hits > 0
    assert engine.scheduler.kv_usage == 0


def test_blocks_that_the_cache_gives_up_between_admission_and_use_are_still_there() -> None:
    """Room for two blocks: whoever is computed first pushes out what the others were admitted
    with."""
    shared = list(b"And the spirit of God ")
    prompts = [
        shared + list(text.encode())
        for text in ("moved", "was upon the waters, and the deep", "rested", "spoke")
    ]
    engine = core(cached=2)
    expected = [plainly(prompt) for prompt in prompts]
    for _ in range(3):
        assert generate(engine, prompts) == expected
    assert engine.prefixes.hits > 0


def test_one_that_was_preempted_may_find_all_but_its_last_token_in_the_cache() -> None:
    engine = core(cached=64, tokens=BLOCK)
    (prompt,) = [PROMPTS[2][: 2 * BLOCK]]
    sequence = Sequence(prompt, 12, 0.0)
    engine.add(sequence)
    while sequence.output < 1:
        engine.iterate()
    scheduler = engine.scheduler
    scheduler.remove(sequence)  # as preemption does it
    sequence.computed = 0
    # somebody else had the slot meanwhile
    engine.decoder.write(0, 0, torch.zeros_like(engine.decoder.read(0, 0, LENGTH)))
    scheduler.add(sequence)
    while engine.busy:
        engine.iterate()
    assert sequence.tokens[len(prompt) :] == plainly(prompt)


def test_scores_are_the_models_own_log_probabilities() -> None:
    text = PROMPTS[0]
    with torch.inference_mode():
        logits = make_model()(torch.tensor([text]))[0].log_softmax(-1)
    scores = core().score(text)
    assert scores[0] is None
    assert [score for score in scores if score is not None] == pytest.approx(
        [float(logits[n, token]) for n, token in enumerate(text[1:])], abs=1e-4
    )


def test_likelier_tokens_are_drawn_more_often() -> None:
    engine = core()
    sequence = Sequence([1], 1, 0.0, temperature=1.0)
    logits = torch.tensor([[0.0, math.log(9.0)]])
    drawn = [engine._choose([sequence], logits)[0] for _ in range(300)]
    assert 0.8 < sum(drawn) / len(drawn) < 0.98


def test_what_can_never_fit_is_refused_at_once() -> None:
    with pytest.raises(TooLong, match="max_model_len 128"):
        core().add(Sequence([1] * 100, 100, 0.0))
    with pytest.raises(TooLong, match="2 blocks of 8"):
        core(blocks=2).add(Sequence([1] * 10, 10, 0.0))


def test_the_metrics_page_answers_with_the_named_metrics_only() -> None:
    page = Metrics("m", core(), {"block_size": "8"}, {})
    names = [
        "vllm:num_requests_running",
        "vllm:time_to_first_token_seconds_sum",
        "vllm:cache_config_info",
    ]
    lines = [line for line in page.text(names).decode().splitlines() if not line.startswith("#")]
    assert {line.partition("{")[0] for line in lines} == set(names)
    assert len(page.text().splitlines()) > 100


def test_the_end_of_a_text_ends_the_answer_unless_it_is_to_be_ignored() -> None:
    engine = core()
    ends, goes_on = Sequence([1], 5, 0.0, ignore_eos=False), Sequence([1], 5, 0.0)
    for sequence in (ends, goes_on):
        sequence.slot = 0
        engine.scheduler.running.append(sequence)
        engine._emit([sequence], torch.nn.functional.one_hot(torch.tensor([0]), 256).float())
    assert (ends.finished, goes_on.finished) == ("stop", "")
