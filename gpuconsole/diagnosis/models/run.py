"""The figures of a run: every analytical model that fits its workload, computed when a view or a
snapshot asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gpuconsole.model.figures import Attainable, RatePair
from gpuconsole.model.machine import Device, Published
from gpuconsole.model.run import Run
from gpuconsole.session.figures.breakdown import of_all_processes
from gpuconsole.session.figures.peak import facts_of_rates

MISSING = "models"
"""The key in `Run.unavailable` for the reason why a run has no figures."""


STEPS = "steps"
"""The rate that all processes of a job share."""


def of_job(attainable: Attainable, ratio: float) -> Attainable:
    """Rates of a job whose processes together do `ratio` times the work of the leading process."""
    return msgspec.structs.replace(
        attainable,
        rates=tuple(
            pair if pair.name == STEPS else _times(pair, ratio) for pair in attainable.rates
        ),
    )


def _times(pair: RatePair, ratio: float) -> RatePair:
    rates = {name: getattr(pair, name) for name in ("reached_per_s", "attainable_per_s")}
    return msgspec.structs.replace(
        pair, **{name: rate * ratio for name, rate in rates.items() if rate is not None}
    )


def with_figures(
    run: Run,
    devices: Sequence[Device],
    calibration: Mapping[str, float],
    published: Callable[[str], Sequence[Published]],
) -> Run:
    """A copy of `run` with its figures, in about 0.4 ms. A run without facts about its workload
    keeps the figures that it has.

    `published`: the published training runs on a device, by the device's name. A run may come from
    a file with knob values that the models do not accept: then it has no figures, and `unavailable`
    says why.
    """
    if run.watched or (not run.facts and not run.serves):
        return run
    # These imports take 50 ms, for which the first picture must not wait.
    from gpuconsole.diagnosis.models.inputs import ModelInputs
    from gpuconsole.diagnosis.models.serving import serving_attainable, serving_figures
    from gpuconsole.diagnosis.models.training import training_attainable, training_figures

    device = next(
        (candidate for candidate in devices if candidate.id == run.device), Device(run.device, "")
    )
    try:
        if run.serves:
            figures = serving_figures(
                run.settings, run.server_numbers, run.signals, device.peaks, device.is_gpu
            )
            attainable = serving_attainable(run, device, calibration)
        else:
            anchors = published(device.name) if device.is_gpu else ()
            # the models are about one device of a user's job
            whole = run.summary.whole_ratio
            known_of_run = (
                run.knobs,
                facts_of_rates(run),
                run.signals,
                of_all_processes(run.summary, 1 / whole),
                device.peaks,
                calibration,
                device.is_gpu,
                anchors,
            )
            figures, attainable = (
                training_figures(*known_of_run),
                of_job(training_attainable(ModelInputs(*known_of_run)), whole),
            )
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        why = f"the models cannot take this run's values: {error!r}"
        return msgspec.structs.replace(
            run,
            figures=[],
            attainable=Attainable(reason=why),
            unavailable={**run.unavailable, MISSING: why},
        )
    unavailable = {name: why for name, why in run.unavailable.items() if name != MISSING}
    return msgspec.structs.replace(
        run, figures=figures, attainable=attainable, unavailable=unavailable
    )
