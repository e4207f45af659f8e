"""Options of every command that watches devices: sampling, device, recording, price, Prometheus, screen updates."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.network import check_url
from gpuconsole.cli.options.usage import price, seconds
from gpuconsole.engine.machine.settings import settings

CONSOLE_OPTIONS = ("interval", "device", "record", "price", "dcgm", "serve", "token_file", "eco")


def add_console_options(parser: argparse._ActionsContainer, screen: bool = False) -> None:
    """Add the options; `screen`: also those of the screen. They have no argparse default, because they may come before or after the command.
    The functions below supply the value: that of the option, or else that of the settings."""
    parser.add_argument("--interval", type=seconds, default=argparse.SUPPRESS, metavar="S", help="seconds between two samples (default 1)")
    add_device_option(parser)
    parser.add_argument("--record", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="record the session for `gpuconsole replay`")
    parser.add_argument(
        "--price", type=price, default=argparse.SUPPRESS, metavar="P", help="price of the machine per hour, in any currency"
    )
    parser.add_argument(
        "--dcgm",
        default=argparse.SUPPRESS,
        metavar="URL",
        help="address of a dcgm-exporter's /metrics: SM and tensor activity of GPUs before Hopper",
    )
    parser.add_argument("--serve", default=argparse.SUPPRESS, metavar="HOST:PORT", help="serve the session's metrics to Prometheus")
    parser.add_argument(
        "--token-file", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="with --serve: refuse requests without this bearer token"
    )
    if screen:
        add_eco_option(parser)


def add_device_option(parser: argparse._ActionsContainer) -> None:
    """Add --device, which every command that measures on a device has."""
    parser.add_argument(
        "--device", default=argparse.SUPPRESS, metavar="ID", help="gpu:N or cpu (default: the first GPU, or the CPU if there is no GPU)"
    )


def add_eco_option(parser: argparse._ActionsContainer) -> None:
    """Add --eco, which every command with a screen has."""
    parser.add_argument("--eco", action="store_true", default=argparse.SUPPRESS, help="update the screen less often, for a slow line")


def interval(args: argparse.Namespace) -> float:
    """Seconds between two samples."""
    return getattr(args, "interval", settings().interval)


def device(args: argparse.Namespace) -> str | None:
    """The id of the chosen device; None: no choice."""
    return getattr(args, "device", settings().device)


def record_path(args: argparse.Namespace) -> Path | None:
    """The file of --record; raises UsageError if the file cannot be written."""
    return writable(getattr(args, "record", None), "--record")


def price_per_hour(args: argparse.Namespace) -> float | None:
    """The price of the machine per hour."""
    return getattr(args, "price", settings().price)


def dcgm(args: argparse.Namespace) -> str | None:
    """The address of a dcgm-exporter; raises UsageError if the text is not an address."""
    url: str | None = getattr(args, "dcgm", settings().dcgm)
    check_url(url, "--dcgm", "http://127.0.0.1:9400/metrics")
    return url


def eco(args: argparse.Namespace) -> bool:
    """Whether the screen is updated less often (--eco)."""
    return getattr(args, "eco", settings().eco)


def theme() -> str:
    """The colours of the screen: `dark` or `light`."""
    return settings().theme or "dark"
