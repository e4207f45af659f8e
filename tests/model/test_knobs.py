import pytest

from gpuconsole.model.knobs.catalogue import CATALOGUE, KnobError, describe_changes, parse_assignment

KNOWN = ("batch_size", "precision", "storage_latency_ms", "log_gradients")


@pytest.mark.parametrize(
    ("text", "value"),
    [("batch_size=8", 8), ("precision=bf16", "bf16"), ("storage_latency_ms=2.5", 2.5), ("log_gradients=yes", True)],
)
def test_parses_typed_values(text: str, value: object) -> None:
    _, parsed = parse_assignment(text, KNOWN, "x")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batchsize=8", ["no knob 'batchsize'", "did you mean 'batch_size'"]),
        ("batch_size=0", ["batch_size", "int 1..65536"]),
        ("batch_size=many", ["batch_size", "int 1..65536"]),
        ("batch_size=2.5", ["batch_size"]),
        ("precision=bf61", ["fp32|tf32|bf16", "did you mean 'bf16'"]),
        ("log_gradients=maybe", ["true|false"]),
        ("storage_latency_ms=nan", ["storage_latency_ms"]),
        ("batch_size", ["KNOB=VALUE"]),
        ("num_workers=2", ["no knob"]),
    ],
)
def test_bad_input_is_one_line_that_names_what_is_allowed(text: str, words: list[str]) -> None:
    with pytest.raises(KnobError) as caught:
        parse_assignment(text, KNOWN, "x")
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_every_example_value_is_allowed() -> None:
    for knob in CATALOGUE.values():
        assert [knob.check(value) for value in knob.examples] == list(knob.examples)


def test_changes_in_words() -> None:
    assert describe_changes({"num_workers": 4, "pin_memory": True}, {"num_workers": 0}) == "num_workers 0 -> 4, pin_memory true"
