"""What the console sees of vLLM: a command line, a log, an API. The flags that it got are logged;
MODEL decides what becomes of it.

Like a vLLM before August 2026 it accepts only numbers in CUDA_VISIBLE_DEVICES. VLLM_STUB_LACKS
names a flag that its version does not have.
"""

import asyncio
import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

from aiohttp import web

from tests.fakes.model_server import FakeServer

OWN_SEATS, OWN_TOKENS = 1024, 8192
"""vLLM 0.32 on a card with 70 GiB or more (vllm/engine/arg_utils.py, usage context of the API
server)."""


async def main() -> None:
    flags = dict(zip(sys.argv[1:], [*sys.argv[2:], ""], strict=True))
    print("flags", " ".join(sys.argv[1:]), flush=True)
    with open(os.environ["VLLM_STUB_FLAGS"], "w") as file:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        file.write(f"{' '.join(sys.argv[1:])}\nGPUs {gpus}\n")
    if (lacking := os.environ.get("VLLM_STUB_LACKS")) in sys.argv:
        print("usage: api_server.py [-h] [--host HOST]", file=sys.stderr)
        print(f"api_server.py: error: unrecognized arguments: {lacking}", file=sys.stderr)
        sys.exit(2)
    numbers = [int(entry) for entry in gpus.split(",") if entry]
    if numbers:
        print("GPUs", *numbers, "in the order", os.environ.get("CUDA_DEVICE_ORDER"), flush=True)
    if flags["--model"] == "too-large":
        print("INFO Starting to load model too-large...", flush=True)
        print(
            (
                "ValueError: No available memory for the cache blocks. Try increasing"
                " `gpu_memory_utilization`."
            ),
            file=sys.stderr,
        )
        sys.exit(1)
    # what vLLM 0.32 says where another process took the memory after our look at it
    if flags["--model"] == "memory-taken":
        print(
            (
                "(EngineCore pid=1) ValueError: Free memory on device cuda:0 (7.45/79.19 GiB) on"
                " startup is less than desired GPU memory utilization (0.9, 71.27 GiB). Decrease"
                " GPU memory utilization or reduce GPU memory used by other processes."
            ),
            file=sys.stderr,
        )
        sys.exit(1)
    scheduler = scheduler_of(flags)
    print("(EngineCore pid=1) INFO GPU KV cache size: 12,800 tokens", flush=True)
    app = FakeServer().application("")
    app.router.add_get("/health", lambda request: web.Response())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, flags["--host"], int(flags["--port"])).start()
    await schedule(scheduler)


def scheduler_of(flags: dict[str, str]) -> Any:
    """The scheduler of --scheduler-cls, made before the server answers, as in vLLM. Limits that no
    flag sets are those of a large card."""
    seats, tokens = (
        int(flags.get("--max-num-seqs", OWN_SEATS)),
        int(flags.get("--max-num-batched-tokens", OWN_TOKENS)),
    )
    print(
        (
            "(APIServer pid=1) INFO 02-22 12:34:13 [scheduler.py:222] Chunked prefill is enabled"
            f" with max_num_batched_tokens={tokens}."
        ),
        flush=True,
    )
    module, _, name = flags.get("--scheduler-cls", "").rpartition(".")
    if not module.startswith("gpuconsole"):
        return None
    config = SimpleNamespace(max_num_seqs=seats, max_num_batched_tokens=tokens)
    return getattr(importlib.import_module(module), name)(
        vllm_config=SimpleNamespace(scheduler_config=config)
    )


async def schedule(scheduler: Any) -> None:
    """For ever; where VLLM_STUB_LIMITS names a file, the limits that the scheduler keeps are
    written there when they change."""
    if "VLLM_STUB_LIMITS" not in os.environ:
        await asyncio.Event().wait()
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
