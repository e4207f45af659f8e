"""Quality of a server's answers: perplexity on a fixed text, and finding a passkey in a long
context."""

from __future__ import annotations

import math
import random
from importlib.resources import files
from typing import Any

import aiohttp

from gpuconsole.model.finding import Signal
from gpuconsole.workloads.serving.load.answer import RequestFailed
from gpuconsole.workloads.serving.load.client import post_json

WINDOWS = 8
WINDOW_CHARACTERS = 256
HELD_OUT_FROM = 0.9
"""The start of the held-out text (`HELD_OUT` of train-gpt). The embedded model was trained on the
text before it."""
TIMEOUT_S = 120.0
FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
)
"""The passkey test's filler and wording follow Mohtashami and Jaggi, "Landmark Attention" (2023),
where it comes from."""
ANSWER_TOKENS = 12


def fixed_text() -> list[str]:
    """The same windows of held-out text in every call."""
    text = (files("gpuconsole") / "data/text/kjv.txt").read_text(encoding="utf-8")
    begin = int(len(text) * HELD_OUT_FROM)
    stride = (len(text) - begin - WINDOW_CHARACTERS) // WINDOWS
    return [text[begin + n * stride :][:WINDOW_CHARACTERS] for n in range(WINDOWS)]


async def perplexity(session: aiohttp.ClientSession, url: str, model: str) -> dict[str, Signal]:
    """exp of the mean negative log probability of each token. Raises RequestFailed.

    Perplexity is comparable between settings of one model, not between vocabularies.
    """
    scores: list[float] = []
    for window in fixed_text():
        scores += await _token_scores(session, url, model, window)
    if not scores:
        raise RequestFailed("the server returned no log probabilities")
    source = f"the server's log probabilities of {len(scores)} tokens of a fixed text"
    return {"quality.perplexity": Signal(math.exp(-sum(scores) / len(scores)), "", source)}


async def _token_scores(
    session: aiohttp.ClientSession, url: str, model: str, text: str
) -> list[float]:
    """Log probabilities by OpenAI's `echo`, otherwise by vLLM's `prompt_logprobs`."""
    request = {"model": model, "prompt": text, "temperature": 0}
    try:
        choice = await _ask(
            session,
            f"{url}/v1/completions",
            {**request, "max_tokens": 0, "echo": True, "logprobs": 0},
        )
        scores = (choice.get("logprobs") or {}).get("token_logprobs") or []
    except RequestFailed:
        choice = await _ask(
            session, f"{url}/v1/completions", {**request, "max_tokens": 1, "prompt_logprobs": 0}
        )
        scores = [
            next(iter(token.values()))["logprob"] if token else None
            for token in choice.get("prompt_logprobs") or []
        ]
    return [float(score) for score in scores if score is not None]


async def finds_passkey(
    session: aiohttp.ClientSession, url: str, model: str, characters: int, depth: float, seed: int
) -> bool:
    """Whether the server finds a number at `depth` (0 to 1) in a text of about `characters`
    characters. Raises RequestFailed."""
    key = str(random.Random(f"{seed} {characters} {depth}").randrange(10_000, 100_000))
    choice = await _ask(
        session,
        f"{url}/v1/completions",
        {
            "model": model,
            "prompt": passkey_prompt(key, characters, depth),
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
        },
    )
    return key in str(choice.get("text", ""))


def passkey_prompt(key: str, characters: int, depth: float) -> str:
    begin = (
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize"
        " it. I will quiz you about it.\n"
    )
    needle = f"The pass key is {key}. Remember it. {key} is the pass key.\n"
    end = "\nWhat is the pass key? The pass key is"
    filler = max(0, characters - len(begin) - len(needle) - len(end))
    before = round(filler * depth)
    lots = FILLER * (1 + filler // len(FILLER))
    return begin + lots[:before] + "\n" + needle + lots[before:filler] + end


async def _ask(
    session: aiohttp.ClientSession, address: str, body: dict[str, Any]
) -> dict[str, Any]:
    """The first choice of the answer. Raises RequestFailed."""
    answer = await post_json(session, address, body, TIMEOUT_S)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise RequestFailed("an answer without choices")
    return dict(choices[0])
