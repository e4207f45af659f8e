"""A proxy before a model server, which lets each request for tokens wait. A process of its own,
which prints its address:

python -m tests.fakes.slow_proxy URL SECONDS
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web


async def serve(url: str, wait_s: float) -> None:
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            if request.method == "POST":
                await asyncio.sleep(wait_s)
            async with session.request(
                request.method,
                f"{url}{request.path_qs}",
                data=body,
                headers={"Content-Type": request.content_type},
            ) as got:
                answer = web.StreamResponse(
                    status=got.status,
                    headers={"Content-Type": got.headers.get("Content-Type", "text/plain")},
                )
                await answer.prepare(request)
                async for piece in got.content.iter_any():
                    await answer.write(piece)
                return answer

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"serving http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2])))
