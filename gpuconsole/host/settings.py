"""Read the user's settings from `config.toml` and from `GPUCONSOLE_*` environment variables.

An option on the command line overrides the environment. The environment overrides the file. The
file overrides the built-in value.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gpuconsole.host.files import read_limited
from gpuconsole.host.folders import user_folder
from gpuconsole.model.knobs.knob import nearest
from gpuconsole.model.text import visible

PREFIX = "GPUCONSOLE_"
BUILT_IN = "built-in"
MAX_BYTES = 2**20
"""The largest file that is read."""
COLORS = ("auto", "always", "never")
THEMES = ("dark", "dark-contrast", "light")


class SettingsError(ValueError):
    """A mistake in a setting. The message is one line that names the place, the setting and what is
    allowed."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force, without the options of a command.

    `interval`: seconds between two samples. `price`: price of the machine per hour, in any
    currency. `theme` is empty if the user chose no theme. `keys`: action id to key, for the actions
    that have another key than the built-in one. `baselines`: the directory of the baselines; None:
    the user's data folder. `device`, `dcgm`, `serve`, `token_file`, `eco`, `color` and `quiet` have
    the meaning of the options of the same name. `sources`: for each setting that is not built-in,
    the place that sets its value.
    """

    interval: float = 1.0
    price: float | None = None
    theme: str = ""
    keys: dict[str, str] = {}
    baselines: Path | None = None
    device: str | None = None
    dcgm: str | None = None
    serve: str | None = None
    token_file: Path | None = None
    eco: bool = False
    color: str = "auto"
    quiet: bool = False
    sources: dict[str, str] = {}

    def source(self, name: str) -> str:
        """Return the place that sets the value of `name`."""
        return self.sources.get(name, BUILT_IN)

    def mistake(self, name: str, problem: str) -> SettingsError:
        """Return the error for a value that only the code that uses it can check, for example the
        name of a key. `problem` says what is allowed."""
        return SettingsError(f"{self.source(name)}: {visible(problem)}")


def seconds(value: object) -> float:
    """Check a duration in seconds, 0.05 to 10 000 000. Raises ValueError."""
    number = _number(value, "a number of seconds")
    if not 0.05 <= number <= 1e7:
        raise ValueError(f"{value} s: allowed are 0.05 s to 10 000 000 s")
    return number


def price(value: object) -> float:
    """Check a price per hour, 0 or more, in any currency. Raises ValueError."""
    number = _number(value, "a price per hour")
    if not 0 <= number < 1e9:
        raise ValueError(f"{value}: a price per hour is 0 or more")
    return number


def address(value: object) -> tuple[str, int]:
    """Split `HOST:PORT` into host and port. An IPv6 address stands in brackets. Raises
    ValueError."""
    host, _, port = _text(value).rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:9835 or [::1]:9835")
    return host.removeprefix("[").removesuffix("]"), int(port)


def url(value: object, example: str = "http://127.0.0.1:9400/metrics") -> str:
    """Check an http or https address. It must not contain a user name, a password or a query,
    because addresses are shown, recorded and exported. Raises ValueError."""
    text = _text(value)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if "@" in re.split(r"[/?#]", text.partition("://")[2], maxsplit=1)[0]:
        raise ValueError(f"must not hold a user name or a password; an address such as {example}")
    if "?" in text or "#" in text:
        raise ValueError(
            f"must not hold a query (?...), where keys often stand; an address such as {example}"
        )
    if not good:
        raise ValueError(f"must be an address such as {example}")
    return text


def _number(value: object, what: str) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    raise ValueError(f"{value!r} is not {what}")


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r}: must be a text")
    return value


def _switch(value: object) -> bool:
    flag = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if flag is None or not isinstance(value, bool | str):
        raise ValueError(f"{value!r}: must be true or false")
    return flag


def _word(*allowed: str) -> Callable[[object], str]:
    """Return a check that accepts only these words."""

    def check(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"{value!r}: must be {', '.join(allowed[:-1])} or {allowed[-1]}")
        return str(value)

    return check


def _address_text(value: object) -> str:
    address(value)
    return _text(value)


def _path(value: object) -> Path:
    text = _text(value)
    if "\0" in text:
        raise ValueError(f"{value!r}: must be a path")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{value!r}: there is no such user, or no home directory") from None


def _keys(value: object) -> dict[str, str]:
    """Check a table of actions and keys. In the environment this table is a text:
    `quit=x,tuning=T`."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        value = {action.strip(): key.strip() for action, _, key in pairs}
    if not isinstance(value, dict) or not all(
        isinstance(key, str) and key for key in value.values()
    ):
        raise ValueError(
            'must be a table of actions and keys, such as quit = "Q" (in the environment'
            " quit=Q,tuning=T)"
        )
    return {str(action): key for action, key in value.items()}


class Setting(NamedTuple):
    """One setting: the check of its value, and its meaning. `check` raises ValueError with a
    message that says what is allowed."""

    check: Callable[[object], Any]
    meaning: str
    option: str = ""


SETTINGS: dict[str, Setting] = {
    "interval": Setting(seconds, "seconds between two samples", "--interval"),
    "device": Setting(_text, "gpu:N or cpu", "--device"),
    "price": Setting(price, "price of the machine per hour, in any currency", "--price"),
    "dcgm": Setting(url, "address of a dcgm-exporter's /metrics", "--dcgm"),
    "serve": Setting(
        _address_text, "serve the session's metrics to Prometheus at HOST:PORT", "--serve"
    ),
    "token_file": Setting(_path, "bearer token for serve and for the exporter", "--token-file"),
    "eco": Setting(_switch, "update the screen less often", "--eco"),
    "color": Setting(_word(*COLORS), "colours: auto, always or never", "--color"),
    "quiet": Setting(_switch, "no progress and no notes on stderr", "--quiet"),
    "baselines": Setting(_path, "directory of the baselines"),
    "theme": Setting(_word(*THEMES), "colours of the screen: dark, dark-contrast or light"),
    "keys": Setting(_keys, "table of actions and keys"),
}
"""All settings, in the order of the documentation. The names are the keys in the file.
`GPUCONSOLE_` with the name in upper case is the environment variable."""


def config_path() -> Path:
    """Return the path of the configuration file (on Linux `~/.config/gpuconsole/config.toml`, or
    below `$XDG_CONFIG_HOME`)."""
    return user_folder("config") / "config.toml"


@functools.cache
def settings() -> Settings:
    """Read the settings of this process, once. Raises SettingsError."""
    return load(config_path(), os.environ)


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the settings in the file `path` and in `environ`. The file need not exist. Raises
    SettingsError."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    written, lines = _read(path)
    for name, value in written.items():
        place = f"{path}, line {lines[name]}" if name in lines else str(path)
        if name not in SETTINGS:
            raise SettingsError(
                visible(
                    f"{place}: there is no setting {name!r}{nearest(name, SETTINGS)}; there are:"
                    f" {', '.join(SETTINGS)}"
                )
            )
        values[name], sources[name] = _checked(name, value, place, name), place
        if isinstance(values[name], Path):  # a relative path in the file is relative to the file
            values[name] = path.parent / values[name]
    for name in SETTINGS:
        variable = PREFIX + name.upper()
        if environ.get(variable):
            values[name], sources[name] = _checked(name, environ[variable], variable, ""), variable
    return Settings(**values, sources=sources)


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Find variables that look like a misspelt setting. Return a hint for each variable: the name
    of the most similar setting."""
    unknown = [
        name
        for name in environ
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() not in SETTINGS
    ]
    similar = {name: nearest(name.removeprefix(PREFIX).lower(), SETTINGS) for name in unknown}
    return {name: hint for name, hint in similar.items() if hint}


def _checked(name: str, value: object, place: str, key: str) -> Any:
    try:
        return SETTINGS[name].check(value)
    except (ValueError, OverflowError) as problem:
        line = f"{place}: {key}: {problem}" if key else f"{place}: {problem}"
        raise SettingsError(visible(line)) from None


def _read(path: Path) -> tuple[dict[str, object], dict[str, int]]:
    """Return the contents of the file, and the line of each key. Raises SettingsError."""
    try:
        text = read_limited(path, MAX_BYTES, regular=True).decode()
    except (FileNotFoundError, NotADirectoryError):  # the home of a service may be /dev/null
        return {}, {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"
        ) from None
    import tomllib  # most users have no file

    try:
        return tomllib.loads(text), _lines(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5000 digits
        raise SettingsError(visible(f"{path}: not valid TOML: {error}")) from None


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key outside tables, and of each table."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*\"?([^\]\"]+?)\"?\s*\]", line):
            table = head[1]
            lines.setdefault(table, number)
        elif (key := re.match(r"\s*\"?([\w-]+)\"?\s*[=.]", line)) and not table:
            lines.setdefault(key[1], number)
    return lines
