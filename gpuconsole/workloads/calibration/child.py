"""The calibration process: measures what the machine reaches, reports each figure, and ends.

The console starts it as `python -m gpuconsole.workloads.calibration.child --fd N --scratch DIR`.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
import traceback
from pathlib import Path

from gpuconsole import __version__
from gpuconsole.agent.clock import now
from gpuconsole.host.installation import install_command
from gpuconsole.wire.channel import ChildChannel, die_with_parent, kill_own_group
from gpuconsole.wire.events import Calibrated, Command, Failed, Hello, Progress


def run_calibration(
    channel: ChildChannel, device: str, uuid: str, budget_s: float, scratch: Path
) -> int:
    """Run all stages in order. Returns the exit code; a failure has been reported to the console by
    then."""
    try:
        channel.send(Progress(now(), "importing", "torch"))
        from gpuconsole.workloads.calibration.stages import measured, prepare, stages

        bench = prepare(device, uuid, budget_s, scratch)
        todo = stages(bench)
        for number, stage in enumerate(todo, 1):
            channel.send(Progress(now(), "calibrating", f"{number}/{len(todo)} {stage.title}"))
            for reached in measured(stage, bench):
                channel.send(Calibrated(now(), reached))
    except ModuleNotFoundError as error:
        channel.send(Failed(now(), f"{error.name} is not installed: {install_command('torch')}"))
        return 1
    except Exception as error:  # the last line of defence: the user sees whatever ended it
        channel.send(
            Failed(
                now(),
                str(error) or type(error).__name__,
                "".join(traceback.format_exception(error)[-6:]),
            )
        )
        return 1
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description="calibration process of gpuconsole; the console starts it"
    )
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--uuid", default="")
    parser.add_argument("--budget", type=float, default=1.0)
    args = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the console handles Ctrl-C
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    channel = ChildChannel(args.fd)

    def obey(command: Command) -> None:
        kill_own_group()  # Stop is the only command that comes, and there is nothing to save

    channel.listen(obey, kill_own_group)
    channel.send(Hello(now(), "calibration", os.getpid(), __version__, time.time()))
    code = run_calibration(channel, args.device, args.uuid, args.budget, args.scratch)
    channel.end(code)


if __name__ == "__main__":
    main()
