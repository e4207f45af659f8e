"""What a tuning session proved, written so that somebody else can check it: schema `gpuconsole.certificate/1`."""

from __future__ import annotations

import msgspec

from gpuconsole.model.experiments.trial import Speedup, Trial
from gpuconsole.model.knobs.catalogue import Knobs, show
from gpuconsole.model.snapshot import Environment

SCHEMA = "gpuconsole.certificate/1"


class CertificateError(ValueError):
    """A file that is no certificate we can read; the message is one line."""


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that was put to the test, under `knobs`, because `rule` suggested it. `at_s`: seconds into the session, at its end."""

    rule: str
    knobs: Knobs
    trial: Trial
    code: str = ""
    at_s: float = 0.0


class Certificate(msgspec.Struct, kw_only=True):
    """`start` and `end` are the knobs before and after; `given`: those that the scenario was started with beside its own; `only`: the
    knobs that might be turned, where not all might. `proof` is one trial of all that was kept against the start, both in turn:
    its change goes from `end` back to `start`, so what was gained is one over its speedup. None where nothing was kept, or no time was
    left for it.
    """

    schema: str = SCHEMA
    created: str
    gpuconsole: str
    environment: Environment
    scenario: str
    device: str
    start: Knobs
    end: Knobs
    given: Knobs = {}
    only: list[str] = []
    attempts: list[Attempt] = []
    proof: Trial | None = None
    stopped: str = ""
    elapsed_s: float = 0.0

    @property
    def gain(self) -> Speedup | None:
        """All that was kept, against the start; None where that was not measured in one trial."""
        kept = [one.trial for one in self.attempts if one.trial.kept]
        if self.proof is not None and self.proof.speedup is not None:
            back = self.proof.speedup
            return Speedup(1 / back.estimate, 1 / back.high, 1 / back.low)
        return kept[0].speedup if len(kept) == 1 and self.proof is None else None

    @property
    def flags(self) -> str:
        """What starts the scenario as it ended."""
        return " ".join(f"--set {name}={show(value)}" for name, value in {**self.given, **self.changed}.items())

    @property
    def changed(self) -> Knobs:
        """What is to be set, beyond the scenario as it was started."""
        return {name: value for name, value in self.end.items() if self.start.get(name) != value}


class Tuning(msgspec.Struct, frozen=True):
    """A tuning session as a screen shows it: `certificate` is whole after every attempt."""

    certificate: Certificate
    budget_s: float
    under_way: bool


def encode(certificate: Certificate) -> bytes:
    """Pretty JSON, UTF-8, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(certificate), indent=1) + b"\n"


def decode(data: bytes) -> Certificate:
    """Raises CertificateError."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise CertificateError(f"not JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise CertificateError(f'not a certificate (no "schema": "{SCHEMA}")')
    try:
        return msgspec.convert(raw, Certificate)
    except msgspec.ValidationError as error:
        raise CertificateError(f"not a valid certificate: {error}") from None
