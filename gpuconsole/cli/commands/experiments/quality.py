"""`gpuconsole quality`: measures the quality of the answers of a model server, not their speed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from gpuconsole.cli import output
from gpuconsole.cli.exits import FAILED, exit_code, on_interrupt
from gpuconsole.cli.options.console import add_device_option, device
from gpuconsole.cli.options.files import to_json
from gpuconsole.cli.options.scenario import assignments, scenario, server_of
from gpuconsole.cli.options.serving import add_serving_options, check_server, server_options
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.engine.children.once import read_devices
from gpuconsole.engine.children.one_shot import JobFailed, examine
from gpuconsole.engine.devices import DeviceChoiceError, choose_device
from gpuconsole.model.text import visible
from gpuconsole.wire.events import ProbeDone, Progress

DESCRIPTION = """Measure the perplexity of a model server on a fixed text (lower is better; comparable between settings of one model), and
whether the model finds a number that is hidden at several depths of long texts (passkey retrieval). Without --url the command starts the
scenario's own server.

Perplexity needs a server that reports the log probabilities of a prompt (OpenAI's `echo`, vLLM's `prompt_logprobs`)."""
EXAMPLES = """examples:
  gpuconsole quality quantized
  gpuconsole quality quantized --set quantization=int8
  gpuconsole quality --url http://127.0.0.1:8000 --lengths 4000,16000,64000
"""
DEFAULT_SCENARIO = "serve-chat"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "quality",
        help="measure the answers of a model server",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "scenario",
        metavar="SCENARIO",
        nargs="?",
        default=DEFAULT_SCENARIO,
        help="the scenario whose server is measured (default serve-chat)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="knobs", help="set a knob; may be repeated")
    parser.add_argument(
        "--lengths",
        type=numbers(1, 10_000_000),
        default=[400.0],
        metavar="N,N",
        help="lengths of the texts with the passkey, in characters (default 400)",
    )
    parser.add_argument(
        "--depths",
        type=numbers(0, 1),
        default=[0.1, 0.5, 0.9],
        metavar="D,D",
        help="positions of the passkey in the text, 0 to 1 (default 0.1,0.5,0.9)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else on stdout")
    add_serving_options(parser, load=False)
    add_device_option(parser)
    parser.set_defaults(handler=run)


def numbers(low: float, high: float):  # type: ignore[no-untyped-def]  # an argparse type
    def parse(text: str) -> list[float]:
        try:
            found = [float(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers separated by commas") from None
        if not all(low <= one <= high for one in found):
            raise argparse.ArgumentTypeError(f"{text!r}: allowed are {low:g} to {high:g}")
        return found

    return parse


def run(args: argparse.Namespace) -> int:
    chosen = scenario(args.scenario)
    if not chosen.workload.serves:
        raise UsageError(f"{chosen.name} is a training scenario: quality measures model servers")
    overrides = assignments(args.knobs, chosen)
    check_server(args, chosen.workload, server_of(chosen, overrides))
    try:
        state, _ = read_devices()
        target = choose_device(state.devices, device(args), state.lost)
    except DeviceChoiceError as error:
        raise UsageError(str(error)) from None
    knobs = {**chosen.knobs_on(target), **overrides}
    options = {**server_options(args), "lengths": json.dumps(args.lengths), "depths": json.dumps(args.depths)}

    stop = asyncio.Event()

    async def main() -> list[ProbeDone]:
        on_interrupt(stop.set)
        return await examine(chosen.workload.name, knobs, target, options, _report, stop)

    try:
        answers = asyncio.run(main())
    except JobFailed as error:
        output.problem(str(error))
        return FAILED
    if stop.is_set() and not answers:
        return exit_code()
    print(to_json(answers) if args.json else "\n".join(lines(answers)))
    return exit_code(all(answer.error for answer in answers))


def lines(answers: list[ProbeDone]) -> list[str]:
    """A line with the perplexity, and a line for each passkey."""
    found = []
    for answer in answers:
        signals = answer.signals
        if answer.error:
            found.append(f"{answer.probe:<12} n/a: {visible(answer.error)}")
        elif "quality.perplexity" in signals:
            one = signals["quality.perplexity"]
            found.append(f"perplexity   {one.value:.4g}   {one.source}")
        elif "quality.passkey" in signals:
            one = signals["quality.passkey"]
            found.append(f"passkey      {'found' if one.value else 'missed'}   {one.source}")
    passkeys = [answer.signals["quality.passkey"].value for answer in answers if "quality.passkey" in answer.signals]
    if passkeys:
        found.append(f"passkeys     {sum(passkeys):.0f} of {len(passkeys)} found")
    return found


def _report(event: Progress) -> None:
    if sys.stderr.isatty() and not output.quiet():
        print(visible(f"{event.stage}: {event.detail}"), file=sys.stderr)
