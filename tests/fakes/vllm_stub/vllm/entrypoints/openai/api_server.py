"""What the console sees of vLLM: a command line, a log, an API. The flags that it got are logged; MODEL decides what becomes of it.

Like a vLLM before August 2026 it accepts only numbers in CUDA_VISIBLE_DEVICES. VLLM_STUB_LACKS names a flag that its version does not have.
"""

import asyncio
import importlib
import os
import sys
from types import SimpleNamespace

from aiohttp import web

from tests.fakes.model_server import FakeServer


async def main() -> None:
    flags = dict(zip(sys.argv[1:], [*sys.argv[2:], ""], strict=True))
    print("flags", " ".join(sys.argv[1:]), flush=True)
    with open(os.environ["VLLM_STUB_FLAGS"], "w") as file:
        file.write(" ".join(sys.argv[1:]))
    if (lacking := os.environ.get("VLLM_STUB_LACKS")) in sys.argv:
        print("usage: api_server.py [-h] [--host HOST]", file=sys.stderr)
        print(f"api_server.py: error: unrecognized arguments: {lacking}", file=sys.stderr)
        sys.exit(2)
    gpus = [int(entry) for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry]
    if gpus:
        print("GPUs", *gpus, "in the order", os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
    if flags["--model"] == "too-large":
        print("INFO Starting to load model too-large...", flush=True)
        print("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", file=sys.stderr)
        sys.exit(1)
    print("(EngineCore pid=1) INFO GPU KV cache size: 12,800 tokens", flush=True)
    app = FakeServer().application("")
    app.router.add_get("/health", lambda request: web.Response())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, flags["--host"], int(flags["--port"])).start()
    await schedule(flags)


async def schedule(flags: dict[str, str]) -> None:
    """For ever; where VLLM_STUB_LIMITS names a file, the limits that the scheduler keeps are written there when they change."""
    if "VLLM_STUB_LIMITS" not in os.environ:
        await asyncio.Event().wait()
    module, _, name = flags["--scheduler-cls"].rpartition(".")
    config = SimpleNamespace(max_num_seqs=int(flags["--max-num-seqs"]), max_num_batched_tokens=int(flags["--max-num-batched-tokens"]))
    scheduler = getattr(importlib.import_module(module), name)(vllm_config=SimpleNamespace(scheduler_config=config))
    before = None
    while True:
        scheduler.running.clear()
        now = scheduler.schedule()
        if now != before:
            with open(os.environ["VLLM_STUB_LIMITS"], "a") as file:
                print(*now, file=file)
        before = now
        await asyncio.sleep(0.02)


asyncio.run(main())
