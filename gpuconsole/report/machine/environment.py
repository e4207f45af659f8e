"""The machine and the software of a session, and what kind of device its figures belong to."""

from __future__ import annotations

from collections.abc import Sequence

from gpuconsole.model.machine.device import Device
from gpuconsole.model.run import Run
from gpuconsole.model.snapshot import Environment, Snapshot
from gpuconsole.report import units
from gpuconsole.report.machine.device_tables import peaks
from gpuconsole.report.names import plain, spans
from gpuconsole.report.parts import Report, labelled


def device_kinds(snapshot: Snapshot) -> list[str]:
    """What the figures of a session belong to: a CPU, a simulated GPU, a recording. Empty for a live session on GPUs."""
    used = {run.device for run in snapshot.runs} | {sweep.device for sweep in snapshot.sweeps}
    devices = [device for device in snapshot.environment.devices if device.id in used]
    found = []
    if "cpu" in used:
        found.append("CPU: no figure is GPU data")
    if any(device.is_gpu and device.name.startswith("simulated") for device in devices):
        found.append("simulated GPU: no figure is GPU data")
    if snapshot.recording:
        found.append("recording: a replay of an earlier session")
    return found


def environment_report(environment: Environment, used: Sequence[str], runs: Sequence[Run] = ()) -> Report:
    """The devices in use, the machine, the software. `used`: ids of devices. With several processes all GPUs are listed, because a snapshot
    does not say which of them the processes use. A part that is not known reads n/a."""
    several = any(len(run.ranks) > 1 for run in runs)
    alike: dict[str, list[str]] = {}
    for one in environment.devices:
        if one.id in used or (several and one.is_gpu and not one.is_mig):
            alike.setdefault(_device(one), []).append(one.id)
    found: Report = [labelled("device", f"{plain(spans(ids))} {words}") for words, ids in alike.items()]
    found.append(labelled("host", plain(", ".join(filter(None, (environment.host, environment.os)))) or units.NA))
    memory = units.size_bytes(environment.memory_bytes).strip() if environment.memory_bytes else ""
    cores = f"{environment.cores} cores in use" if environment.cores else ""
    found.append(labelled("CPU", plain(", ".join(filter(None, (environment.cpu, cores, memory)))) or units.NA))
    found.append(labelled("python", plain(environment.python) or units.NA))
    found.append(labelled("torch", plain(environment.torch) if environment.torch else f"{units.NA}: torch is not installed"))
    gpus = any(device.is_gpu for device in environment.devices)
    for label, version in (("CUDA", environment.cuda), ("GPU driver", environment.driver)):
        found.append(labelled(label, plain(version) if version else f"{units.NA}: {'not reported' if gpus else 'this machine has no GPU'}"))
    for run in runs:
        if run.job is not None:
            versions = [f"{name} {version}" for name, version in run.job.frameworks.items()]
            own = [f"python {run.job.python}", f"torch {run.job.torch}", *versions]
            found.append(labelled("job", plain(f"{run.job.script}: {', '.join(own)}")))
            found += [labelled("command", plain(" ".join(run.command)))] if run.command else []
            break
    return found


def _device(device: Device) -> str:
    parts = [device.name, units.size_bytes(device.memory_bytes).strip() if device.memory_bytes else "", peaks(device.peaks)]
    return plain(", ".join(filter(None, parts)))
