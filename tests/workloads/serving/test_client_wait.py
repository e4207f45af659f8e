"""The probe of a watched server: what it sends, what it shows, and one clear line for each
fault."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web

from gpuconsole.diagnosis.families.serving import probe_words
from gpuconsole.model.run import PROBE
from gpuconsole.model.serving import CLIENT_WAIT, PROBE_REQUESTS, PROBE_TOKENS
from gpuconsole.wire.events import ProbeDone, RunProbe, ServerState, Steps
from gpuconsole.workloads.serving import client_wait
from gpuconsole.workloads.serving.client_wait import engine_ttft
from gpuconsole.workloads.serving.watching import ServerWatch
from tests.fakes.server_pages import SECONDS, VLLM_LABELS, Load, histogram, page
from tests.workloads.serving.test_watching import Channel, _quick, three_readings, watch  # noqa: F401

MODELS = {"data": [{"id": "m", "owned_by": "vllm"}]}
TTFT = "vllm:time_to_first_token_seconds"


class Engine:
    """A server with vLLM's page, whose engine counts `engine_s` to a first token, `before_s` after
    the request has come. `others`: what its histogram gains besides in the time of a request.
    `whole`: a proxy holds the answer back until its end. `answers`: the status of each endpoint,
    where that is not 200."""

    def __init__(
        self,
        before_s: float = 0.0,
        engine_s: float = 0.0,
        others: tuple[float, ...] = (),
        whole: bool = False,
        answers: dict[str, int] | None = None,
    ) -> None:
        self.before_s, self.engine_s, self.others, self.whole, self.answers = (
            before_s,
            engine_s,
            others,
            whole,
            answers or {},
        )
        self.counted: list[float] = []
        self.posted: list[dict[str, Any]] = []
        self.tells_model, self.tells_ttft = True, True

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            rows = [
                row
                for row in page("vllm", Load(running=0), 0).splitlines()
                if not row.startswith(TTFT)
            ]
            if not self.tells_model:
                rows = [row.replace(',model_name="m"', "") for row in rows]
            labels = VLLM_LABELS if self.tells_model else 'engine="0"'
            values = self.counted or [0.0]
            rows += (
                histogram(TTFT, values, len(self.counted), SECONDS, labels)
                if self.tells_ttft
                else []
            )
            return web.Response(text="\n".join(rows) + "\n")
        if request.path == "/v1/models" and self.tells_model:
            return web.json_response(MODELS)
        if request.method != "POST" or self.answers.get(request.path, 200) != 200:
            return web.Response(status=self.answers.get(request.path, 404))
        return await self._stream(request)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.posted.append(body | {"path": request.path})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await asyncio.sleep(self.before_s)
        begun = time.monotonic()
        await asyncio.sleep(self.engine_s)
        self.counted += [time.monotonic() - begun, *self.others]
        chunk = {"choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": None}]}
        lines = [f"data: {json.dumps(chunk)}\n\n".encode() for _ in range(body["max_tokens"])] + [
            b"data: [DONE]\n\n"
        ]
        for line in [b"".join(lines)] if self.whole else lines:
            await answer.write(line)
            await asyncio.sleep(0.003)
        return answer


async def probe(channel: Channel, watched: ServerWatch) -> None:
    await three_readings(channel, watched)
    await watched.serve(RunProbe(7, CLIENT_WAIT))
    await channel.until(lambda: bool(channel.of(ProbeDone)))
    count = len(channel.of(Steps))
    await channel.until(lambda: len(channel.of(Steps)) > count + 2)


def probed(engine: Engine, **options: str) -> tuple[ProbeDone, dict[str, float], Channel]:
    channel, _ = watch(engine.answer, probe, **options)
    (done,) = channel.of(ProbeDone)
    return done, {name: signal.value for name, signal in done.signals.items()}, channel


def test_the_time_before_the_engine_is_that_of_the_client_without_that_of_the_engine() -> None:
    engine = Engine(before_s=0.3, engine_s=0.1)
    done, values, channel = probed(engine)
    assert (done.request, done.error, len(engine.posted)) == (7, None, PROBE_REQUESTS)
    assert {(body["model"], body["max_tokens"], body["stream"]) for body in engine.posted} == {
        ("m", PROBE_TOKENS, True)
    }
    assert len({body["prompt"] for body in engine.posted}) == PROBE_REQUESTS, (
        "a prefix cache would answer at once"
    )
    assert values["probe.engine_ttft_lower_s"] == values["probe.engine_ttft_upper_s"] >= 0.1
    assert 0.29 < values["probe.before_engine_s"] == values["probe.before_engine_upper_s"]
    assert values["probe.before_engine_s"] + values["probe.engine_ttft_lower_s"] == pytest.approx(
        values["probe.client_ttft_s"], rel=0.2
    )
    assert values["probe.requests"] == PROBE_REQUESTS and 0 < values["probe.client_itl_s"] < 0.1
    assert " pass before the engine; then a token every " in probe_words(
        values
    ) and "no more than" not in probe_words(values)
    kinds = [step.kind for event in channel.of(Steps) for step in event.steps]
    assert PROBE in kinds and kinds[-1] != PROBE and kinds[0] != PROBE, (
        "the figures leave the time of the probe out"
    )


def test_a_client_that_waits_no_longer_than_the_engine_counts() -> None:
    _, values, _ = probed(Engine(engine_s=0.6))
    assert values["probe.before_engine_upper_s"] < 0.12 and ": no more than " in probe_words(values)


def test_beside_others_the_engine_is_known_to_the_buckets_of_all() -> None:
    _, values, _ = probed(Engine(before_s=0.5, engine_s=0.15, others=(0.06, 0.3)))
    assert values["probe.engine_ttft_lower_s"] <= 0.15 <= values["probe.engine_ttft_upper_s"] <= 0.5
    assert values["probe.before_engine_s"] < 0.5 < values["probe.before_engine_upper_s"]


def reading(*values: float) -> ServerState:
    buckets = [(bound, float(sum(value <= bound for value in values))) for bound in SECONDS]
    return ServerState(
        0.0,
        {},
        {"ttft_s_sum": sum(values), "ttft_s_count": float(len(values))},
        {"ttft_s": buckets},
    )


def test_the_bounds_of_the_engine_hold_for_each_of_those_that_came() -> None:
    before = reading(5.0)
    assert engine_ttft(before, reading(5.0)) is None
    assert engine_ttft(before, reading(5.0, 0.3)) == pytest.approx((0.3, 0.3))
    low, high = engine_ttft(before, reading(5.0, 0.3, 0.07)) or (1, 0)
    assert low <= 0.07 and 0.3 <= high <= 0.37, "at most the sum of all"
    assert engine_ttft(reading(5.0, 0.3), before) is None, "the server has restarted"


def test_answers_that_a_proxy_holds_back() -> None:
    _, values, _ = probed(Engine(engine_s=0.05, whole=True))
    assert values["probe.chunks"] <= 2 and probe_words(values).endswith(
        "and the answer comes in one piece"
    )


def test_a_server_with_chats_alone_is_asked_by_its_chats() -> None:
    engine = Engine(answers={"/v1/completions": 404})
    done, values, _ = probed(engine)
    assert (
        done.error is None
        and {body["path"] for body in engine.posted} == {"/v1/chat/completions"}
        and values["probe.requests"] == 5
    )


def test_the_model_that_the_user_names_is_the_one_that_is_asked() -> None:
    engine = Engine()
    engine.tells_model = False
    done, _, _ = probed(engine, model="mine")
    assert done.error is None and {body["model"] for body in engine.posted} == {"mine"}


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        (
            {"/v1/completions": 401},
            (
                "takes no request of ours (HTTP 401: Unauthorized): name the variable that holds"
                " it with --api-key-env"
            ),
        ),
        (
            {"/v1/completions": 404, "/v1/chat/completions": 404},
            (
                "has no /v1/completions and no /v1/chat/completions for a request of ours (HTTP"
                " 404: Not Found)"
            ),
        ),
        ({"/v1/completions": 500}, "a request of ours failed: HTTP 500: Internal Server Error"),
    ],
)
def test_a_server_that_refuses_costs_one_line(answers: dict[str, int], line: str) -> None:
    engine = Engine(answers=answers)
    done, values, _ = probed(engine)
    assert (done.error or "").endswith(line) and engine.posted == []
    assert values.get("probe.requests", 0) == (1 if 500 in answers.values() else 0)


def test_a_server_that_answers_slowly_ends_the_probe_at_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_wait, "PROBE_S", 0.5)
    done, values, _ = probed(Engine(before_s=20))
    assert done.error == "no answer to a request of ours within 0 s" and values == {
        "probe.requests": 1
    }


def test_a_server_without_a_name_of_its_model_is_not_asked() -> None:
    engine = Engine()
    engine.tells_model = False
    done, _, _ = probed(engine)
    assert (
        done.error == "the server does not tell the name of its model: --model NAME"
        and engine.posted == []
    )


def test_a_page_without_ttft_shows_what_the_client_waits_alone() -> None:
    engine = Engine(engine_s=0.1)
    engine.tells_ttft = False
    done, values, _ = probed(engine)
    assert done.error == "the metrics page has no TTFT of the requests of ours to compare with"
    assert values["probe.client_ttft_s"] >= 0.1 and "probe.before_engine_s" not in values
