"""Model servers: the embedded server, vLLM, or a server that already runs: start, readiness check
and stop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import math
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import psutil
from yarl import URL

from gpuconsole.host.files import read_limited, reading
from gpuconsole.host.installation import install_command
from gpuconsole.model.knobs.catalogue import Knobs, show
from gpuconsole.model.knobs.knob import live_limit_fact
from gpuconsole.model.knobs.serving import BLOCK_TOKENS, LIVE_KNOBS, embedded_limits
from gpuconsole.model.text import visible
from gpuconsole.workloads.driver import device_memory
from gpuconsole.workloads.serving.facts import (
    ARGUMENTS,
    FILES,
    LOG,
    SCHEDULER,
    Values,
    of_arguments,
    of_knobs,
    of_log,
    of_numbers,
)
from gpuconsole.workloads.serving.http import (
    MAX_NAME_LENGTH,
    api_key,
    cause,
    explain,
    is_fatal,
    outlook,
    read_json,
    redirection,
    speaks_tls,
)
from gpuconsole.workloads.serving.in_vllm.gpuconsole_caps import LAYOUT

Answer = TypeVar("Answer")

READY_S = 1200.0
"""Time limit of a start in seconds. A large model takes minutes to load and compile; the end of the
process is detected separately."""
ASK_EVERY_S = 0.5
STOP_S = 10.0
BROKEN_STOP_S = 2.0
PROBE_TIMEOUT_S = 2.5
PATIENCE_S = 4.0
"""Seconds for a server that accepts connections and does not answer yet. The reason is on the
screen at most 5 s after the start."""
NOT_READY = (429, 502, 503, 504)
"""HTTP statuses of a server that is starting or overloaded, or of a proxy in front of such a
server."""
MAX_NAMES = 5
"""Number of models in a message."""
MAX_LOG_LINES = 400
"""Number of kept log lines: vLLM writes about 120 lines between the cause of a failure and its
end."""
IN_VLLM = Path(__file__).parent / "in_vllm"
"""The folder with the module that vLLM imports in its own Python."""
MAX_SHEBANG_BYTES = 1024
MAX_CONFIG_BYTES = 4 * 2**20
"""The largest config.json of a model that is read."""
OWN_SCHEDULER = "--scheduler-cls"


class ServerFailed(RuntimeError):
    """The server did not start or is not usable; the message is one line."""


class ModelServer:
    """A server at `url` that serves `model`. `facts` are plain numbers about the server. `process`
    is set if the server is a child process."""

    url = ""
    model = ""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self.facts: dict[str, float] = {}
        self.log_lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self.process: asyncio.subprocess.Process | None = None
        self.notes: list[str] = []
        """What the user should know about a server that has started."""
        self.broken = asyncio.Event()
        """Set when the log says that the server cannot answer any more, before its process ends."""
        self._later = 0
        self._reading: asyncio.Task[None] | None = None

    async def start(self, session: aiohttp.ClientSession) -> None:
        """Start the server; returns when the server answers. Raises ServerFailed."""
        raise NotImplementedError

    def limits(self) -> Knobs:
        """The LIVE_KNOBS that the server has started with, as the server reports them; without
        those that are not known."""
        return {}

    async def set_limits(self, knobs: Knobs) -> None:
        """Apply the LIVE_KNOBS in `knobs`, at most the values in the server's facts. Raises
        ServerFailed."""
        raise ServerFailed("this server cannot change its limits while it runs")

    def start_facts(self) -> Sequence[tuple[str, Values]]:
        """What is known from the start of the server, by source; empty for a server that was not
        started here."""
        return ()

    def frontend_cpu_s(self) -> float | None:
        """CPU seconds of the process that answers requests, if it is a separate child process;
        otherwise None."""
        return None

    async def stop(self) -> None:
        """Stop the server: first SIGTERM, later SIGKILL. A broken server has less time, because the
        user waits for the cause."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(
                self.process.wait(), BROKEN_STOP_S if self.broken.is_set() else STOP_S
            )
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    def death(self) -> str:
        """The end of its process, or why the process is of no use any more, in one line."""
        assert self.process is not None
        code = self.process.returncode
        how = "failed"
        if code is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}"
                if code < 0
                else f"ended with exit code {code}"
            )
        reason = cause(self.log_lines)
        return f"the model server {how}" + (f": {reason}" if reason else "")

    async def _spawn(
        self, command: list[str], env: dict[str, str], on_line: Callable[[str], None]
    ) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            limit=2**20,
        )
        self._reading = asyncio.create_task(self._read(on_line))

    async def _read(self, on_line: Callable[[str], None]) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while True:
            try:
                line = await self.process.stdout.readline()
            except ValueError:  # skip a line of more than 1 MB
                continue
            if not line:
                return
            text = visible(line.decode(errors="replace").rstrip("\r\n"))
            self._later += self.broken.is_set()
            # vLLM writes a traceback for each request after the failure
            if self._later <= MAX_LOG_LINES // 2:
                self.log_lines.append(text)
            on_line(text)

    async def _wait_for(self, ready: Callable[[], Any], seconds: float) -> None:
        """Wait until `ready()` is true. Raises ServerFailed when the process ends first or the time
        limit passes."""
        try:
            async with asyncio.timeout(seconds):
                while not await ready():
                    if self.process is not None and self.process.returncode is not None:
                        if self._reading is not None:
                            await asyncio.wait([self._reading], timeout=1.0)
                        raise ServerFailed(self.death())
                    await asyncio.sleep(ASK_EVERY_S / 5)
        except TimeoutError:
            raise ServerFailed(f"the model server is not ready after {seconds:g} s") from None


class EmbeddedServer(ModelServer):
    """The embedded engine with a small GPT, in a child process."""

    def __init__(
        self, progress: Callable[[str], None], knobs: Knobs, device: str, seed: int
    ) -> None:
        super().__init__(progress)
        self._knobs, self._device, self._seed = {**knobs, **embedded_limits(knobs)}, device, seed

    async def start(self, session: aiohttp.ClientSession) -> None:
        self._progress("the embedded server: importing torch")
        device = "cpu" if self._device == "cpu" else "cuda"
        options = [
            "--knobs",
            json.dumps(self._knobs),
            "--device",
            device,
            "--seed",
            str(self._seed),
        ]
        await self._spawn(
            [sys.executable, "-P", "-m", "gpuconsole.workloads.serving.engine", *options],
            {},
            self._on_line,
        )
        await self._wait_for(self._serves, READY_S)
        async with session.get(f"{self.url}/facts", allow_redirects=False) as answer:
            self.facts = await read_json(answer) | live_limits(self._knobs)
        self.model = (await served_models(session, self.url, ""))[0]
        self._session = session

    async def set_limits(self, knobs: Knobs) -> None:
        limits = {name: knobs[name] for name in LIVE_KNOBS}
        async with self._session.post(
            f"{self.url}/limits", json=limits, allow_redirects=False
        ) as answer:
            if answer.status != 200:
                raise ServerFailed(f"the embedded server rejects new limits: HTTP {answer.status}")

    def limits(self) -> Knobs:
        return {**embedded_limits(self._knobs)}

    def start_facts(self) -> Sequence[tuple[str, Values]]:
        return ((ARGUMENTS, of_knobs(self._knobs)),)

    def _on_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "serving":
            self.url = rest
        elif word == "progress":
            self._progress(f"the embedded server: {rest}")

    async def _serves(self) -> bool:
        return bool(self.url)


async def until_answered(
    url: str,
    wait_s: float,
    progress: Callable[[str], None],
    ask: Callable[[float], Awaitable[Answer]],
) -> Answer:
    """The answer of `ask`, which gets the seconds that are left. Raises ServerFailed: at once for a
    problem that no retry can solve.

    A refused connection is retried for `wait_s`. A server that accepts and does not answer, or
    answers HTTP 502 or 503, is asked for PATIENCE_S at least.
    """
    progress(f"asking {url}")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        try:
            return await ask(max(ASK_EVERY_S, begun + max(wait_s, PATIENCE_S) - loop.time()))
        except (aiohttp.ClientError, TimeoutError, OSError) as problem:
            reason, hope = explain(problem), outlook(problem)
        if hope == "refused":
            reason += f": nothing listens at {URL(url).host}:{URL(url).port}"
        if url.startswith("http:") and hope == "later" and await speaks_tls(url):
            reason, hope = f"the server speaks TLS: use https{url.removeprefix('http')}", "never"
        waited_s = loop.time() - begun
        if hope == "never":
            raise ServerFailed(f"{url}: {reason}")
        if waited_s + ASK_EVERY_S > (wait_s if hope == "refused" else max(wait_s, PATIENCE_S)):
            after = f" after {waited_s:.0f} s" if waited_s >= 1 else ""
            advice = "" if wait_s else "; --wait S waits for a server that is starting"
            raise ServerFailed(f"{url}: {reason}{after}{advice}")
        progress(f"waiting for {url}: {reason}")
        await asyncio.sleep(ASK_EVERY_S)


class RemoteServer(ModelServer):
    """A server that already runs."""

    def __init__(
        self, progress: Callable[[str], None], url: str, model: str, wait_s: float
    ) -> None:
        """`model`: empty for the first model that the server lists. `wait_s`: seconds that a server
        may take to start."""
        super().__init__(progress)
        self.url, self.model, self._wait_s = url.rstrip("/").removesuffix("/v1"), model, wait_s

    async def start(self, session: aiohttp.ClientSession) -> None:
        """Ask the server for its models until it answers."""
        names = await until_answered(
            self.url,
            self._wait_s,
            self._progress,
            lambda left_s: served_models(
                session, self.url, self.model, min(PROBE_TIMEOUT_S, left_s)
            ),
        )
        if len(names) > 1 and not self.model:
            self.notes.append(
                f"the server lists {len(names)} models, and the load asks {visible(names[0])};"
                f" --model NAME asks another: {shown_names(names[1:])}"
            )
        self.model = self.model or names[0]


class VllmServer(ModelServer):
    """vLLM as a child process."""

    PHASES = (
        ("Loading safetensors", "loading weights"),
        ("Starting to load model", "loading weights"),
        ("Compiling a graph", "compiling"),
        ("torch.compile takes", "compiling"),
        ("Capturing CUDA graph", "capturing CUDA graphs"),
        ("KV cache size", "KV cache allocated"),
        ("Started server process", "opening the API"),
    )

    def __init__(
        self,
        progress: Callable[[str], None],
        knobs: Knobs,
        options: dict[str, str],
        devices: Sequence[str],
        uuid: str,
        scratch: Path,
    ) -> None:
        """`devices`: `cpu`, `gpu:N` in NVML's order, or a MIG slice; several GPUs for tensor
        parallelism. `uuid` names the first to CUDA. `scratch`: a private folder."""
        super().__init__(progress)
        self._scratch = scratch
        self._knobs, self._options, self._devices, self._uuid = knobs, options, devices, uuid
        self._python = ""
        self._command: list[str] = []
        self.model_facts: dict[str, float] = {}
        self._limits: mmap.mmap | None = None
        """The LIVE_KNOBS in order; after them vLLM's scheduler writes those that it chose."""
        self._frontends: list[psutil.Process] | None = None

    async def start(self, session: aiohttp.ClientSession) -> None:
        if not self._options.get("model"):
            raise ServerFailed("server=vllm needs a model: --model NAME, or a directory")
        if self._options["model"].startswith(("/", "./", "../")) and not os.path.exists(
            self._options["model"]
        ):
            raise ServerFailed(f"--model {self._options['model']}: no such directory")
        self._session, port = session, free_port()
        self.model_facts = model_facts(Path(self._options["model"]), self._knobs)
        self.facts |= self.model_facts
        if why := no_room(self._devices, float(self._knobs["gpu_memory_utilization"])):
            raise ServerFailed(why)
        self.url, self.model = f"http://127.0.0.1:{port}", "model"
        python = self._python = self._options.get("vllm_python") or find_vllm_python()
        command = [
            python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        command += [
            "--served-model-name",
            self.model,
            *vllm_flags(self._knobs, self._options, self._on_cpu),
        ]
        environment = (
            vllm_environment(self._knobs)
            | {"VLLM_API_KEY": api_key(self._options)}
            | cuda_devices(self._devices, self._uuid)
        )
        # the file is not needed after both sides have mapped it
        with tempfile.NamedTemporaryFile(dir=self._scratch) as limits:
            if OWN_SCHEDULER not in self._options.get("vllm_args", "").replace("_", "-"):
                limits.write(bytes(2 * LAYOUT.size))
                limits.flush()
                self._limits = mmap.mmap(limits.fileno(), 2 * LAYOUT.size)
                path = os.pathsep.join(filter(None, (str(IN_VLLM), os.environ.get("PYTHONPATH"))))
                environment |= {"GPUCONSOLE_CAPS": limits.name, "PYTHONPATH": path}
                command += [OWN_SCHEDULER, "gpuconsole_caps.scheduler"]
            try:
                await self._launch(command, environment)
            except ServerFailed:
                refused = [
                    flag
                    for flag in NEWER_FLAGS
                    if any(
                        UNKNOWN_FLAGS in line and flag in line.split() for line in self.log_lines
                    )
                ]
                if not refused:
                    raise
                self._progress(f"vLLM: this version lacks {', '.join(refused)}; starting again")
                await self._launch([word for word in command if word not in refused], environment)
        in_force = {**self._knobs, **self.limits()}
        # 0: not known. The fact itself says that the server was started here
        # (session.machine.STARTED_HERE)
        self.facts["max_num_seqs"] = float(in_force["max_num_seqs"])
        if self._limits is not None and all(in_force[name] for name in LIVE_KNOBS):
            self.facts |= live_limits(in_force)

    @property
    def _on_cpu(self) -> bool:
        return list(self._devices) == ["cpu"]

    async def _launch(self, command: list[str], environment: dict[str, str]) -> None:
        """Raises ServerFailed."""
        self._progress("vLLM: importing")
        self._command = command
        self.log_lines.clear()
        await self._spawn(command, environment, self._on_line)
        await self._wait_for(self._healthy, READY_S)

    def limits(self) -> Knobs:
        """As vLLM's scheduler reports them in the file. With a scheduler of the user's own, as the
        log does."""
        if self._limits is not None:
            chosen = LAYOUT.unpack_from(self._limits, LAYOUT.size)
            return {name: limit for name, limit in zip(LIVE_KNOBS, chosen, strict=True) if limit}
        logged = of_log(self.log_lines).get("max_num_batched_tokens")
        return (
            {"max_num_batched_tokens": int(logged)}
            if logged and not self._knobs["max_num_batched_tokens"]
            else {}
        )

    async def set_limits(self, knobs: Knobs) -> None:
        if self._limits is None:
            raise ServerFailed(
                f"vLLM was started with a {OWN_SCHEDULER} of yours, which takes no limits while it"
                " runs"
            )
        LAYOUT.pack_into(self._limits, 0, *(int(knobs[name]) for name in LIVE_KNOBS))

    def frontend_cpu_s(self) -> float | None:
        """The CPU seconds of the busiest process if there are several (`api_server_count`)."""
        if self.process is None or self.process.returncode is not None:
            return None
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            # processes set their titles after the start; later there are no new processes
            if self._frontends is None:
                servers = [
                    process
                    for process in root.children(recursive=True)
                    if any("APIServer" in word for word in process.cmdline())
                ]
                self._frontends = servers or [root]
            return max(sum(process.cpu_times()[:2]) for process in self._frontends)
        return None

    def start_facts(self) -> Sequence[tuple[str, Values]]:
        scheduler: Values = (
            {name: float(limit) for name, limit in self.limits().items()}
            if self._limits is not None
            else {}
        )
        return (
            (SCHEDULER, scheduler),
            (LOG, of_log(self.log_lines)),
            (ARGUMENTS, of_arguments(self._command)),
            (FILES, of_numbers(self.model_facts)),
        )

    def death(self) -> str:
        if any("No module named 'vllm'" in line for line in self.log_lines):
            # PyPI has vLLM for NVIDIA GPUs only
            install = "" if self._on_cpu else f", or {install_command('vllm')}"
            return (
                f"{self._python} has no vLLM: set --vllm-python to a Python that has vLLM{install}"
            )
        return super().death()

    def _on_line(self, line: str) -> None:
        if is_fatal(line):
            self.broken.set()
        phase = next((phase for text, phase in self.PHASES if text in line), None)
        if phase:
            self._progress(f"vLLM: {phase}")
        if tokens := of_log([line])["kv_cache_tokens"]:
            self.facts["kv_cache_tokens"] = float(tokens)

    async def _healthy(self) -> bool:
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
            async with self._session.get(
                f"{self.url}/health", timeout=timeout, allow_redirects=False
            ) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            await asyncio.sleep(ASK_EVERY_S)
            return False


def find_vllm_python() -> str:
    """The Python with vLLM: this Python, otherwise the Python in the first line of the program
    `vllm` on the path, otherwise this Python."""
    program = shutil.which("vllm")
    if importlib.util.find_spec("vllm") is None and program is not None:
        with reading(Path(program), regular=True) as file:
            first = file.readline(MAX_SHEBANG_BYTES).decode(errors="replace").strip()
        if first.startswith("#!") and "python" in first and os.access(first[2:].strip(), os.X_OK):
            return first[2:].strip()
    return sys.executable


CONTEXT_BYTES = 5e8
"""A CUDA context of vLLM's process, which is on the card when vLLM looks at the free memory. Half a
GB: H100, torch 2.x."""


def no_room(devices: Sequence[str], share: float) -> str:
    """Why vLLM cannot start on `devices` with `gpu_memory_utilization` = `share`, in one line;
    empty where it can, and where nothing is known.

    vLLM ends after its start of a minute where the free memory is less than `share` of the whole
    (vllm/v1/worker/utils.py, request_memory: "Free memory on device ... is less than desired GPU
    memory utilization"). With several GPUs, the answer is about the first GPU that lacks room.
    Nothing is known about a MIG slice.
    """
    for device in devices:
        index = device.removeprefix("gpu:")
        memory = device_memory(int(index)) if index.isdigit() else None
        if memory is None or memory.free_bytes >= share * memory.total_bytes + CONTEXT_BYTES:
            continue
        total, free = memory.total_bytes, memory.free_bytes
        fits = math.floor(100 * max(0.0, free - CONTEXT_BYTES) / total) / 100
        return (
            f"vLLM does not fit on {device}: it takes {share * total / 1e9:.1f} GB"
            f" (gpu_memory_utilization {share:g} of {total / 1e9:.1f} GB), and {free / 1e9:.1f} GB"
            f" are free, because other processes hold {(total - free) / 1e9:.1f} GB. End them"
        ) + (f", or --set gpu_memory_utilization={fits:g}" if fits >= MIN_CACHE_SHARE else "")
    return ""


MIN_CACHE_SHARE = 0.05
"""The lowest value of the knob gpu_memory_utilization."""


def live_limits(knobs: Knobs) -> dict[str, float]:
    """Facts of a server whose limits can be lowered while it runs.

    Without chunked prefill a prompt that is longer than an iteration would wait forever, together
    with all later prompts.
    """
    names = LIVE_KNOBS if knobs["enable_chunked_prefill"] else LIVE_KNOBS[:1]
    return {live_limit_fact(name): float(knobs[name]) for name in names}


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def model_facts(folder: Path, knobs: Knobs) -> dict[str, float]:
    """Bytes of the weights and of one token's keys and values, from the model files in `folder`;
    empty if `folder` has no model.

    Weights count with the dtype of the server; weights of a quantized model count as stored on
    disk.
    """
    try:
        config = json.loads(read_limited(folder / "config.json", MAX_CONFIG_BYTES, regular=True))
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or config["hidden_size"] // heads)
        width = int(config.get("num_key_value_heads") or heads) * size
        layers = int(config["num_hidden_layers"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    used = stored if knobs["dtype"] == "auto" else str(knobs["dtype"])
    weights = (
        sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        / BYTES.get(stored, 2)
        * BYTES.get(used, 2)
    )
    each = KV_BYTES.get(str(knobs["kv_cache_dtype"]), BYTES.get(used, 2))
    return {
        "kv_bytes_per_token": float(2 * layers * width * each),
        **({"weight_bytes": weights} if weights else {}),
    }


FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "max_model_len",
    "dtype",
    "tensor_parallel_size",
)
SWITCHES = ("enable_prefix_caching", "enable_chunked_prefill")
LEFT_OUT = {"api_server_count": 1, "quantization": "none", "kv_cache_dtype": "auto"}
"""Values for which vLLM has no flag; the flag is omitted."""


NEWER_FLAGS = ("--enable-mfu-metrics",)
"""Flags that older versions of vLLM lack (vllm pull request 30738 brought the flag). vLLM starts
again without a flag that it refuses: a look into its `--help` would cost 10 s at every start,
because vLLM imports everything first."""
UNKNOWN_FLAGS = "error: unrecognized arguments:"
"""argparse's message."""
CPU_BLOCK = 128
GPU_BLOCK = 16
"""Tokens in a block of the KV cache that vLLM 0.32 chooses for most models (vllm/platforms/cpu.py;
vllm/config/cache.py)."""


def vllm_flags(knobs: Knobs, options: dict[str, str], on_cpu: bool) -> list[str]:
    """The vLLM command line for `knobs`."""
    flags = ["--model", options.get("model", "")]
    if wanted := int(knobs["num_gpu_blocks_override"]) * BLOCK_TOKENS:
        chosen = of_arguments(options.get("vllm_args", "").split()).get("block_size")
        size = int(chosen or (CPU_BLOCK if on_cpu else GPU_BLOCK))
        flags += ["--num-gpu-blocks-override", str(max(1, wanted // size))]
    for name in FLAGS:
        if name not in LIVE_KNOBS or knobs[name]:  # vLLM chooses by the card and the model
            flags += [f"--{name.replace('_', '-')}", show(knobs[name])]
    for name, nothing in LEFT_OUT.items():
        if knobs[name] != nothing:
            flags += [f"--{name.replace('_', '-')}", show(knobs[name])]
    for name in SWITCHES:
        flags.append(f"--{'' if knobs[name] else 'no-'}{name.replace('_', '-')}")
    if guessed := int(knobs["num_speculative_tokens"]):
        config = {
            "method": "ngram",
            "num_speculative_tokens": guessed,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        }
        flags += ["--speculative-config", json.dumps(config)]
    if knobs["enforce_eager"]:
        flags.append("--enforce-eager")
    return [*flags, *NEWER_FLAGS, *options.get("vllm_args", "").split()]


def cuda_devices(devices: Sequence[str], uuid: str) -> dict[str, str]:
    """The environment with which vLLM uses these GPUs.

    vLLM before August 2026 reads the entries of CUDA_VISIBLE_DEVICES as numbers and ends on a uuid
    (vllm issue 13815). NVML counts by PCI bus, and with CUDA_DEVICE_ORDER CUDA does so, too. A MIG
    slice has no number.
    """
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if list(devices) == ["cpu"]:
        return order
    numbers = [device.removeprefix("gpu:") for device in devices]
    known = all(number.isdigit() for number in numbers)
    return order | {"CUDA_VISIBLE_DEVICES": ",".join(numbers) if known else uuid}


def vllm_environment(knobs: Knobs) -> dict[str, str]:
    """Environment: no vLLM telemetry, and on a CPU the requested number of threads (on a busy
    machine spin barriers make two threads very slow)."""
    threads = int(knobs["omp_num_threads"])
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        **(
            {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            if threads
            else {}
        ),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NotReady(aiohttp.ClientError):
    """The server, or a proxy in front of it, answers that the model server is not available yet."""


async def check_usable(
    answer: aiohttp.ClientResponse, session: aiohttp.ClientSession, url: str, page: str
) -> None:
    """Raise ServerFailed for a lasting refusal that no other page of the server at `url` can
    change. Raise NotReady if the server starts or is overloaded."""
    if elsewhere := redirection(answer):
        raise ServerFailed(f"{page} answers {elsewhere}")
    if answer.status in (401, 403):
        what, advice = KEY_ADVICE["Authorization" in session.headers]
        raise ServerFailed(f"{page} {what} (HTTP {answer.status}): {advice}")
    if answer.status in NOT_READY:
        raise NotReady(f"the server answers HTTP {answer.status}")
    if answer.status == 400 and page.startswith("http:") and await speaks_tls(page):
        raise ServerFailed(f"{url}: the server speaks TLS: use https{url.removeprefix('http')}")


KEY_ADVICE = {
    True: ("rejects the API key", "check the variable of --api-key-env"),
    False: ("needs an API key", "name the variable that holds it with --api-key-env"),
}


def shown_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(map(visible, names[:MAX_NAMES]))}{more}" or "none"


async def served_models(
    session: aiohttp.ClientSession, url: str, wanted: str, timeout_s: float = PROBE_TIMEOUT_S
) -> list[str]:
    """The models of the server; at least one, and `wanted` among them where that is not empty.

    Raises ServerFailed for a refusal that lasts, NotReady, and aiohttp's errors and TimeoutError if
    the server does not answer.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with session.get(f"{url}/v1/models", timeout=timeout, allow_redirects=False) as answer:
        await check_usable(answer, session, url, f"{url}/v1/models")
        if answer.status == 404 and wanted and await _completes(session, url, timeout):
            return [wanted]  # some gateways list no models
        if answer.status != 200:
            raise ServerFailed(
                f"{url}/v1/models answers HTTP {answer.status}: not an OpenAI-compatible server, or"
                " another path"
            )
        try:
            listed = await read_json(answer)
        except ValueError as problem:
            raise ServerFailed(
                f"{url}/v1/models: {problem}: not an OpenAI-compatible server"
            ) from None
    models = listed.get("data") if isinstance(listed, dict) else None
    names = (
        [
            name
            for model in models
            if isinstance(model, dict)
            and 0 < len(name := str(model.get("id") or "")) <= MAX_NAME_LENGTH
        ]
        if isinstance(models, list)
        else []
    )
    if not names and not wanted:
        raise ServerFailed(f"{url}/v1/models lists no model: name it with --model")
    if wanted and names and wanted not in names:
        raise ServerFailed(
            f"{url} does not serve the model {wanted}: it serves {shown_names(names)}"
        )
    return names or [wanted]


async def _completes(
    session: aiohttp.ClientSession, url: str, timeout: aiohttp.ClientTimeout
) -> bool:
    """Whether the server has one of the addresses for completions. The empty request starts no
    work."""
    for path in ("completions", "chat/completions"):
        async with session.post(
            f"{url}/v1/{path}", json={}, timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status != 404:
                return True
    return False
