"""The model server of a run: the options that the user chose for it, and which changes it
allows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpuconsole.engine.catalog import shipped_folder
from gpuconsole.host.installation import install_command, torch_version
from gpuconsole.model.knobs.catalogue import Knobs
from gpuconsole.model.knobs.serving import LIVE_KNOBS
from gpuconsole.model.run import Run
from gpuconsole.model.scenario import Scenario
from gpuconsole.model.serving import LatencyBound, Objective
from gpuconsole.session.api import SessionError


def no_torch() -> str:
    """Why a scenario of ours cannot run, and what to install."""
    return f"torch is not installed: {install_command('torch')} (monitoring works without it)"


class ServingChoice(msgspec.Struct, frozen=True):
    """`options` go to the serving worker (see `Start.options`). `objective`: the latencies that
    requests must keep. `bounds`: those that a watched server must keep."""

    options: dict[str, str] = {}
    objective: Objective | None = None
    bounds: tuple[LatencyBound, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """Whether the user named a server that runs already (`--url`)."""
        return bool(self.options.get("server_url"))

    @property
    def watched(self) -> str:
        """The address of the server to watch (`gpuconsole watch`), or empty."""
        return self.options["server_url"] if self.options.get("watch") else ""

    def check_torch(self, chosen: Scenario, knobs: Knobs) -> None:
        """Raises SessionError where the run needs torch and torch is not installed. vLLM and a
        server elsewhere do not need it."""
        elsewhere = chosen.workload.serves and (self.elsewhere or knobs["server"] == "vllm")
        if not elsewhere and torch_version() is None:
            raise SessionError(no_torch())

    def left_to_server(self, chosen: Scenario, knobs: Knobs, overrides: Knobs) -> Knobs:
        """Limits of the scheduler that vLLM chooses itself, by the card and the model: those that
        neither the user nor the fault of the scenario sets. The values of our scenarios fit the
        embedded server."""
        if not chosen.workload.serves or self.elsewhere or knobs["server"] != "vllm":
            return {}
        own = (
            {}
            if Path(chosen.path).parent == shipped_folder()
            else {**chosen.knobs, **chosen.cpu, **chosen.gpu}
        )
        return {
            name: 0
            for name in LIVE_KNOBS
            if name not in {**overrides, **own} and name not in chosen.teaches.limits
        }

    def check_change(self, changes: Knobs, run: Run) -> None:
        """Raises SessionError for a change that the console cannot try on this run (see
        `Run.why_not`)."""
        if reason := run.why_not(changes):
            raise SessionError(reason)
