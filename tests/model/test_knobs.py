import pytest

from gpuconsole.model.knobs.catalogue import (
    CATALOGUE,
    KnobError,
    describe_changes,
    parse_assignment,
)
from gpuconsole.model.run import Run

KNOWN = ("batch_size", "precision", "storage_latency_ms", "log_gradients")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch_size=8", 8),
        ("precision=bf16", "bf16"),
        ("storage_latency_ms=2.5", 2.5),
        ("log_gradients=yes", True),
    ],
)
def test_parses_typed_values(text: str, value: object) -> None:
    _, parsed = parse_assignment(text, KNOWN, "x")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("batchsize=8", ["no setting 'batchsize'", "did you mean 'batch_size'"]),
        ("batch_size=0", ["batch_size", "int 1..65536"]),
        ("batch_size=many", ["batch_size", "int 1..65536"]),
        ("batch_size=2.5", ["batch_size"]),
        ("precision=bf61", ["fp32|tf32|bf16", "did you mean 'bf16'"]),
        ("log_gradients=maybe", ["true|false"]),
        ("storage_latency_ms=nan", ["storage_latency_ms"]),
        ("batch_size", ["NAME=VALUE"]),
        ("num_workers=2", ["no setting"]),
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
    assert (
        describe_changes({"num_workers": 4, "pin_memory": True}, {"num_workers": 0})
        == "num_workers 0 -> 4, pin_memory true"
    )


def test_a_knob_applies_live_by_its_declared_mode_or_within_the_limit_that_the_worker_reports() -> (
    None
):
    facts = {"live_limit.max_num_seqs": 16.0}
    assert CATALOGUE["log_every"].applies_live(10, {})
    assert not CATALOGUE["d_model"].applies_live(128, facts)
    seats = CATALOGUE["max_num_seqs"]
    assert (
        seats.applies_live(16, facts),
        seats.applies_live(17, facts),
        seats.applies_live(16, {}),
    ) == (True, False, False)
    run = Run(
        "1", "serve-chat", "inference.chat", {"max_num_seqs": 8, "log_every": 1}, "cpu", facts=facts
    )
    assert run.applies_live({"max_num_seqs": 16}) and not run.applies_live({"max_num_seqs": 17})
    assert run.effective({"max_num_seqs": 8, "log_every": 2}) == {"log_every": 2}
    with pytest.raises(KnobError, match="already in force"):
        run.effective({"max_num_seqs": 8})
