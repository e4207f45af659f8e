"""The model server of a run: the options that the user chose for it, and which changes it allows."""

from __future__ import annotations

import msgspec

from gpuconsole.machine.environment import torch_version
from gpuconsole.model.knobs.catalogue import Knobs, describe_changes
from gpuconsole.model.run import Run
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.serving import Objective
from gpuconsole.session.api import SessionError

NO_TORCH = 'torch is not installed: pip install "gpuconsole[torch]" (monitoring works without it)'


class ServingChoice(msgspec.Struct, frozen=True):
    """`options` go to the serving worker (see `Start.options`). `objective`: the latencies that requests must keep."""

    options: dict[str, str] = {}
    objective: Objective | None = None

    def check_torch(self, chosen: Scenario, knobs: Knobs) -> None:
        """Raises SessionError where the run needs torch and torch is not installed. vLLM and a server elsewhere do not need it."""
        elsewhere = chosen.workload.serves and (self.options.get("server_url") or knobs["server"] == "vllm")
        if not elsewhere and torch_version() is None:
            raise SessionError(NO_TORCH)

    def check_change(self, changes: Knobs, run: Run) -> None:
        """Raises SessionError for a flag of a server that the console did not start: only a restart changes the flag."""
        if run.serves and not run.applies_live(changes) and self.options.get("server_url"):
            raise SessionError(f"{describe_changes(changes, run.knobs)}: that server was not started here; restart it with the flag")
