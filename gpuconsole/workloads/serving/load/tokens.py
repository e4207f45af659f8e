"""Characters per token of a server's tokenizer, asked before the load begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from gpuconsole.workloads.serving.http import read_json
from gpuconsole.workloads.serving.load.client import RequestFailed, refusal
from gpuconsole.workloads.serving.problems import explain

SAMPLE_CHARACTERS = 2000
LENGTHS = (80, 320)
"""Characters of the two prompts for a server that counts tokens in answers only. Both fit a small context, with one token for each character."""
TOKENIZE_S = 5.0
MOST_BYTES = 2**20


class Tokenizer(msgspec.Struct, frozen=True):
    """`characters_per_token` of the sample text. `overhead`: tokens that the server adds to each prompt (chat template, first token).

    `max_model_len`: tokens of prompt and answer together, where the server reports the limit with a token count.
    """

    characters_per_token: float
    overhead: int = 0
    max_model_len: int | None = None


async def ask_tokenizer(
    session: aiohttp.ClientSession, url: str, model: str, sample: Callable[[int], str], *, chat: bool, timeout_s: float
) -> Tokenizer:
    """The tokenizer of the server at `url`: by its `/tokenize`, otherwise by the usage of two requests for one token. Raises RequestFailed.

    `sample` returns a text of a length in characters. With `chat` two requests show the length of the chat template. Each request ends
    after `timeout_s` at the latest.
    """
    if not chat and (told := await _tokenize(session, url, model, sample(SAMPLE_CHARACTERS), min(TOKENIZE_S, timeout_s))):
        return told
    address = f"{url.rstrip('/')}/v1/{'chat/completions' if chat else 'completions'}"

    async def count(characters: int) -> int:
        text = sample(characters)
        said: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        return await _prompt_tokens(session, address, {"model": model, **said, "max_tokens": 1, "temperature": 0}, timeout_s)

    short, long = LENGTHS
    fewer = await count(short)
    try:
        more = await count(long)
    except RequestFailed:  # the longer prompt does not fit
        more = fewer
    if more <= fewer:
        return Tokenizer(short / fewer)
    characters_per_token = (long - short) / (more - fewer)
    return Tokenizer(characters_per_token, max(0, round(fewer - short / characters_per_token)))


async def _tokenize(session: aiohttp.ClientSession, url: str, model: str, text: str, timeout_s: float) -> Tokenizer | None:
    """The answer of `/tokenize`; None where the server has none. The fields of one request: vLLM and SGLang, llama.cpp, TGI."""
    body = {"model": model, "prompt": text, "content": text, "inputs": text}
    try:
        async with asyncio.timeout(timeout_s), session.post(f"{url.rstrip('/')}/tokenize", json=body, allow_redirects=False) as response:
            told = await read_json(response) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    named = told if isinstance(told, dict) else {"tokens": told}
    tokens, limit = named.get("tokens"), named.get("max_model_len")
    count = named.get("count", len(tokens) if isinstance(tokens, list) else 0)
    if not isinstance(count, int) or count <= 0:
        return None
    return Tokenizer(len(text) / count, max_model_len=limit if isinstance(limit, int) and limit > 0 else None)


async def _prompt_tokens(session: aiohttp.ClientSession, address: str, body: dict[str, Any], timeout_s: float) -> int:
    try:
        async with asyncio.timeout(timeout_s), session.post(address, json=body, allow_redirects=False) as response:
            if response.status != 200:
                raise RequestFailed(await refusal(response))
            told = await read_json(response)
    except TimeoutError:
        raise RequestFailed(f"no answer for {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        raise RequestFailed(explain(problem)) from None
    usage = told.get("usage") if isinstance(told, dict) else None
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or tokens <= 0:
        raise RequestFailed("the answer has no count of prompt tokens")
    return tokens
