"""The fields of a request beyond OpenAI's API, and the refusal of such a field by a server."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

EFFECTS = {
    "ignore_eos": "answers may end before the requested number of tokens",
    "continuous_usage_stats": "the tokens of each chunk are estimated from the total at the end of the answer",
    "stream_options": "without usage in the stream, each chunk counts as one token",
}
"""The extra fields, each with what becomes less exact without the field. `continuous_usage_stats` is a part of `stream_options`."""
LENGTH = re.compile(
    r"context (length|size|window)|max_model_len|max_new_tokens|model length|too (long|large|many)|longer than|exceed|reduce the length"
)
"""The words for a length that does not fit: vLLM, SGLang, TGI and llama.cpp. Such a refusal may repeat the request with all its fields."""
UNKNOWN = re.compile(r"\bextra\b|extra_forbidden|unexpected|unrecogni[sz]ed|unknown|not permitted|additional propert|unsupported")
"""The words for a field that the server does not have: pydantic, TGI, llama.cpp, `transformers serve`."""


def extra_fields(refused: frozenset[str]) -> dict[str, Any]:
    """The extra fields of a request, without the `refused` fields."""
    fields: dict[str, Any] = {} if "ignore_eos" in refused else {"ignore_eos": True}
    if "stream_options" not in refused:
        continuous = {} if "continuous_usage_stats" in refused else {"continuous_usage_stats": True}
        fields["stream_options"] = {"include_usage": True, **continuous}
    return fields


def refused_fields(sent: Set[str], text: str) -> frozenset[str]:
    """The fields among `sent` that a refusal (HTTP 400 or 422) with this `text` is about; empty where the refusal has another reason.

    A refusal without a name is first about the fields that only vLLM and SGLang have, then about all fields.
    """
    text = text.lower()
    if LENGTH.search(text):
        return frozenset()
    named = {field for field in sent if field in text or (field == "stream_options" and "include_usage" in text)}
    if "continuous_usage_stats" in named:
        named.discard("stream_options")
    if "stream_options" in named:
        named.add("continuous_usage_stats")
    if named or not UNKNOWN.search(text):
        return frozenset(named)
    return frozenset(sent & {"ignore_eos", "continuous_usage_stats"} or sent)


def describe_refused(fields: frozenset[str]) -> str:
    """One line for the user: the refused fields, and what becomes less exact."""
    shown = [field for field in EFFECTS if field in fields and not (field == "continuous_usage_stats" and "stream_options" in fields)]
    return f"the server refuses {', '.join(shown)}: {'; '.join(EFFECTS[field] for field in shown)}"
