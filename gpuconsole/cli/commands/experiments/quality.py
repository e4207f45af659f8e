"""`gpuconsole quality`: measures the quality of the answers of a model server, not their speed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable

from gpuconsole.cli import output
from gpuconsole.cli.exits import exit_code, on_interrupt
from gpuconsole.cli.options import (
    DEVICE,
    JSON,
    SCENARIO,
    SERVER,
    SET,
    CommandFailed,
    Option,
    UsageError,
)
from gpuconsole.cli.scenario import assignments, check_server, scenario, server_of, server_options
from gpuconsole.cli.values import chosen_devices
from gpuconsole.engine.children.once import read_devices
from gpuconsole.engine.children.one_shot import JobFailed, examine
from gpuconsole.engine.devices import gpus_of_server
from gpuconsole.model.text import visible
from gpuconsole.wire.events import ProbeDone, Progress

HELP = "measure the answers of a model server"
DESCRIPTION = """Measure the perplexity of a model server on a fixed text (lower is better;
comparable between settings of one model), and whether the model finds a number that is hidden at
several depths of long texts (passkey retrieval). Without --url the command starts the scenario's
own server.

Perplexity needs a server that reports the log probabilities of a prompt (OpenAI's `echo`, vLLM's
`prompt_logprobs`)."""
EXAMPLES = """examples:
  gpuconsole quality quantized
  gpuconsole quality quantized --set quantization=int8
  gpuconsole quality --url http://127.0.0.1:8000 --lengths 4000,16000,64000
"""


def numbers(low: float, high: float) -> Callable[[str], list[float]]:
    """Reads numbers from `low` to `high`, separated by commas."""

    def parse(text: str) -> list[float]:
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            raise ValueError(f"{text!r}: expected numbers separated by commas") from None
        if not all(low <= value <= high for value in values):
            raise ValueError(f"{text!r}: allowed are {low:g} to {high:g}")
        return values

    return parse


OPTIONS = (
    SCENARIO._replace(
        help="the scenario whose server is measured (default serve-chat)", default="serve-chat"
    ),
    SET,
    Option(
        "--lengths",
        "lengths of the texts with the passkey, in characters (default 400)",
        "N,N",
        numbers(1, 10_000_000),
        default=[400.0],
    ),
    Option(
        "--depths",
        "positions of the passkey in the text, 0 to 1 (default 0.1,0.5,0.9)",
        "D,D",
        numbers(0, 1),
        default=[0.1, 0.5, 0.9],
    ),
    JSON._replace(help="print the numbers as JSON, and nothing else on stdout"),
    SERVER,
    DEVICE,
)


def run(args: argparse.Namespace) -> int:
    chosen = scenario(args.scenario)
    if not chosen.workload.serves:
        raise UsageError(f"{chosen.name} is a training scenario: quality measures model servers")
    overrides = assignments(args.knobs, chosen)
    check_server(args, chosen.workload, server_of(chosen, overrides))
    devices = chosen_devices(read_devices()[0], args)
    knobs = {**chosen.knobs_on(devices[0]), **overrides}
    gpus = gpus_of_server(devices, knobs)
    options = {
        **server_options(args),
        "lengths": json.dumps(args.lengths),
        "depths": json.dumps(args.depths),
    }

    stop = asyncio.Event()

    async def main() -> list[ProbeDone]:
        on_interrupt(stop.set)
        return await examine(chosen.workload.name, knobs, devices[0], options, gpus, _report, stop)

    try:
        answers = asyncio.run(main())
    except JobFailed as error:
        raise CommandFailed(str(error)) from None
    if stop.is_set() and not answers:
        return exit_code()
    print(output.to_json(answers) if args.json else "\n".join(lines(answers)))
    return exit_code(all(answer.error for answer in answers))


def lines(answers: list[ProbeDone]) -> list[str]:
    """A line with the perplexity, and a line for each passkey."""
    rows = []
    for answer in answers:
        signals = answer.signals
        if answer.error:
            rows.append(f"{answer.probe:<12} n/a: {visible(answer.error)}")
        elif "quality.perplexity" in signals:
            perplexity = signals["quality.perplexity"]
            rows.append(f"perplexity   {perplexity.value:.4g}   {perplexity.source}")
        elif "quality.passkey" in signals:
            passkey = signals["quality.passkey"]
            rows.append(f"passkey      {'found' if passkey.value else 'missed'}   {passkey.source}")
    passkeys = [
        answer.signals["quality.passkey"].value
        for answer in answers
        if "quality.passkey" in answer.signals
    ]
    if passkeys:
        rows.append(f"passkeys     {sum(passkeys):.0f} of {len(passkeys)} found")
    return rows


def _report(event: Progress) -> None:
    if sys.stderr.isatty():
        output.progress(f"{event.stage}: {event.detail}")
