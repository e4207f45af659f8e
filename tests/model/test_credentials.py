"""Credentials are cut out of texts of errors; what is none stays."""

from __future__ import annotations

import time

import pytest

from gpuconsole.engine.children.job import JobCommand
from gpuconsole.model import text
from gpuconsole.model.text import command_line, without_credentials
from gpuconsole.session.api import SessionError
from gpuconsole.wire.events import Failed, KnobsSet, Note, decode_event, encode
from gpuconsole.wire.events import without_credentials as without_credentials_of

SECRET = "s3cretS3CRET"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            f"API request to http://mon:{SECRET}@127.0.0.1:5000/log-batch failed",
            "API request to http://127.0.0.1:5000/log-batch failed",
        ),
        (
            f"clone 'https://oauth2:{SECRET}p@ss@git.example/x.git' failed",
            "clone 'https://git.example/x.git' failed",
        ),
        (f"GET https://h/v1?key={SECRET}&n=2: 403", "GET https://h/v1?*** 403"),
        (
            f"Max retries exceeded with url: /v1/models?api_key={SECRET} (Caused by ...)",
            "Max retries exceeded with url: /v1/models?*** (Caused by ...)",
        ),
        (
            f"{{'Authorization': 'Bearer {SECRET}', 'Accept': '*/*'}}",
            "{'Authorization': '***', 'Accept': '*/*'}",
        ),
        (f"headers: X-Api-Key: {SECRET}", "headers: X-Api-Key: ***"),
        (f"invalid header Bearer {SECRET}", "invalid header Bearer ***"),
        (f"HF_TOKEN={SECRET} is not valid", "HF_TOKEN=*** is not valid"),
        (f"unrecognized arguments: --hf-token={SECRET}", "unrecognized arguments: --hf-token=***"),
        (f'login(password="{SECRET}") failed', 'login(password="***") failed'),
        (f"{{'token': '{SECRET}', 'n': 1}}", "{'token': '***', 'n': 1}"),
        ("repository hf_abcdefghijklmnopqrst not found", "repository *** not found"),
        ("key sk-proj-abcdefghijklmnop1234", "key ***"),
        ("ghp_abcdefghijklmnopqrstuvwx", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        (
            f"unrecognized arguments: --hf-token {SECRET} -x",
            "unrecognized arguments: --hf-token *** -x",
        ),
        (f"['--token', '{SECRET}', '-v']", "['--token', '***', '-v']"),
        (f"login: password: {SECRET}", "login: password: ***"),
        (f"api-key: {SECRET}", "api-key: ***"),
        (f"AccountKey={SECRET};Suffix=x", "AccountKey=***;Suffix=x"),
        (f"uid=sa;pwd={SECRET}", "uid=sa;pwd=***"),
        (f"https://hooks.slack.com/services/T0/B0/{SECRET}", "https://hooks.slack.com/***"),
        (f"https://discord.com/api/webhooks/1/{SECRET}", "https://discord.com/api/webhooks/***"),
        (f"http://ann:{SECRET}/x@h/y", "http://h/y"),
        (f"http://ann:{SECRET}?x@h/y", "http://h/y"),
        (f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----", "***"),
        ("dapi0123456789abcdef0123456789abcdef", "***"),
        ("ya29.a0AfH6SMBxxxxxxxxxxx", "***"),
    ],
)
def test_a_credential_is_cut_out(text: str, kept: str) -> None:
    assert without_credentials(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.10 GiB total capacity)",
        "TypeError: __init__() got an unexpected keyword argument 'pad_token'",
        "KeyError: 'token'",
        "ValueError: max_tokens=512 exceeds max_model_len=256, pad_token_id=50256",
        "SyntaxError: unexpected token: identifier",
        "http://127.0.0.1:8000: the server does not answer: connection refused",
        "ann@example.org sent a mail; is it ok?",
        "num_workers 0 -> 4: batches of 8 at https://host/path#part",
        "unrecognized arguments: --max-tokens 512 --tokenizer gpt2 --pad-token 0",
        "unrecognized arguments: --pad-token <|endoftext|> mask_token=[MASK] --eos_token=</s>",
        "http://127.0.0.1:8000/v1/user@org: not found; PWD=/home/ann",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/keys/train.csv'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 32x64)",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


def test_the_time_is_in_proportion_to_the_text() -> None:
    begun = time.thread_time()
    for long in (
        "://" * 30_000,
        "://a:" * 30_000,
        "--token " * 12_000,
        "-----BEGIN PRIVATE KEY-----" * 4000,
        "?a=" * 30_000,
        "token" * 20_000,
        "'token':" * 12_000,
        "-" * 100_000,
        "eyJ" * 30_000,
        "_" * 100_000,
        "a-" * 50_000,
        "x-" * 50_000,
        "eyJ-" * 25_000,
    ):
        without_credentials(long)
    assert time.thread_time() - begun < 3


def test_what_a_child_sends_and_what_the_console_says_is_cut_and_the_rest_is_the_same() -> None:
    failed = Failed(1.0, f"http://a:{SECRET}@h/", f"line\nTOKEN={SECRET}")
    assert (
        decode_event(encode(failed))
        == without_credentials_of(failed)
        == Failed(1.0, "http://h/", "line\nTOKEN=***")
    )
    refused = KnobsSet(1.0, 1, 1, {"num_workers": 4}, error=f"token={SECRET}")
    assert decode_event(encode(refused)) == KnobsSet(
        1.0, 1, 1, {"num_workers": 4}, error="token=***"
    )
    plain = Note(1.0, "nothing to hide")
    assert without_credentials_of(plain) is plain
    assert str(SessionError(f"http://a:{SECRET}@h/: no answer")) == "http://h/: no answer"


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-token", SECRET],
        [f"--password={SECRET}"],
        ["--wandbApiKey", SECRET],
        ["bash", "-c", f"HF_TOKEN={SECRET} exec python train.py --lr 0.1"],
        ["bash", "-c", f"python train.py --db-password '{SECRET}'"],
        ["--loader-config", f'{{"api_key": "{SECRET}", "n": 1}}'],
        [f"https://h/v1?n=2&api_key={SECRET}"],
        [f"postgres://ann:{SECRET}@h/db"],
        ["--api-key", "lowercase"],
        ["--secret", "20261201"],
    ],
)
def test_a_secret_of_the_command_line_is_cut_whatever_the_text_around_it(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_secrets", [])
    JobCommand(("train.py", *words))
    (secret,) = {SECRET, "lowercase", "20261201"} & text.secrets_of(words)
    for around in ("the server refused %s today", "%s", "X-Odd(%s)", "a\nb%s\n"):
        assert secret not in without_credentials(around % secret)
    assert secret not in command_line(words)
    failed = Failed(1.0, f"cannot read {secret}", f"line {secret}")
    assert secret not in str(decode_event(encode(failed)))


@pytest.mark.parametrize(
    "words",
    [
        ["--tokenizer", "gpt2", "--max-tokens", "2048", "--pad-token-id", "50256"],
        ["--token-file", "/run/token", "--api-key-env", "NAME"],
        ["--text-key", "caption", "--sort-keys", "true", "--key", "step"],
        ["data.key=observation.images.top", "group.key=layer_norm.weight", "key_value_heads=8x2"],
        ["--cache-key-prefix", "resnet50", "--pad-token", "<|endoftext|>", "mask_token=[MASK]"],
        ["--password", "--verbose"],
        ["train.py", "monkey", "banana", "http://127.0.0.1:8000/v1"],
    ],
)
def test_other_words_of_the_command_line_stay(words: list[str]) -> None:
    assert text.secrets_of(words) == set() and command_line(words) == " ".join(words)


def test_a_long_command_line_takes_little_time() -> None:
    begun = time.thread_time()
    for part in ("a", "a=", "key=", "key ", "://a:", '"key":', "'", "--token "):
        command_line([part * 50_000])
    assert time.thread_time() - begun < 3
