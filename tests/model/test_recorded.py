"""Files of recorded prompts: what they say, and what is wrong with them."""

from __future__ import annotations

import re

import pytest

from gpuconsole.model.serving import RecordedPrompt, parse_recorded, shared_ratio


def test_prompts_and_messages_with_and_without_a_length() -> None:
    lines = [
        '{"prompt": "tell me", "output_tokens": 7, "id": 3}',
        "",
        (
            '{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content":'
            ' "hello"}], "max_tokens": 9}'
        ),
        '{"prompt": "what"}',
    ]
    assert parse_recorded("\n".join(lines)) == [
        RecordedPrompt("tell me", 7),
        RecordedPrompt("system: be brief\nuser: hello", 9),
        RecordedPrompt("what"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\n", "there is no prompt in it"),
        ('{"prompt": "a"}\nhello', "line 2: JSON is malformed"),
        ('{"prompt": 3}', "line 1: Expected `str | null`, got `int` - at `$.prompt`"),
        ('{"text": "a"}', 'line 1: neither "prompt" nor "messages" has a text'),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: output_tokens 0 must be 1 or more"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(words)}"):
        parse_recorded(text)


def test_what_prompts_share_is_the_longest_beginning_that_another_one_has() -> None:
    found = parse_recorded(
        "\n".join(f'{{"prompt": "{text}"}}' for text in ("abcdef", "abcxyz", "abcdxx", "q", "q"))
    )
    assert [one.shared for one in found] == [4, 3, 4, 1, 1]
    assert shared_ratio([one.text for one in found]) == pytest.approx(13 / 20)
