"""Credentials are cut out of texts of errors; what is none stays."""

from __future__ import annotations

import time

import pytest

from gpuconsole.model.text import without_credentials
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
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/keys/train.csv'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 32x64)",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_credentials(text) == text


def test_the_time_is_in_proportion_to_the_text() -> None:
    begun = time.thread_time()
    for text in (
        "://" * 30_000,
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
        without_credentials(text)
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
