"""Settings: the file, the environment, and one clear line for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuconsole.host.settings import BUILT_IN, SETTINGS, Settings, SettingsError, load, misspelt


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_without_a_file_all_values_are_built_in(file: Path) -> None:
    found = load(file, {})
    assert found == Settings()
    assert {found.source(name) for name in SETTINGS} == {BUILT_IN}


def test_every_setting_is_read_from_the_file_with_its_line(file: Path) -> None:
    file.write_text(
        "# mine\ninterval = 0.5\nprice = 3\ntheme = 'light'\nbaselines = 'kept'\ndevice = 'gpu:1'\n"
        "dcgm = 'http://h:9400/metrics'\n"
        "serve = '127.0.0.1:9836'\ntoken_file = '/t'\neco = true\ncolor = 'never'\nquiet = false\n"
        "[keys]\nquit = 'Q'\ntuning = 'T'\n"
    )
    found = load(file, {})
    assert (found.interval, found.price, found.theme, found.keys) == (
        0.5,
        3.0,
        "light",
        {"quit": "Q", "tuning": "T"},
    )
    assert (found.device, found.dcgm, found.serve) == (
        "gpu:1",
        "http://h:9400/metrics",
        "127.0.0.1:9836",
    )
    assert (found.baselines, found.token_file) == (file.parent / "kept", Path("/t")), (
        "a relative path is relative to the file"
    )
    assert (found.eco, found.color, found.quiet) == (True, "never", False)
    assert found.sources.keys() == SETTINGS.keys()
    assert (found.source("interval"), found.source("keys")) == (
        f"{file}, line 2",
        f"{file}, line 13",
    )


def test_the_environment_comes_before_the_file(file: Path) -> None:
    file.write_text("interval = 0.5\nprice = 3\n")
    variables = {
        "GPUCONSOLE_INTERVAL": "2",
        "GPUCONSOLE_KEYS": "quit=Q, tuning=T",
        "GPUCONSOLE_ECO": "true",
        "GPUCONSOLE_PRICE": "",
    }
    found = load(file, variables)
    assert (found.interval, found.price, found.keys, found.eco) == (
        2.0,
        3.0,
        {"quit": "Q", "tuning": "T"},
        True,
    )
    assert (found.source("interval"), found.source("price")) == (
        "GPUCONSOLE_INTERVAL",
        f"{file}, line 2",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("interval = 0\n", ["line 1: interval: 0 s: allowed are 0.05 s to 10 000 000 s"]),
        ("\ninterval = 'soon'\n", ["line 2: interval: 'soon' is not a number of seconds"]),
        ("interval = true\n", ["interval: True is not a number of seconds"]),
        ("price = -1\n", ["price: -1: a price per hour is 0 or more"]),
        (
            "intervall = 1\n",
            [
                (
                    "line 1: there is no setting 'intervall' (did you mean 'interval'?); there are:"
                    " interval, device"
                )
            ],
        ),
        ("color = 'green'\n", ["color: 'green': must be auto, always or never"]),
        ("theme = 'pink'\n", ["line 1: theme: 'pink': must be dark, dark-contrast or light"]),
        ("eco = 1\n", ["eco: 1: must be true or false"]),
        ("serve = '9836'\n", ["serve: must be HOST:PORT"]),
        ("dcgm = 'h:9400'\n", ["dcgm: must be an address such as http://"]),
        ("keys = 3\n", ["keys: must be a table of actions and keys"]),
        ("[keys]\nquit = 3\n", ["line 1: keys: must be a table"]),
        ("baselines = ''\n", ["baselines: '': must be a text"]),
        ("interval = \n", ["not valid TOML", "line 1"]),
        ("x = '\x1b[31m'\n", ["not valid TOML"]),
    ],
)
def test_a_mistake_is_one_line_with_file_line_key_and_what_is_allowed(
    file: Path, text: str, words: list[str]
) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load(file, {})
    message = str(raised.value)
    assert message.startswith(str(file)) and "\n" not in message and "\x1b" not in message
    assert [word for word in words if word not in message] == []


def test_a_mistake_in_a_variable_names_the_variable(file: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"^GPUCONSOLE_INTERVAL: 'soon' is not a number of seconds$"
    ):
        load(file, {"GPUCONSOLE_INTERVAL": "soon"})


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: Is a directory$"):
        load(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b"theme = '\xe9'\n")
    with pytest.raises(SettingsError, match=r"cannot be read: not UTF-8$"):
        load(tmp_path / "latin.toml", {})


def test_a_mistake_that_only_the_screen_can_see_names_the_place_too(file: Path) -> None:
    file.write_text("[keys]\nfly = 'F'\n")
    error = load(file, {}).mistake("keys", "keys: there is no action 'fly'")
    assert str(error) == f"{file}, line 1: keys: there is no action 'fly'"


def test_a_misspelt_variable_is_found() -> None:
    assert misspelt(
        {"GPUCONSOLE_PRISE": "3", "GPUCONSOLE_AGENT": "x", "GPUCONSOLE_PRICE": "3", "PRISE": "1"}
    ) == {"GPUCONSOLE_PRISE": " (did you mean 'price'?)"}
