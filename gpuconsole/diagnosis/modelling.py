"""The analytical models of a run beside its measurement, as far as both are known by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Run

MISSING = "models"
"""The key in `Run.unavailable` under which a run tells why it has no figures."""


def refresh_figures(run: Run, devices: Sequence[Device], calibration: Mapping[str, float]) -> None:
    """Compute the figures anew from what the run holds: 0.4 ms. Without the workload's facts they stay as they are.

    A run may come from a file that somebody else has written, with knob values that the models do not know: that is told, and ends nothing.
    """
    if not run.facts and not run.serves:
        return
    from gpuconsole.diagnosis.models.figures.serving import serving_figures
    from gpuconsole.diagnosis.models.figures.training import training_figures  # 50 ms, which no first picture should wait for
    from gpuconsole.machine.published import published_of

    device = next((one for one in devices if one.id == run.device), Device(run.device, ""))
    published = published_of(device.name) if device.is_gpu else ()
    try:
        if run.serves:
            run.figures = serving_figures(run.knobs, run.facts, run.signals, device.peaks, device.is_gpu)
        else:
            run.figures = training_figures(
                run.knobs, run.facts, run.signals, run.summary, device.peaks, calibration, device.is_gpu, published
            )
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        run.figures = []
        run.unavailable[MISSING] = f"the models cannot take this run's values: {error!r}"
    else:
        run.unavailable.pop(MISSING, None)
