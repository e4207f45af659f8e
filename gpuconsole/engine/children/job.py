"""The user's own command: it starts with the agent injected, its output passes through, and nothing
here ever kills it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import hmac
import itertools
import math
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gpuconsole.diagnosis.models.out_of_memory import completed, headline
from gpuconsole.engine.children.agreement import MIN_STEPS_AHEAD, Agreement
from gpuconsole.engine.children.child import LINE_LIMIT, STOP_S, Child, EndProtocol
from gpuconsole.engine.children.environment import without_ours
from gpuconsole.engine.children.host_memory import WorkersMemory, oom_kills, why_killed
from gpuconsole.engine.children.one_shot import analysed
from gpuconsole.engine.children.signals import signal_name
from gpuconsole.engine.children.terminal.lines import failure_words
from gpuconsole.model.encoding import utf8
from gpuconsole.model.profile import window_signals
from gpuconsole.model.run import RunState
from gpuconsole.model.text import hide_secrets
from gpuconsole.session.segments import SegmentFold
from gpuconsole.wire.events import (
    AgentOff,
    AnyEvent,
    Command,
    JobKnown,
    JobProcess,
    KnobsSet,
    MemoryLines,
    Note,
    OutOfMemory,
    ProbeDone,
    Profile,
    Profiled,
    Progress,
    RankJoined,
    RunOpened,
    Segments,
    SetKnobs,
    Stacks,
    Started,
    Stop,
    decode_event,
    encode,
)

AGENT = "_gpuconsole_agent"
"""The name of the agent's copy as a package."""
NO_TORCH = "No module named 'torch'"
MEMORY_CONSENT_FILE = "memory"
"""A file in the folder of the job: the user has agreed to a history of allocations
(agent/hooks/evidence/memory_lines.py)."""
JOIN_S = 10.0
OUT_OF_SIGHT = (
    "no Python process of the job has loaded the agent: python -I, -E or -S, a frozen program, or a"
    " program without Python"
)


LAUNCHERS = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
"""Modules that start a script of the user's."""
ISOLATED = re.compile(r"-[A-Za-z]*[IES][A-Za-z]*")
"""Options of Python that keep PYTHONPATH or `sitecustomize` away."""
OLD_PYTHONS = tuple(f"3.{minor}." for minor in range(10))
WITHOUT_TORCH = {"jax": "JAX", "tensorflow": "TensorFlow"}
"""Frameworks with which a program trains without torch, by their module; the job's Python notes
their import (agent/inject/sitecustomize.py)."""
SHOWN = "devices and processes are shown"
NO_STEP_YET = "the job has imported torch, and has made no optimizer step"
NO_STEP = f"{NO_STEP_YET}: neither inference nor updates without torch.optim are measured"
NO_PYTHON_YET = "Python of the job starts"
FIRST_PYTHON_S = 10.0
"""Seconds until a job without a Python process is no longer expected to start one."""
START_PERIOD_S = 0.5
WINDOW_AHEAD_S = 1.5
"""Seconds of steps from a request for a profiler window in one process of several to its first
step. A process reports its steps once a second."""
SILENT_S = 1.0
"""From the end of a process's connection to the look whether the process goes on."""


class JobCommand(msgspec.Struct, frozen=True):
    """The user's command. `stdin`, `stdout`, `stderr`: file descriptors for the job; None: those of
    this process.

    `leader`: the words of a program that takes the terminal on stdin as its own and then becomes
    the command (`JobTerminal.leader`). The job leads a session of its own then. `stored`: whether
    the words go into the snapshot and the recording.
    `apart`: the job leads a session of its own also without a terminal, so that all its processes
    can be ended.
    """

    words: tuple[str, ...]
    leader: tuple[str, ...] = ()
    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    stored: bool = False
    apart: bool = False
    memory: bool = False
    """Whether torch keeps a history of the job's allocations on a GPU (`--memory`)."""
    allows_numerics: bool = False
    """Whether the user agrees to changes that alter the numbers of the job (`--allow-numerics`)."""
    allows_loader: bool = False
    """Whether the user agrees to new workers of the job's DataLoader (`--allow-loader`)."""
    joins: int = 0
    """The process that is joined (`JoinedJob`); 0: the words are started."""
    last_output: Callable[[], Awaitable[list[str]]] | None = None
    """Gives the last lines of the output once the job has ended; None where the output does not
    come to this process."""

    def __post_init__(self) -> None:
        hide_secrets(self.words)

    @property
    def leads(self) -> bool:
        """Whether the job leads a session of its own."""
        return self.apart or bool(self.leader)

    @property
    def digest(self) -> str:
        """Identifies the words of the command without showing them; the folder of the program does
        not count."""
        words = (os.path.basename(self.words[0]), *self.words[1:])
        return hashlib.blake2s(
            "\0".join(words).encode("utf-8", "surrogateescape"), digest_size=6
        ).hexdigest()

    def identify(self, opened: RunOpened) -> RunOpened:
        """`opened` with the digest of the command, and with its words where the user wants them
        stored."""
        return msgspec.structs.replace(
            opened, digest=self.digest, command=tuple(map(utf8, self.words)) if self.stored else ()
        )

    @property
    def name(self) -> str:
        """The script of the command, without its folder, or the module after `-m`; else the
        program.

        The name is shown, recorded and published, so that it is never a text that could hold a
        secret: a line for a shell, `NAME=value`, an address.
        """
        words = [part for word in self.words for part in _split(word)]
        for before, word in itertools.pairwise(("", *words)):
            if word.endswith(".py") or (before == "-m" and word not in LAUNCHERS):
                return utf8(os.path.basename(word))
        program = os.path.basename(self.words[0])
        return utf8(program) if "=" not in program else "job"


def _split(word: str) -> list[str]:
    """The words of a line for a shell, as in `bash -c LINE`, or the one word; without those that
    can be no name. The name of a file may have spaces."""
    if "=" not in word and os.path.isfile(word):
        return [word]
    try:
        words = shlex.split(word) if any(map(str.isspace, word)) else [word]
    except ValueError:  # a quotation without an end
        return []
    return [
        part
        for part in words
        if "=" not in part and "://" not in part and not any(map(str.isspace, part))
    ]


def descendants(pid: int) -> list[psutil.Process]:
    """The children of a process, and their children; empty where the process has ended."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


async def until_cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, and end without an error where it is cancelled: asyncio in Python 3.11 logs a
    traceback for a cancelled handler of a connection."""
    with contextlib.suppress(asyncio.CancelledError):
        await work


def ignore_process(process: JobProcess) -> None:
    """Nobody asks for the processes of the job."""


def probe_of(window: Profiled) -> ProbeDone:
    """The answer of the probe for which this window was taken."""
    signals = window_signals(window.report) if window.report is not None else {}
    return ProbeDone(window.t, window.request, window.probe, signals, window.error, window.cost_s)


class JobFolder:
    """The private folder (mode 0700) of one job: the agent, `sitecustomize.py`, the socket, the
    doorbell and the file `seen`. Raises OSError."""

    def __init__(self, path: Path, memory: bool = False) -> None:
        """`path`: a private folder. `memory`: torch keeps a history of allocations; the agent looks
        for the file MEMORY_CONSENT_FILE."""
        self.path = path / "job"
        self.path.mkdir(mode=0o700)
        if memory:
            (self.path / MEMORY_CONSENT_FILE).touch(mode=0o600)
        self.socket = self.path / "socket"
        self._seen = self.path / "seen"
        self._seen.touch(mode=0o600)
        self._doorbell, self._count = self.path / "doorbell", 0
        self._doorbell.touch(mode=0o600)
        self.ring()
        with as_file(files("gpuconsole")) as package:
            agent = package / "agent"
            try:
                shutil.copytree(
                    agent, self.path / AGENT, ignore=shutil.ignore_patterns("__pycache__", "inject")
                )
            except shutil.Error as failed:  # its text has a line for each file
                number = (
                    int(found[1])
                    if (found := re.match(r"\[Errno (\d+)\]", str(failed.args[0][0][2])))
                    else errno.EIO
                )
                raise OSError(number, os.strerror(number), str(self.path)) from None
            shutil.copy(agent / "inject" / "sitecustomize.py", self.path / "sitecustomize.py")

    def environment(self, token: str) -> dict[str, str]:
        """The variables of the job, beside those of this process."""
        former = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": f"{self.path}{os.pathsep}{former}" if former else str(self.path),
            "GPUCONSOLE_AGENT": str(self.path),
            "GPUCONSOLE_TOKEN": token,
        }

    def ring(self) -> None:
        """Raise the counter of the doorbell: the agents read their sockets then. Without the
        doorbell they do so with their next message."""
        self._count += 1
        with (
            contextlib.suppress(OSError),
            self._doorbell.open("r+b") as file,
        ):  # the folder may have been removed: the agents ask at each message too
            file.write(self._count.to_bytes(8, "little"))

    def seen(self) -> list[list[str]]:
        """For each note of a Python process: pid, what was seen, Python's version, the first words
        of its command line."""
        with contextlib.suppress(OSError):
            return [
                line.split("\t")
                for line in self._seen.read_text(encoding="utf-8", errors="replace").splitlines()
            ]
        return []

    def without_training(self, command: Sequence[str]) -> str:
        """Why nothing trains so far in the job of the command `words`, in one line, where no
        process of the job has imported torch."""
        seen = self.seen()
        if not seen:
            flag = next((word for word in command[1:2] if ISOLATED.fullmatch(word)), "")
            return (
                f"python {flag} does not load the agent: start the job without {flag}"
                if flag
                else OUT_OF_SIGHT
            )
        versions = {note[2] for note in seen if len(note) > 2}
        if versions and all(version.startswith(OLD_PYTHONS) for version in versions):
            return (
                f"the job's Python is {', '.join(sorted(versions))}: the agent needs Python 3.10 or"
                " newer"
            )
        failed = next(
            (note[1] for note in seen if len(note) > 1 and note[1].startswith("failed")), ""
        )
        if failed:
            return f"the agent could not start: {failed.removeprefix('failed: ')}"
        imported = {note[1] for note in seen if len(note) > 1}
        other = next((name for module, name in WITHOUT_TORCH.items() if module in imported), "")
        if other:
            return (
                f"the job uses {other}, which the agent cannot watch; it watches the steps of"
                f" PyTorch; {SHOWN}"
            )
        if "numpy" in imported:
            return (
                "the job's Python has not imported torch, only NumPy; the agent watches the steps"
                f" of PyTorch; {SHOWN}"
            )
        return "the job's Python has not imported torch"


def no_torch(command: Sequence[str]) -> str:
    """What helps where the Python of `command` has no torch, in one line. An environment made for
    gpuconsole alone hides the Python of the job."""
    program = shutil.which(command[0]) if Path(command[0]).name.startswith("python") else None
    return (
        f"{program or 'the Python of the job'} has no torch: install it there, or write the path of"
        " another Python after --"
    )


class JobChild(Child):
    """The user's command and its processes. Each process that trains is a rank; commands go to
    every rank. The leader's answer counts, unless another rank refuses.

    The command stays in the process group of the console, as with `time` or `env`: keys such as
    Ctrl-C and Ctrl-Z act on both alike, and the shell knows one job.

    `stop` and `kill` only take leave: every agent switches itself off, and the job continues.
    `returncode` is the job's exit code, or minus the signal.
    """

    def __init__(
        self,
        command: JobCommand,
        scratch: Path,
        on_event: Callable[[AnyEvent], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """`scratch`: see `JobFolder`."""
        super().__init__("", [], on_event, on_exit)
        self.command = command
        self._folder = JobFolder(scratch, command.memory)
        self._token = os.urandom(16).hex()
        self._server: asyncio.Server | None = None
        self._ranks: dict[int, asyncio.StreamWriter] = {}
        self._answers: dict[int, dict[int, KnobsSet | ProbeDone | Profiled]] = {}
        self._agreements: dict[int, Agreement] = {}
        """By request: the changes that several processes make before one step."""
        self._windows: dict[int, int] = {}
        """By request: the process that takes a profiler window, of several processes; its trace is
        still to come."""
        self._reached: dict[int, int] = {}
        """The last step of each process that is known."""
        self._step_s = 1.0
        """The mean time of the last steps in seconds."""
        self._torch = self._stepped = self._left = False
        self.why_no_steps = ""
        """Why the job made no step, in one line, once it has ended; empty where it made steps."""
        self._cause = ""
        self._kills_before: int | None = None
        """Processes that the kernel had ended before the job began, because host memory ran out."""
        self._out_of_memory: dict[int, OutOfMemory] = {}
        """For each process, the last allocation that failed, until the program makes a further
        step."""
        self.processes: list[JobProcess] = []
        self.on_process: Callable[[JobProcess], object] = ignore_process
        """Called for each process of the job that has imported torch."""

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    async def start(self) -> None:
        """Start the command. Raises OSError, for example where the program does not exist."""
        await self._listen()
        try:
            await self._run((*self.command.leader, *self.command.words))
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # a script without a first line `#!`, as a shell does it
            await self._run(("/bin/sh", *self.command.words))
        self._begin()

    def _begin(self) -> None:
        """Wait for the end of the job, and report its start."""
        self._start_report = asyncio.create_task(self._report_start())
        self._tasks = [asyncio.create_task(self._wait_for_end()), self._start_report]

    async def _listen(self) -> None:
        """Make the socket for the processes of the job."""
        self._kills_before = oom_kills()
        folder = os.open(self._folder.path, os.O_RDONLY | os.O_DIRECTORY)
        # by way of the descriptor: the address of a Unix socket has at most 107 bytes, and TMPDIR
        # may be long
        try:
            self._server = await asyncio.start_unix_server(
                lambda *streams: until_cancelled(self._serve(*streams)),
                f"/proc/self/fd/{folder}/{self._folder.socket.name}",
                limit=LINE_LIMIT,
            )
        finally:
            os.close(folder)
        # nobody else could reach it before: its folder has mode 0700
        os.chmod(self._folder.socket, 0o600)

    async def _run(self, command: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: EndProtocol(self._ended),
            *command,
            stdin=self.command.stdin,
            stdout=self.command.stdout,
            stderr=self.command.stderr,
            start_new_session=self.command.leads,
            env={**without_ours(os.environ), **self._folder.environment(self._token)},
        )
        # asyncio kills a process that runs when its transport is closed or dropped: from Python
        # 3.12 on at the end of the console. The job goes on.
        popen: Any = transport.get_extra_info("subprocess")
        popen.kill = lambda: None
        self._process = asyncio.subprocess.Process(transport, protocol, loop)

    def signal(self, number: int) -> None:
        """Send a signal to the job: to all processes of its session if it leads one, else to the
        process of the command, as a shell's `kill` does. SIGKILL also goes to all its descendants,
        because a launcher that is killed cannot end its workers. Nothing happens when the job has
        ended."""
        if self._process is None or self._process.returncode is not None:
            return
        below = descendants(self._process.pid) if number == signal.SIGKILL else []
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if self.command.leads else os.kill)(self._process.pid, number)
        for process in below:
            with contextlib.suppress(psutil.Error):  # it has ended with its parent
                process.kill()

    def send(self, command: Command) -> None:
        """Send `command` to each rank. Several ranks first prepare a change."""
        if isinstance(command, SetKnobs) and len(self._ranks) > 1:
            self._agreements[command.request] = agreement = Agreement(command)
            command = agreement.prepare()
        elif isinstance(command, Profile) and len(self._ranks) > 1:
            if command.rank not in self._ranks:
                self._on_event(
                    Profiled(
                        time.monotonic(),
                        command.request,
                        None,
                        f"the job has no process {command.rank}",
                    )
                )
                return
            self._windows[command.request] = command.rank
            ahead = MIN_STEPS_AHEAD + math.ceil(WINDOW_AHEAD_S / self._step_s)
            command = dataclasses.replace(
                command, at_step=max(self._reached.values(), default=0) + ahead
            )
        self._send(command)

    def _send(self, command: Command) -> None:
        for writer in self._ranks.values():
            if not writer.is_closing():
                writer.write(encode(command) + b"\n")
        self._folder.ring()

    async def stop(self, command: Command, patience_s: float = STOP_S) -> None:
        """Take leave of the job."""
        self.detach()

    def kill(self) -> None:
        self.detach()

    def hang_up(self) -> None:
        self.detach()

    def detach(self) -> None:
        """Switch off the agents. The job continues without the console."""
        if not self._left:
            self._left = True
            self.send(Stop())
            for writer in self._ranks.values():
                writer.close()

    def ending(self, code: int) -> tuple[RunState, str | None]:
        """The state of the run after the end of the job with `code`, and the error in one line. A
        job that the user ended was stopped."""
        if code in (-signal.SIGINT, -signal.SIGTERM):
            return "stopped", self.why_no_steps or None
        if code:
            how = (
                f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            )
            cause = (
                headline(min(self._out_of_memory.values(), key=lambda event: event.t).failure)
                if self._out_of_memory
                else self._cause
            )
            cause = why_killed(code, self._kills_before, oom_kills()) or cause
            why = no_torch(self.command.words) if NO_TORCH in (cause or "") else self.why_no_steps
            return "failed", "; ".join(
                filter(None, (cause, f"the job {how}", "" if self._out_of_memory else why))
            )
        return "finished", self.why_no_steps or None

    async def _report_start(self) -> None:
        """Report what the job has done so far, until its first step."""
        begun, said = time.monotonic(), ""
        while not self._stepped and not self._ended.is_set() and not self._left:
            reason = (
                self._without_steps()
                if self._folder.seen() or time.monotonic() - begun > FIRST_PYTHON_S
                else NO_PYTHON_YET
            )
            if reason != said:
                said = reason
                self._on_event(Progress(time.monotonic(), reason))
            await asyncio.sleep(START_PERIOD_S)

    def _without_steps(self) -> str:
        """Why the job has no steps, in one line; empty where it has steps."""
        if self._stepped:
            return ""
        if self._torch:
            return NO_STEP_YET if not self._ended.is_set() else NO_STEP
        return self._folder.without_training(self.command.words)

    # --- the job's processes ----------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one process of the job, from its first message to its end."""
        joined = await self._first_message(reader)
        if joined is None or self._left:
            writer.close()
            return
        self._torch = True
        self.processes.append(joined)
        self.on_process(joined)
        fold, workers = SegmentFold(), WorkersMemory(joined.pid)
        rank: int | None = None
        off = False

        def on_event(event: AnyEvent) -> None:
            nonlocal rank, off
            if isinstance(event, AgentOff):
                off = True
                if event.raised:
                    self._has_gone_on(event.pid)
            if isinstance(event, RankJoined):
                if event.rank in self._ranks:
                    self._turn_away(joined.pid, event, writer)
                    return
                rank = event.rank
                self._ranks[rank] = writer
                if event.world_size == 1:
                    return
            elif isinstance(event, JobKnown | Stacks):
                fold.learn(event)
            elif isinstance(event, OutOfMemory):  # the process may not have made a step yet
                self._memory_failed(event)
                return
            elif isinstance(event, MemoryLines):
                self._on_event(event)
                return
            if rank is not None or (isinstance(event, AgentOff) and event.where):
                self._on_rank_event(event, fold, rank or 0, workers)

        await self._read_events(reader, on_event)
        if rank is not None and self._ranks.get(rank) is writer:
            del self._ranks[rank]
            self._settle_answers()
        writer.close()
        if rank is not None and not off:
            await self._report_silence(joined)

    async def _first_message(self, reader: asyncio.StreamReader) -> JobProcess | None:
        with contextlib.suppress(
            TimeoutError, ConnectionError, ValueError, msgspec.DecodeError, RecursionError
        ):
            async with asyncio.timeout(JOIN_S):
                event = decode_event(await reader.readline())
            if isinstance(event, JobProcess) and hmac.compare_digest(
                event.token.encode(), self._token.encode()
            ):
                return msgspec.structs.replace(event, token="")
        return None

    async def _report_silence(self, joined: JobProcess) -> None:
        """A process has closed its connection without a word. Report that where it goes on: nothing
        is measured there any more."""
        await asyncio.sleep(SILENT_S)
        again = any(
            earlier.pid == joined.pid and earlier.t > joined.t for earlier in self.processes
        )
        if not self._left and not again and psutil.pid_exists(joined.pid):
            text = (
                f"process {joined.pid} of the job goes on without its connection to the console:"
                " its steps are not measured any more"
            )
            self._on_event(Note(time.monotonic(), text, "warning"))

    def _turn_away(self, pid: int, event: RankJoined, writer: asyncio.StreamWriter) -> None:
        """Switch off the agent of a process that trains beside the one that is shown: two trainings
        have no common steps."""
        writer.write(encode(Stop()) + b"\n")
        self._folder.ring()
        self._on_event(
            Note(
                event.t,
                (
                    f"process {pid} of the job trains too, apart from the others: only the first"
                    " training is shown"
                ),
                "warning",
            )
        )

    def _on_rank_event(
        self, event: AnyEvent, fold: SegmentFold, rank: int, workers: WorkersMemory | None = None
    ) -> None:
        match event:
            case Segments():
                self._stepped = True
                with contextlib.suppress(ValueError):
                    steps = fold.add(event)
                    steps = msgspec.structs.replace(
                        steps,
                        rank=rank,
                        counters={
                            **steps.counters,
                            **(workers.take() if workers is not None else {}),
                        },
                    )
                    self._on_event(steps)
                    if steps.steps:
                        self._reached[rank] = steps.steps[-1].index
                        self._step_s = max(
                            1e-6, sum(step.wall_s for step in steps.steps) / len(steps.steps)
                        )
                    self._has_stepped(rank, steps.steps[-1].t if steps.steps else 0.0)
            case Profiled() if event.request in self._windows:
                del self._windows[event.request]
                if event.trace:
                    self._tasks.append(asyncio.create_task(self._analyse_one(event, rank)))
                else:
                    self._on_event(event)
            case Profiled() if event.trace:
                self._tasks.append(asyncio.create_task(self._analyse(event, fold, rank)))
            case KnobsSet() | ProbeDone() | Profiled():
                self._answers.setdefault(event.request, {})[rank] = event
                self._settle_answers()
            case AgentOff():
                self._on_event(event)
                if event.where and event.where != "connection":
                    who = f"process {event.pid}" + (f" (rank {event.rank})" if event.rank else "")
                    self._on_event(
                        Note(
                            event.t,
                            (
                                f"the agent in {who} has switched itself off at {event.where}:"
                                f" {event.cause}; the job continues"
                            ),
                            "warning",
                        )
                    )
            case Started() | Stacks() if rank:
                return  # the leader's stands for the run
            case _:
                self._on_event(event)

    def _memory_failed(self, event: OutOfMemory) -> None:
        """Complete the report of a failed allocation, and pass it on. What follows shows whether
        the program has caught the error."""
        if (
            earlier := self._out_of_memory.pop(event.rank, None)
        ) is not None and earlier.pid == event.pid:
            self._caught(earlier)
        self._out_of_memory[event.rank] = event = self._completed(event)
        self._on_event(event)

    def _completed(self, event: OutOfMemory) -> OutOfMemory:
        return msgspec.structs.replace(
            event,
            failure=msgspec.structs.replace(completed(event.failure), rank=event.rank, t=event.t),
        )

    def _has_stepped(self, rank: int, t: float) -> None:
        """A process has made steps, the last until `t`."""
        failed = self._out_of_memory.get(rank)
        if failed is not None and t > failed.t:
            del self._out_of_memory[rank]
            self._caught(failed)

    def _has_gone_on(self, pid: int) -> None:
        """An error that is no failed allocation ends a process: the program has caught the failed
        allocation before."""
        for rank, event in list(self._out_of_memory.items()):
            if event.pid == pid:
                del self._out_of_memory[rank]
                self._caught(event)

    def _caught(self, event: OutOfMemory) -> None:
        """The program has caught the error, and went on."""
        failure = msgspec.structs.replace(event.failure, caught=True)
        self._on_event(msgspec.structs.replace(event, failure=failure))
        self._on_event(
            Note(time.monotonic(), f"{headline(failure)}; the job caught the error and went on")
        )

    async def _analyse(self, event: Profiled, fold: SegmentFold, rank: int) -> None:
        profiled = await analysed(event)
        self._on_rank_event(probe_of(profiled) if profiled.probe else profiled, fold, rank)

    async def _analyse_one(self, event: Profiled, rank: int) -> None:
        """Analyse the trace of one process of several, and pass the report on."""
        profiled = await analysed(event)
        report = (
            None if profiled.report is None else msgspec.structs.replace(profiled.report, rank=rank)
        )
        self._on_event(msgspec.structs.replace(profiled, report=report))

    def _settle_answers(self) -> None:
        """Pass on the answers that every rank has given: the first refusal, else the leader's.
        Answers of ranks that have left count only where all have left, as at the end of the job. A
        change of several ranks has stages: see `Agreement`."""
        for request, rank in list(self._windows.items()):
            if rank not in self._ranks:
                del self._windows[request]
                self._on_event(
                    Profiled(
                        time.monotonic(),
                        request,
                        None,
                        f"process {rank} ended before its profile was there",
                    )
                )
        for request, answers in list(self._answers.items()):
            present = self._ranks.keys() or answers.keys()
            if present <= answers.keys():
                del self._answers[request]
                agreement = self._agreements.get(request)
                if agreement is None:
                    given = [answers[rank] for rank in sorted(present)]
                    self._on_event(next((answer for answer in given if answer.error), given[0]))
                    continue
                changed = {
                    rank: answer
                    for rank in present
                    if isinstance(answer := answers[rank], KnobsSet)
                }
                following = agreement.next(changed, self._step_s)
                if isinstance(following, SetKnobs) and self._ranks:
                    self._answers[request] = {}
                    self._send(following)
                else:
                    del self._agreements[request]
                    self._on_event(
                        following if isinstance(following, KnobsSet) else agreement.ended()
                    )

    # --- end --------------------------------------------------------------------------------------

    async def _wait_for_end(self) -> None:
        await self._ended.wait()
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # the last messages of the processes are in the sockets by now
        for _ in range(20):
            if not self._ranks:
                break
            await asyncio.sleep(0.05)
        self._start_report.cancel()
        self.why_no_steps = self._without_steps()
        code = self.returncode
        assert code is not None
        if code == 0:
            for event in self._out_of_memory.values():
                self._caught(event)
            self._out_of_memory.clear()
        if code and self.command.last_output is not None:
            self._cause = failure_words(code, await self.command.last_output())
        self.exited.set()
        self._on_exit(code)


class JoinedJob(JobChild):
    """A process that runs already and starts the agent itself: a notebook, or a program with
    `gpuconsole.watch()`. Nothing here starts it, signals it or waits for it: `leave` says that it
    goes on alone."""

    _state: tuple[RunState, str | None] = "stopped", None

    async def start(self) -> None:
        await self._listen()
        self._begin()

    @property
    def folder(self) -> str:
        """The folder for the agent."""
        return str(self._folder.path)

    @property
    def token(self) -> str:
        """What the agent says in its first message."""
        return self._token

    @property
    def pid(self) -> int:
        return self.command.joins

    @property
    def alive(self) -> bool:
        return bool(self._tasks) and not self.exited.is_set()

    @property
    def returncode(self) -> int | None:
        return int(self._state[0] == "failed") if self._ended.is_set() else None

    def leave(self, state: RunState, error: str | None) -> None:
        """The process goes on alone, or has ended. An agent that is still there sends its last
        steps. `state`, `error`: those of the run."""
        self._state = state, error
        self.send(Stop())
        self._ended.set()

    def ending(self, code: int) -> tuple[RunState, str | None]:
        state, error = self._state
        failure = (
            headline(min(self._out_of_memory.values(), key=lambda event: event.t).failure)
            if self._out_of_memory
            else error
        )
        return state, failure or self.why_no_steps or None

    def _without_steps(self) -> str:
        if self._stepped or self._torch:
            return super()._without_steps()
        return "the program has not imported torch"
