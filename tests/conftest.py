"""What all tests share: a home of their own, the fake driver, and the real command line in a
subprocess.

Four tests run at a time (`-n 4`; `-n 0` runs one after another, for a debugger). Those that share
an expensive fixture stay in one process (`xdist_group`); nothing else may be shared between tests
but what is made here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# More tests at a time than cores: threads that wait for one another across them spin for most of
# the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of children start gpuconsole. Without its bytecode on disk each of them compiles it
# again, for a third of a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from gpuconsole.cli.main import main
from tests.fakes.nvml.build import Script, build_fake_nvml

ROOT = Path(__file__).parent.parent


CORES = 2
"""Cores for the tests of one process, with all processes that these tests start. The tests were
written for machines of this size."""


def pytest_configure(config: pytest.Config) -> None:
    """Let children be interrupted, and give each test process its own two cores where the machine
    has more.

    A shell starts a job in the background with SIGINT ignored, and every child would inherit that:
    with a handler here, children have the default.

    A model server takes all cores except one for its threads. Several such servers at the same time
    would wait for each other's threads.
    """
    gc.disable()  # until the tests are collected
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # as before Python 3.14; a test of another method asks for it
    multiprocessing.set_start_method("fork", force=True)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None and config.getoption("numprocesses", None):
        return  # the process that only hands out the tests
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > CORES:
        first = (
            CORES
            * int((worker or "gw0").removeprefix("gw"))
            % (len(allowed) - len(allowed) % CORES)
        )
        os.sched_setaffinity(0, allowed[first : first + CORES])


def pytest_collection(session: pytest.Session) -> None:
    """Import the test modules, each test process from another place in their list on.

    Each process needs all of them. In a fresh clone, processes that go through the list side by
    side would each compile every module, which takes as long as running it. So each compiles its
    share, and finds the rest on the disk.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    worker, workers = (
        int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")),
        int(os.environ["PYTEST_XDIST_WORKER_COUNT"]),
    )
    folders = [folder for folder in map(Path, session.config.args) if folder.is_dir()]
    modules = sorted(
        {module.resolve() for folder in folders for module in folder.rglob("test_*.py")}
    )
    first = worker * len(modules) // workers
    for module in modules[first:] + modules[:first]:
        # what is wrong with a module, or skips it, is said where pytest collects it
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(module.relative_to(ROOT).with_suffix("").parts))


LEFT_OUT = frozenset(
    line
    for line in Path(__file__).with_name("left_out_of_ci.txt").read_text().splitlines()
    if not line.startswith("#")
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that CI leaves out."""
    for item in items:
        if item.nodeid in LEFT_OUT:
            item.add_marker(pytest.mark.matrix)


def pytest_collection_finish() -> None:
    """Leave what the collection has made, torch and all modules, out of later garbage collections:
    each would look at millions of objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's own scenarios and caches."""
    home = tmp_path_factory.mktemp("home")
    # what torch.compile has built for one test serves all: the processes of a run have their
    # folders side by side
    side_by_side = (
        tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else home
    )
    before = dict(os.environ)
    os.environ.update(
        XDG_CONFIG_HOME=str(home / "config"),
        XDG_CACHE_HOME=str(home / "cache"),
        XDG_DATA_HOME=str(home / "data"),
        TORCHINDUCTOR_CACHE_DIR=str(side_by_side / "inductor"),
        PYTHONPATH=str(ROOT),
    )
    # a size that is not the terminal's own would be believed; the user's own folder for sockets is
    # not for tests
    for name in ("NO_COLOR", "COLUMNS", "LINES", "XDG_RUNTIME_DIR"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver, compiled; to be put on LD_LIBRARY_PATH (see `Script.environment`). Skips
    without a C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("the fake NVML driver needs a C compiler (cc)")
    return build_fake_nvml(tmp_path_factory.mktemp("nvml"))


Machine = Callable[..., tuple[Script, dict[str, str]]]


@pytest.fixture
def machine(fake_library: Path, tmp_path: Path) -> Machine:
    """A fake machine from script lines: its script, and the environment of a child that is to see
    it."""

    def make(*lines: str) -> tuple[Script, dict[str, str]]:
        script = Script(tmp_path / "machine.txt", *lines)
        return script, script.environment(fake_library)

    return make


Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """As `cli`, in the process of the test: for command lines that end at once, such as refusals.
    The start of a process takes a quarter of a second."""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        capfd.readouterr()
        try:
            code = main(list(args))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        return subprocess.CompletedProcess(args, code, *capfd.readouterr())

    return run


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `gpuconsole ARGS` in an empty folder, without a terminal."""

    def run(*args: str, timeout: float = 120, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpuconsole", *args]
        options: dict[str, object] = {"cwd": tmp_path, "stdin": subprocess.DEVNULL, **kwargs}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, **options
        )  # type: ignore[call-overload,no-any-return]

    return run
