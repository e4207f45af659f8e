"""A client that knows nothing of gpuconsole: some users, each with one request after another, and what they saw. A process of its own:

    python -m tests.fakes.independent_client URL USERS SECONDS OUTPUT_TOKENS PROMPT_CHARACTERS

prints one JSON object: `tokens`: pairs of a time on CLOCK_MONOTONIC and a number of tokens; `requests`: start, TTFT and E2E of each request.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp


async def load(url: str, users: int, seconds: float, output_tokens: int, prompt: int) -> dict[str, list[tuple[float, ...]]]:
    tokens: list[tuple[float, ...]] = []
    requests: list[tuple[float, ...]] = []
    end = time.monotonic() + seconds

    async def user(session: aiohttp.ClientSession, name: int) -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            options = {"include_usage": True, "continuous_usage_stats": True}
            body = {"prompt": f"{name} {number} " + "x" * prompt, "max_tokens": output_tokens, "stream": True, "ignore_eos": True}
            begun, first, seen = time.monotonic(), None, 0
            async with session.post(f"{url}/v1/completions", json={**body, "stream_options": options}) as answer:
                async for line in answer.content:
                    usage = json.loads(line[6:]).get("usage") if line.startswith(b"data: {") else None
                    if usage and usage["completion_tokens"] > seen:
                        now = time.monotonic()
                        first = first or now
                        tokens.append((now, usage["completion_tokens"] - seen))
                        seen = usage["completion_tokens"]
            requests.append((begun, (first or begun) - begun, time.monotonic() - begun))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(user(session, name) for name in range(users)))
    return {"tokens": tokens, "requests": requests}


if __name__ == "__main__":
    url, users, seconds, output_tokens, prompt = sys.argv[1:]
    print(json.dumps(asyncio.run(load(url, int(users), float(seconds), int(output_tokens), int(prompt)))))
