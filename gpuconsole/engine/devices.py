"""The devices of the next run: the user's choice among the devices that are known now."""

from __future__ import annotations

from gpuconsole.machine.choice import DeviceChoiceError, choose_devices, cuda_names
from gpuconsole.model.machine.device import Device
from gpuconsole.session.api import SessionError
from gpuconsole.session.state import SessionState


class ChosenDevices:
    """`wanted`: the device that the user named, if any."""

    def __init__(self, state: SessionState, wanted: str | None) -> None:
        self._state, self._wanted = state, wanted

    def first(self) -> Device:
        """The device of the next run: the device that the user named, else the first GPU, else the CPU. Raises SessionError."""
        return self._all()[0]

    def cuda_names(self, nproc: int) -> str:
        """CUDA_VISIBLE_DEVICES of a run in `nproc` processes; empty on a CPU. Raises SessionError."""
        return cuda_names(self._all()[:nproc])

    def _all(self) -> list[Device]:
        try:
            return choose_devices(self._state.devices, self._wanted, self._state.lost)
        except DeviceChoiceError as error:
            raise SessionError(str(error)) from None
