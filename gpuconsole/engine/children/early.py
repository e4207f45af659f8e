"""A child process that starts before the event loop and the large imports, so that its first
messages wait for the console. Imports little."""

from __future__ import annotations

import socket
import subprocess

from gpuconsole.engine.children.environment import (
    child_command,
    child_environment,
    dcgm_environment,
)

SAMPLER = "gpuconsole.telemetry.sampler"


class EarlyChild:
    """A child process as `Child` starts it. It ends where nothing takes over its socket."""

    def __init__(self, module: str, arguments: list[str], env: dict[str, str]) -> None:
        """Raises OSError."""
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                child_command(module, "--fd", str(theirs.fileno()), *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=child_environment(env),
            )


def early_sampler(interval_s: float, dcgm: str | None) -> EarlyChild | None:
    """Start the sampler of `SamplerSupervisor`, which sends the vital readings of the GPUs first.
    Return None if no process can be started now."""
    arguments = [*sampler_arguments(interval_s), "--vital-first"]
    try:
        return EarlyChild(SAMPLER, arguments, dcgm_environment(dcgm))
    except OSError:
        return None


def sampler_arguments(interval_s: float) -> list[str]:
    return ["--interval", str(interval_s)]
