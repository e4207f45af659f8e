"""What options mean: the value of an option, or else that of the settings; addresses, bearer tokens
and files to write."""

from __future__ import annotations

import argparse
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from gpuconsole.cli import output
from gpuconsole.cli.options import UsageError
from gpuconsole.host import settings as rules
from gpuconsole.host.files import check_writable, make_writable_folder, read_limited
from gpuconsole.host.settings import settings

if TYPE_CHECKING:
    from gpuconsole.model.machine import Device
    from gpuconsole.session.state import SessionState


MAX_TOKEN_BYTES = 2**16
WRITTEN_IN_PLACE = ("--record", "--output")
"""Options whose files grow while the job runs. All other files are written whole at the end."""


def interval(args: argparse.Namespace) -> float:
    """Seconds between two samples."""
    return getattr(args, "interval", settings().interval)


def device(args: argparse.Namespace) -> str | None:
    """The id of the chosen device; None: no choice."""
    return getattr(args, "device", settings().device)


def chosen_device(state: SessionState, args: argparse.Namespace) -> Device:
    """Return the first of `chosen_devices`."""
    return chosen_devices(state, args)[0]


def chosen_devices(state: SessionState, args: argparse.Namespace) -> list[Device]:
    """Return the device of the run, then the further devices of a run on several devices. The first
    is the chosen device, else the first GPU, else the CPU. Raises UsageError."""
    from gpuconsole.engine.devices import DeviceChoiceError, choose_devices

    try:
        return choose_devices(state.devices, device(args), state.lost)
    except DeviceChoiceError as error:
        raise UsageError(str(error)) from None


def price_per_hour(args: argparse.Namespace) -> float | None:
    """The price of the machine per hour."""
    return getattr(args, "price", settings().price)


def eco(args: argparse.Namespace) -> bool:
    """Whether the screen is updated less often (--eco)."""
    return getattr(args, "eco", settings().eco)


def theme() -> str:
    """The colours of the screen: `dark` or `light`."""
    return settings().theme or "dark"


def dcgm(args: argparse.Namespace) -> str | None:
    """The address of a dcgm-exporter; raises UsageError if the text is not an address."""
    url: str | None = getattr(args, "dcgm", settings().dcgm)
    check_url(url, "--dcgm", "http://127.0.0.1:9400/metrics")
    return url


def serve_address(args: argparse.Namespace) -> tuple[str, int, bytes | None] | None:
    """Host, port and bearer token of --serve and --token-file; None without --serve. Raises
    UsageError."""
    address: str | None = getattr(args, "serve", settings().serve)
    if address is None:
        if getattr(args, "token_file", None) is not None:
            raise UsageError(f"--token-file {args.token_file}: needs --serve HOST:PORT")
        return None
    return *parse_address(address, "--serve"), token(args)


def token(args: argparse.Namespace) -> bytes | None:
    """The bearer token from the file of --token-file, without surrounding whitespace. None if no
    file is set. Raises UsageError."""
    path: Path | None = getattr(args, "token_file", settings().token_file)
    if not path:
        return None
    try:
        text = read_limited(path, MAX_TOKEN_BYTES).strip()
    except OSError as error:
        raise UsageError(f"--token-file {path}: cannot be read: {error.strerror}") from None
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        output.print_note(f"--token-file {path}: other users can read the token (chmod 600 {path})")
    if not text:
        raise UsageError(f"--token-file {path}: is empty")
    return text


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, an IPv6 address in brackets; raises UsageError."""
    try:
        return rules.address(text)
    except ValueError as mistake:
        raise UsageError(f"{option} {text}: {mistake}") from None


def check_url(url: str | None, option: str, example: str) -> None:
    """Raises UsageError if `url` is not an http or https address."""
    if url is None:
        return
    try:
        rules.url(url, example)
    except ValueError as mistake:
        # it may hold a password, or a key in its query
        shown = f" {url}" if not re.search("[@?#]", url) else ""
        raise UsageError(f"{option}{shown}: {mistake}") from None


def writable(args: argparse.Namespace, option: str) -> Path | None:
    """The file of an option such as `--snapshot`; None without the option.

    Raises UsageError where the file cannot be written, so the command fails before it starts
    work."""
    path: Path | None = getattr(args, option.removeprefix("--"), None)
    if path is not None:
        try:
            if option == "--record" and path.is_dir():
                make_writable_folder(path)  # a ring
            else:
                check_writable(path, in_place=option in WRITTEN_IN_PLACE)
        except OSError as error:
            raise UsageError(
                f"{option} {path}: cannot be written: {error.strerror or error}"
            ) from None
    return path


def check_folder(folder: Path | None) -> None:
    """Raises UsageError if files cannot be written into the folder of --profile-dir, before the run
    starts."""
    if folder is None:
        return
    try:
        make_writable_folder(folder)
    except OSError as error:
        raise UsageError(
            f"--profile-dir {folder}: cannot be written: {error.strerror or error}"
        ) from None
