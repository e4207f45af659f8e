"""A client that knows nothing of gpuconsole: some users, each with one request after another, and
what they saw. A process of its own:

    python -m tests.fakes.independent_client URL USERS SECONDS OUTPUT_TOKENS PROMPT_CHARACTERS
        [RATE [BURSTS]]

RATE: requests come at random, so many per second on average, whatever the answers, and USERS is
ignored. BURSTS: times of about 3 s with so many times RATE, and as long times with the rest. It one
JSON object: `tokens`: pairs of a time on CLOCK_MONOTONIC and a number of tokens; `requests`: start,
TTFT and E2E of each request.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

import aiohttp

BURST_S = 3.0
MODEL = {"model": os.environ["CLIENT_MODEL"]} if "CLIENT_MODEL" in os.environ else {}


async def load(
    url: str,
    users: int,
    seconds: float,
    output_tokens: int,
    prompt: int,
    rate: float = 0.0,
    bursts: float = 1.0,
) -> dict[str, list[tuple[float, ...]]]:
    tokens: list[tuple[float, ...]] = []
    requests: list[tuple[float, ...]] = []
    end = time.monotonic() + seconds

    async def user(session: aiohttp.ClientSession, name: int, once: bool = False) -> None:
        number = 0
        while time.monotonic() < end and not (once and number):
            number += 1
            options = {"include_usage": True, "continuous_usage_stats": True}
            body = {
                "prompt": f"{name} {number} " + "x" * prompt,
                "max_tokens": output_tokens,
                "stream": True,
                "ignore_eos": True,
            }
            begun, first, seen = time.monotonic(), None, 0
            async with session.post(
                f"{url}/v1/completions", json={**body, **MODEL, "stream_options": options}
            ) as answer:
                async for line in answer.content:
                    usage = (
                        json.loads(line[6:]).get("usage") if line.startswith(b"data: {") else None
                    )
                    if usage and usage["completion_tokens"] > seen:
                        now = time.monotonic()
                        first = first or now
                        tokens.append((now, usage["completion_tokens"] - seen))
                        seen = usage["completion_tokens"]
            requests.append((begun, (first or begun) - begun, time.monotonic() - begun))

    async def arrivals(session: aiohttp.ClientSession) -> None:
        chance, name, fast, until = random.Random(0), 0, False, 0.0
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < end:
                if now >= until:
                    fast, until = not fast, now + chance.expovariate(1 / BURST_S)
                await asyncio.sleep(
                    chance.expovariate(rate * (bursts if fast else max(0.1, 2 - bursts)))
                )
                name += 1
                group.create_task(user(session, name, once=True))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await (
            arrivals(session)
            if rate
            else asyncio.gather(*(user(session, name) for name in range(users)))
        )
    return {"tokens": tokens, "requests": requests}


if __name__ == "__main__":
    url, users, seconds, output_tokens, prompt, *more = sys.argv[1:]
    print(
        json.dumps(
            asyncio.run(
                load(
                    url,
                    int(users),
                    float(seconds),
                    int(output_tokens),
                    int(prompt),
                    *map(float, more),
                )
            )
        )
    )
