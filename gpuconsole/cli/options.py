"""The options of the command line: one row for each.

The parser of every command, its help, the refusals and the completion of shells come from these
rows. An option of a single command has its row in the file of the command. `refused` says with
which kinds of run an option would have no effect: no option is ignored in silence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpuconsole.host import settings
from gpuconsole.model.job import EFFECTS, MAY_DIFFER
from gpuconsole.model.profile import MAX_STEPS, STEPS
from gpuconsole.report.trackers import choice as trackers


class UsageError(Exception):
    """Bad usage. The command prints one line on stderr and exits with code 2."""


class CommandFailed(Exception):
    """The work of a command failed. The command prints one line on stderr and exits with code 1."""


class Option(NamedTuple):
    """One argument of a command. `name` begins with `--`, except for a positional argument. Without
    `metavar` and `choices` it is a flag.

    `parse` raises ValueError with the text of the error line.
    `refused`: condition to reason. A condition is one fact, or several facts separated by commas,
    see `facts`. A reason continues the sentence that begins with the name of the option. A reason
    that begins with `--` is the whole sentence.
    `dest`: the name of the value in the parsed command line, if it differs from that of the option.
    `completes`: what a shell suggests as the value: a `file`, a `folder`, a `scenario`, a `rule`, a
    `knob`, or a `knob=`; empty: a file where `parse` is Path.
    """

    name: str
    help: str | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    refused: Mapping[str, str] = {}
    default: Any = None
    choices: tuple[str, ...] | None = None
    nargs: str | None = None
    const: Any = None
    dest: str = ""
    repeated: bool = False
    required: bool = False
    completes: str = ""

    @property
    def key(self) -> str:
        """The name of the value in the parsed command line."""
        return self.dest or self.name.removeprefix("--").replace("-", "_")

    def given(self, args: argparse.Namespace) -> bool:
        """Whether the user gave the option. An option with a default value counts as given."""
        value = getattr(args, self.key, None)
        return value is not None and value is not False and value != []

    def add_to(self, parser: argparse._ActionsContainer) -> None:
        """Add the option to a parser, or to a group of a parser."""
        keywords = {
            name: getattr(self, name)
            for name in ("help", "metavar", "default", "choices", "nargs", "const")
        }
        keywords["type"] = (
            self.parse
            if self.parse is None or isinstance(self.parse, type)
            else with_reason(self.parse)
        )
        if self.name.startswith("--"):
            keywords |= {"dest": self.key, "required": self.required or None}
            if self.repeated:
                keywords |= {"action": "append", "default": []}
            elif self.metavar is None and self.choices is None:
                keywords["action"] = "store_true"
        parser.add_argument(
            self.name, **{name: value for name, value in keywords.items() if value is not None}
        )


class Group(NamedTuple):
    """Options under a title of their own in the help."""

    title: str
    options: tuple[Option, ...]

    def refused_too(self, refused: Mapping[str, str]) -> Group:
        """The same options with further refusals."""
        return Group(
            self.title,
            tuple(
                option._replace(refused={**option.refused, **refused}) for option in self.options
            ),
        )


Options = tuple[Option | Group, ...]


def each(options: Options) -> list[Option]:
    """All options, also those in groups."""
    return [
        option
        for part in options
        for option in (part.options if isinstance(part, Group) else (part,))
    ]


def with_reason(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` for argparse, which prints the text of an ArgumentTypeError only."""

    def parse_or_explain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as mistake:
            raise argparse.ArgumentTypeError(str(mistake)) from None

    return parse_or_explain


def facts(args: argparse.Namespace) -> set[str]:
    """What is true of a command line: `job` or `no job` (a command of the user's own after `--`),
    for a command with a screen `screen` or `headless`, and for each option `--name` or
    `no --name`."""
    options = each(args.options)
    true = {option.name if option.given(args) else f"no {option.name}" for option in options}
    true.add("job" if args.job else "no job")
    if ECO.name in [option.name for option in options]:
        true.add(
            "headless"
            if getattr(args, "headless", False) or getattr(args, "json", False)
            else "screen"
        )
    return true


def check(args: argparse.Namespace, *more_facts: str, **names: str) -> None:
    """Raises UsageError for an option that would have no effect.

    `more_facts`: facts that the command line does not show: `training` or `serving`, `one process`,
    `one machine`, `embedded server`, and those of a single command. `names`: what a reason mentions
    in braces."""
    true = facts(args) | set(more_facts)
    if not args.job and not more_facts and hasattr(args, "scenario"):
        # the command checks again when it knows the scenario, which may give a better reason
        true -= {"screen", "headless"}
    for option in each(args.options):
        for condition, why in option.refused.items():
            if option.given(args) and true.issuperset(condition.split(", ")):
                line = why if why.startswith("--") else f"{option.name} {why}"
                raise UsageError(line.format(command=args.command, **names))


def steps(text: str) -> int:
    """A number of steps to profile. Raises ValueError."""
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= MAX_STEPS:
        raise ValueError(f"{text}: must be 1 to {MAX_STEPS} steps")
    return int(text)


def _objective(text: str) -> object:
    from gpuconsole.model.serving import parse_objective

    return parse_objective(text)


def _restart_knob(text: str) -> object:
    from gpuconsole.model.job import parse_restart_knob

    return parse_restart_knob(text)


ANYWHERE = argparse.SUPPRESS
"""The default of an option that may stand before or after the command. Without the option the
settings supply the value."""
OWN_ONLY = {"no job": "goes with a command of your own: gpuconsole {command} -- COMMAND ARGS..."}
NO_RESTARTS = {
    "job, --restart-knob": (
        "does not go with --restart-knob, which starts the command again for each block"
    )
}
HEADLESS_ONLY = {"screen": "goes with --headless"}
NO_DEMO = {"--demo": "has no effect on --demo, which measures nothing"}
TRIES = "--apply-top and --try go with --headless; on the screen, press Enter on a suggestion"


def not_for_jobs(why: str) -> dict[str, str]:
    """The refusal of an option that has no effect on a command of the user's own."""
    return {"job": f"does not go with a command after --: {why}"}


SERVING_ONLY = not_for_jobs("only for serving scenarios")
OWN_VLLM = {
    **SERVING_ONLY,
    "--url": "is for a vLLM that gpuconsole starts; the server at --url runs already",
    "embedded server, no --url": "needs --set server=vllm",
}
ANY_SERVER = {**SERVING_ONLY, "embedded server, no --url": "needs --url, or --set server=vllm"}
SEVERAL = {
    **not_for_jobs("start torchrun itself as the command"),
    "one process": "is for scenarios that run in several processes; {workload} runs in one",
}
SEVERAL_MACHINES = {**SEVERAL, "one machine": "needs --nnodes 2 or more"}
RDZV_ID = "gpuconsole"

# The work: which scenario or command, with which knobs, and where the result goes.
SCENARIO = Option(
    "scenario",
    "a name (see `gpuconsole scenarios`) or the path of a .toml file; or: -- COMMAND ARGS...",
    "SCENARIO",
    nargs="?",
    completes="scenario",
)
SET = Option(
    "--set",
    "change a setting; may be repeated",
    "NAME=VALUE",
    dest="knobs",
    repeated=True,
    completes="knob=",
    refused=not_for_jobs("the program makes its own settings; give the new value to the command"),
)
DURATION = Option(
    "--duration",
    "seconds from the first step (headless default: 60)",
    "S",
    settings.seconds,
    refused=not_for_jobs("the job runs until its own end"),
)
HEADLESS = Option("--headless", "no screen: progress on stderr, the summary on stdout")
SNAPSHOT = Option("--snapshot", "write the session as JSON when it ends", "FILE", Path)
JSON = Option(
    "--json",
    "print JSON",
    refused=not_for_jobs("stdout belongs to the job; --snapshot FILE writes the session"),
)
APPLY_TOP = Option(
    "--apply-top",
    "try the top suggestion; keep it if it is faster",
    refused={
        "no job, --try": "does not go with --try, which names the change",
        **NO_RESTARTS,
        "screen": TRIES,
    },
)
TRY = Option(
    "--try",
    "try this change; keep it if it is faster",
    "NAME=VALUE",
    dest="tries",
    repeated=True,
    completes="knob=",
    refused={"screen": TRIES},
)
SAVE_BASELINE = Option(
    "--save-baseline",
    "keep each run of the session as a baseline for later runs (the last 20)",
    refused=NO_RESTARTS,
)
FAIL_ON_REGRESSION = Option(
    "--fail-on-regression",
    (
        "exit code 1 if a run is slower than its baseline beyond noise; --save-baseline does not"
        " keep such a run"
    ),
    refused={**NO_RESTARTS, **HEADLESS_ONLY},
)
REQUIRE_VALID = Option(
    "--require-valid",
    "exit code 1 unless the numbers of a serving run are valid (degraded numbers alone give 0)",
    refused={**SERVING_ONLY, "training": "is for serving scenarios", **HEADLESS_ONLY},
)
PROFILE = Option(
    "--profile",
    (
        f"profile this many steps of the steady run (default {STEPS}): kernel classes, top"
        " operators, a trace for Perfetto"
    ),
    "STEPS",
    steps,
    nargs="?",
    const=STEPS,
    refused={
        **not_for_jobs("not for a job of your own; on the screen, press f"),
        "serving": "is for training scenarios",
        "screen": "goes with --headless; on the screen, press f",
    },
)
PROFILE_DIR = Option(
    "--profile-dir",
    "directory for traces (default: the current directory)",
    "DIR",
    Path,
    completes="folder",
    refused={
        "job, headless": "goes with the screen, where key f profiles",
        "no job, headless, no --profile": "needs --profile",
    },
)

# A job of the user's own.
OUTPUT = Option(
    "--output",
    "on the screen: append all output of the job to FILE",
    "FILE",
    Path,
    refused={
        **OWN_ONLY,
        "headless": (
            "is for the screen; with --headless, the shell can redirect the output of the job"
        ),
    },
)
RESTART_KNOB = Option(
    "--restart-knob",
    (
        "a job of your own: the flag of the command that makes this setting. A headless --try, or a"
        " sweep, starts the command again for each value"
    ),
    "NAME={FLAG}",
    _restart_knob,
    dest="restart_knobs",
    repeated=True,
    completes="knob=",
    refused={**OWN_ONLY, **HEADLESS_ONLY, "no --try": "goes with --headless and --try NAME=VALUE"},
)
STORE_COMMAND = Option(
    "--store-command",
    "store the command line in the snapshot and the recording, not only its digest",
    refused=OWN_ONLY,
)
PROBE = Option(
    "--probe",
    "a job of your own: allow probes in it: extra passes on copies of its last batch",
    refused={**OWN_ONLY, **NO_RESTARTS},
)
MEMORY = Option(
    "--memory",
    (
        "a job of your own on a GPU: let torch keep a history of its allocations, and show the"
        " lines that hold most memory (about 2 us for each allocation)"
    ),
    refused={**OWN_ONLY, **NO_RESTARTS},
)
SUMMARY = Option(
    "--summary",
    "a job of your own, without a screen: write the summary to FILE, not to stderr",
    "FILE",
    Path,
    refused={**OWN_ONLY, **HEADLESS_ONLY, **NO_RESTARTS},
)
PATCH = Option(
    "--patch",
    "a job of your own: write kept changes as a patch of your code (git apply)",
    "FILE",
    Path,
    refused={**OWN_ONLY, **NO_RESTARTS},
)
ALLOW_NUMERICS = Option(
    "--allow-numerics",
    "a job of your own: allow changes that alter its numbers (tf32)",
    refused={**OWN_ONLY, **NO_RESTARTS},
)
ALLOW_LOADER = Option(
    "--allow-loader",
    f"a job of your own: allow new workers of its DataLoader ({EFFECTS[MAY_DIFFER]})",
    refused={**OWN_ONLY, **NO_RESTARTS},
)
OWN_JOB = Group(
    "a job of your own (-- COMMAND ARGS...)",
    (
        OUTPUT,
        RESTART_KNOB,
        STORE_COMMAND,
        PROBE,
        MEMORY,
        SUMMARY,
        PATCH,
        ALLOW_NUMERICS,
        ALLOW_LOADER,
    ),
)
LOG_TO = Option(
    "--log-to",
    (
        f"copy the session's figures to a tracker, several allowed: {trackers.USAGE}; address and"
        " key as the tracker's own environment variables say"
    ),
    "TRACKER",
    trackers.choice,
    NO_RESTARTS,
    dest="log_to",
    repeated=True,
)
LOG_COMMAND = Option(
    "--log-command",
    (
        "with --log-to: the trackers get the command line too; W&B also the folder, the git remote,"
        " the packages and the code"
    ),
    refused={"no --log-to": "goes with --log-to TRACKER"},
)
CONTROL = Option(
    "--control",
    (
        "open a private socket for an agent (gpuconsole mcp --connect); you see what it tries, and"
        " a key takes the control back"
    ),
    refused={"headless": "goes with the screen; an agent without a screen: gpuconsole mcp"},
)

# Several machines: the names are those of torchrun.
NODES = Group(
    "several machines (this one is the first)",
    (
        Option(
            "--nnodes",
            "number of machines; the console prints the command for the other machines",
            "N",
            int,
            SEVERAL,
        ),
        Option(
            "--rdzv-endpoint",
            "rendezvous: an address of this machine and a free port",
            "HOST:PORT",
            refused=SEVERAL_MACHINES,
        ),
        Option(
            "--rdzv-id",
            f"name of the job, the same on all machines (default {RDZV_ID})",
            "ID",
            refused=SEVERAL_MACHINES,
        ),
    ),
)

# Serving scenarios: which server, which prompts, and the latency limits of goodput.
SERVER = Group(
    "serving scenarios",
    (
        Option(
            "--url",
            "an OpenAI-compatible server that runs already (vLLM, SGLang, TGI, llama.cpp, ...)",
            "URL",
            refused=SERVING_ONLY,
        ),
        Option(
            "--model",
            "with --url: the model to ask for; with server=vllm: a model name or a directory",
            "NAME",
            refused=ANY_SERVER,
        ),
        Option(
            "--api-key-env",
            "the environment variable that holds the server's key",
            "VARIABLE",
            refused=ANY_SERVER,
        ),
        Option(
            "--wait",
            "with --url: wait up to S seconds for a server that is starting (default 0)",
            "S",
            float,
            refused={**SERVING_ONLY, "serving, no --url": "needs --url"},
        ),
        Option(
            "--vllm-python",
            (
                "with server=vllm: the Python that has vLLM (default: this Python, or the Python of"
                " the program `vllm` on the PATH)"
            ),
            "PATH",
            Path,
            refused=OWN_VLLM,
        ),
        Option(
            "--vllm-args",
            'further flags for vLLM: --vllm-args="--block-size 32 --seed 1"',
            "ARGS",
            refused=OWN_VLLM,
        ),
    ),
)
SERVING = Group(
    SERVER.title,
    (
        *SERVER.options,
        Option(
            "--metrics-url",
            "address of the server's /metrics (default: on the server itself)",
            "URL",
            refused=SERVING_ONLY,
        ),
        Option(
            "--request-timeout",
            "a request without any data for this time has failed (default 120)",
            "S",
            float,
            SERVING_ONLY,
        ),
        Option(
            "--prompts",
            (
                "send recorded prompts: each line is a JSON object with prompt or messages, and"
                " output_tokens if known"
            ),
            "FILE",
            Path,
            SERVING_ONLY,
        ),
        Option(
            "--slo",
            "count requests within these bounds as goodput",
            "ttft=S,tpot=S,e2e=S",
            _objective,
            SERVING_ONLY,
        ),
    ),
)

WATCHED_SERVER = tuple(
    option._replace(refused={}, help=text)
    for name, text in {
        "--api-key-env": "the environment variable that holds the server's key",
        "--model": "watch this model only, of several on the page",
        "--metrics-url": "address of the metrics page, where it is not on the server itself",
        "--wait": "wait up to S seconds for a server that is starting (default 0)",
    }.items()
    for option in SERVING.options
    if option.name == name
)

# The machine: sampling, device, recording, price, Prometheus, screen updates.
INTERVAL = Option(
    "--interval",
    "seconds between two samples (default 1)",
    "S",
    settings.seconds,
    NO_DEMO,
    ANYWHERE,
)
DEVICE = Option(
    "--device",
    "gpu:N or cpu (default: the first GPU, or the CPU if there is no GPU)",
    "ID",
    None,
    NO_DEMO,
    ANYWHERE,
)
DCGM = Option(
    "--dcgm",
    "address of a dcgm-exporter's /metrics: SM and tensor activity of GPUs before Hopper",
    "URL",
    None,
    NO_DEMO,
    ANYWHERE,
)
TOKEN_FILE = Option(
    "--token-file",
    "with --serve: refuse requests without this bearer token",
    "FILE",
    Path,
    NO_DEMO,
    ANYWHERE,
)
ECO = Option(
    "--eco",
    "update the screen less often, for a slow line",
    default=ANYWHERE,
    refused={"headless": "goes with the screen, not with --headless"},
)
WATCHING = Group(
    "watching devices",
    (
        INTERVAL,
        DEVICE,
        Option(
            "--record",
            (
                "record the session for `gpuconsole replay`; into a folder: the last 24 hours, for"
                " `gpuconsole explain`"
            ),
            "FILE",
            Path,
            {**NO_DEMO, **NO_RESTARTS},
            ANYWHERE,
        ),
        Option(
            "--price",
            "price of the machine per hour, in any currency",
            "P",
            settings.price,
            {**NO_DEMO, **NO_RESTARTS},
            ANYWHERE,
        ),
        DCGM,
        Option(
            "--serve",
            "serve the session's metrics to Prometheus",
            "HOST:PORT",
            None,
            NO_DEMO,
            ANYWHERE,
        ),
        TOKEN_FILE,
    ),
)
WATCHING_ON_SCREEN = Group(WATCHING.title, (*WATCHING.options, ECO))
DEMO = Option("--demo", "replay a recorded session: find, try, keep", default=ANYWHERE)

# What every command has.
QUIET = Option("--quiet", "no progress and no notes on stderr, only problems", default=ANYWHERE)
COLOR = Option(
    "--color",
    "colours: auto (default: on a terminal, unless NO_COLOR is set), always, never",
    choices=settings.COLORS,
    default=ANYWHERE,
)
PRINTING = Group("output", (QUIET, COLOR))
SHARING = (
    Option("--html", "write one HTML page: charts included, no scripts, no requests", "FILE", Path),
    Option("--markdown", "write Markdown, for an issue tracker", "FILE", Path),
)
TIMEOUT = Option(
    "--timeout", "how long to wait for the driver (default 10)", "S", settings.seconds, default=10.0
)
