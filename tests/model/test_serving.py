"""What a model server says of itself."""

from __future__ import annotations

from gpuconsole.model.serving import Fact, ServerFacts


def test_the_facts_that_are_numbers_are_told_apart_from_texts_and_from_unknown_facts() -> None:
    facts = ServerFacts(
        engine=Fact("vllm", "/v1/models"),
        max_num_seqs=Fact(8, "the log"),
        enable_prefix_caching=Fact(0, "the log"),
    )
    assert facts.numbers() == {"max_num_seqs": 8, "enable_prefix_caching": 0}
    assert (facts.number("engine"), facts.number("block_size")) == (None, None)
