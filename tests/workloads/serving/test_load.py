"""The load generator's parts: how tokens are counted, when requests are sent, and what comes of a
server's faults."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from gpuconsole.agent.clock import now
from gpuconsole.model.knobs.catalogue import CATALOGUE, Knobs
from gpuconsole.model.serving import Request, shared_ratio
from gpuconsole.workloads.serving.http import connect
from gpuconsole.workloads.serving.load.answer import Arrivals, gaps_between, read_chunk
from gpuconsole.workloads.serving.load.client import EFFECTS, Client, refused_fields
from gpuconsole.workloads.serving.load.traffic import Prompts, Traffic
from tests.fakes.model_server import ITL_S, KEY, TTFT_S, FakeServer

LOAD: Knobs = {
    name: knob.default
    for name, knob in CATALOGUE.items()
    if knob.serving and knob.apply == "hot" and knob.default is not None
}


def arrivals(*chunks: dict[str, Any], every_s: float = 0.1) -> Arrivals:
    found = Arrivals()
    for n, chunk in enumerate(chunks):
        found.add(read_chunk(chunk), n * every_s)
    return found


def settled(found: Arrivals, asked: int = 100) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Output tokens, the gaps between chunks, and the tokens of each chunk after the first."""
    answer = found.settled(asked, characters_per_token=2.0)
    return answer.tokens, gaps_between(answer.times), tuple(answer.counts[1:])


def text(words: str, usage: int | None = None, reason: str | None = None) -> dict[str, Any]:
    told = {"usage": {"completion_tokens": usage, "prompt_tokens": 3}} if usage is not None else {}
    return {"choices": [{"text": words, "finish_reason": reason}], **told}


def test_tokens_are_counted_from_usage_in_every_chunk() -> None:
    found = arrivals(
        text("a", 1),
        text("bcd", 4),
        text("", 5),
        text("e", 6, "length"),
        {"choices": [], "usage": {"completion_tokens": 6}},
    )
    assert (found.told, found.prompt_tokens, found.finished) == (6, 3, "length")
    total, gaps, counts = settled(found)
    assert (total, counts) == (6, (3, 1, 1)) and gaps == pytest.approx((0.1, 0.1, 0.1))


def test_usage_at_the_end_is_spread_over_the_chunks() -> None:
    total, gaps, counts = settled(
        arrivals(
            text("a"),
            text("bc"),
            text("de", reason="stop"),
            {"choices": [], "usage": {"completion_tokens": 9}},
        )
    )
    assert (total, counts, len(gaps)) == (9, (4.0, 4.0), 2)


def test_usage_beside_the_last_choice_does_not_count_as_that_chunks_tokens() -> None:
    total, _, counts = settled(arrivals(text("a"), text("b"), text("c", 3, "stop")))
    assert (total, counts) == (3, (1, 1))


COUNTS: list[tuple[str, list[dict[str, Any]], int, list[float]]] = [
    ("ended by its length", [text("ab"), text("cd"), text("", reason="length")], 100, [99]),
    ("by its text", [text("abc"), text("defgh"), text("", reason="stop")], 4, [3]),
    ("a chunk has a token", [text("a"), text("b"), text("c", reason="stop")], 3, [1, 1]),
    ("holes are tokens", [text("a"), text(""), text("b"), text("", 4, "length")], 4, [1, 1, 1]),
    ("holes are none", [text("a"), text(""), text("b"), text("", 2, "length")], 2, [1]),
    ("of each chunk alone", [text("abcd", 4), text("efgh", 4), text("ijkl", 4)], 12, [4, 4]),
    ("begins again", [text("a", 1), text("b", 2), text("c", 1), text("d", 2)], 4, [1, 1, 1]),
    ("zeros before the end", [text("a", 0), text("b", 0), text("", 4, "length")], 4, [3]),
    ("at the beginning alone", [text("a", 1), text("b"), text("c", reason="stop")], 3, [1, 1]),
    ("the total in each chunk", [text("abcd", 60), text("efgh", 60)], 60, []),
    (
        "null, then at the end",
        [text("a") | {"usage": None}, text("b"), {"usage": {"completion_tokens": 5.0}}],
        5,
        [4],
    ),
    (
        "llama.cpp",
        [text("a"), text("b"), text("", reason="stop") | {"timings": {"predicted_n": 3}}],
        3,
        [1, 1],
    ),
]


@pytest.mark.parametrize(("name", "chunks", "tokens", "counts"), COUNTS)
def test_tokens_are_those_of_the_server_or_follow_from_the_end_or_the_text(
    name: str, chunks: list[dict[str, Any]], tokens: int, counts: list[float]
) -> None:
    assert (settled(arrivals(*chunks))[0], list(settled(arrivals(*chunks))[2])) == (tokens, counts)


def test_a_chunk_that_only_names_the_role_is_not_a_first_token() -> None:
    role = {
        "choices": [{"delta": {"role": "assistant", "content": ""}}],
        "usage": {"completion_tokens": 0},
    }
    found = arrivals(
        role, {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 1}}
    )
    assert found.settled(1, 4.0).times == [0.1] and found.told == 1


def merged(usage: bool) -> Arrivals:
    """Seven tokens in four reads: the first, three, two, one."""
    found = Arrivals()
    for n, t in enumerate((0.0, 0.3, 0.3, 0.3, 0.5, 0.5, 0.6), start=1):
        found.add(read_chunk(text("a", n if usage else None)), t)
    return found


def test_events_of_one_read_are_one_chunk() -> None:
    total, gaps, counts = settled(merged(usage=True))
    assert total == 7 and gaps == pytest.approx((0.3, 0.2, 0.1)) and counts == (3, 2, 1)


def test_usage_at_the_end_is_spread_over_the_events_of_each_read() -> None:
    found = merged(usage=False)
    found.add(read_chunk({"choices": [], "usage": {"completion_tokens": 13}}), 0.6)
    total, gaps, counts = settled(found)
    assert (
        total == 13
        and gaps == pytest.approx((0.3, 0.2, 0.1))
        and counts == pytest.approx((6, 4, 2))
    )


async def break_off_silent(client: Client) -> None:
    """As the load generator does it at every tick."""
    while True:
        await asyncio.sleep(0.02)
        client.cancel_silent()


@contextlib.asynccontextmanager
async def client_of(
    behaviour: str, timeout_s: float = 5.0
) -> AsyncIterator[tuple[Client, FakeServer, list[str]]]:
    """A client of the fake server, the server, and the notes of the client."""
    fake, notes = FakeServer(), list[str]()
    server = TestServer(fake.application())
    await server.start_server()
    try:
        async with await connect("") as session:
            yield (
                Client(
                    session,
                    str(server.make_url(f"/{behaviour}")),
                    "m",
                    chat=False,
                    timeout_s=timeout_s,
                    note=notes.append,
                ),
                fake,
                notes,
            )
    finally:
        await server.close()


async def asked(
    behaviour: str, *, tokens: int = 6, chat: bool = False, key: str = "", timeout_s: float = 5.0
) -> list[Request]:
    """Two requests in a row to the fake server."""
    server = TestServer(FakeServer().application())
    await server.start_server()
    try:
        async with await connect(key) as session:
            one = Client(
                session,
                str(server.make_url(f"/{behaviour}")),
                "m",
                chat=chat,
                timeout_s=timeout_s,
                note=print,
            )
            watching = asyncio.create_task(break_off_silent(one))
            try:
                return [await one.ask("prompt", tokens, now(), lambda new: None) for _ in range(2)]
            finally:
                watching.cancel()
    finally:
        await server.close()


def ask(behaviour: str, **options: Any) -> list[Request]:
    return asyncio.run(asked(behaviour, **options))


@pytest.mark.parametrize("behaviour", ["steady", "chatty", "strict", "four", "no-usage"])
@pytest.mark.parametrize("chat", [False, True])
def test_a_request_has_its_tokens_and_times(behaviour: str, chat: bool) -> None:
    for request in ask(behaviour, chat=chat):
        assert (request.error, request.output_tokens if behaviour != "no-usage" else 6) == ("", 6)
        assert (
            request.ttft_s is not None and request.e2e_s is not None and request.tpot_s is not None
        )
        assert request.ttft_s >= TTFT_S * 0.99
        assert request.e2e_s >= (TTFT_S + 5 * ITL_S) * 0.99
        assert sum(request.gaps) == pytest.approx(request.e2e_s - request.ttft_s)
        # fewer where a client that reads late gets the second token with the first
        assert sum(request.counts) <= 5 + 1e-9
        if behaviour == "four":
            assert request.counts in ((4, 1), (5,)), (
                "a client that reads late gets both chunks in one read"
            )
            assert len(request.gaps) == len(request.counts)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("busy", "HTTP 429: too many requests"),
        ("error", r"HTTP 500: Internal\x1b[31m Server Error"),
        ("broken", "not JSON of the OpenAI API"),
        ("reports-an-error", "the server reports an error: out of memory"),
        ("endless", "tokens and no end, asked for 6"),
        ("ends-early", "the answer broke off before its end"),
        ("breaks-off", "the connection broke off"),
        ("hang", "no answer for 0.3 s"),
        ("stalls", "no answer for 0.3 s"),
        ("key", "HTTP 401: wrong key"),
    ],
)
def test_a_fault_is_a_failed_request_with_its_cause(behaviour: str, error: str) -> None:
    for request in ask(behaviour, timeout_s=0.3 if behaviour in ("hang", "stalls") else 5.0):
        assert error in request.error and "\n" not in request.error and len(request.error) < 200


@pytest.mark.parametrize(
    ("field", "lost"),
    [
        ("ignore_eos", "ignore_eos: answers may end before the requested number of tokens"),
        ("stream_options", "stream_options: without usage"),
        ("continuous_usage_stats", "continuous_usage_stats: the tokens of each chunk"),
        ("some", "ignore_eos, stream_options"),
    ],
)
def test_a_refused_field_is_left_out_and_named_once_by_concurrent_requests(
    field: str, lost: str
) -> None:
    async def main() -> None:
        async with client_of(f"refuses-{field}") as (one, fake, notes):
            ended = await asyncio.gather(
                *(one.ask("prompt", 3, now(), lambda new: None) for _ in range(8))
            )
            assert [request.error for request in ended] == [""] * 8
            assert [request.output_tokens for request in ended] == [3] * 8
            assert len(notes) == 1 and lost in notes[0]
            fake.bodies.clear()
            await one.ask("prompt", 3, now(), lambda new: None)
            kept = {"ignore_eos", "stream_options"} - (
                {field} if field != "some" else {"ignore_eos", "stream_options"}
            )
            assert (
                len(fake.bodies) == 1
                and fake.bodies[0].keys() & {"ignore_eos", "stream_options"} == kept
            )

    asyncio.run(main())


def test_a_prompt_that_is_too_long_fails_alone_and_takes_no_field_from_the_others() -> None:
    async def main() -> None:
        async with client_of("context") as (one, fake, notes):
            prompts = ["x" * 200, "x" * 600, "x" * 300]
            ended = await asyncio.gather(
                *(one.ask(prompt, 3, now(), lambda new: None) for prompt in prompts)
            )
            assert [bool(request.error) for request in ended] == [False, True, False]
            assert "HTTP 400: This model's maximum context length is 512 tokens" in ended[1].error
            assert not notes
            fake.bodies.clear()
            await one.ask("prompt", 3, now(), lambda new: None)
            assert fake.bodies[0]["ignore_eos"] and fake.bodies[0]["stream_options"]

    asyncio.run(main())


LENGTHS = [
    (
        "This model's maximum context length is 512 tokens. However, you requested 600 tokens,"
        " ignore_eos is set"
    ),
    "max_tokens=600 cannot be greater than max_model_len=512, unexpected value",
    "The input (600 tokens) is longer than the model's context length (512 tokens). extra",
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 512. Given: 600"
        " `inputs` tokens"
    ),
    "request (600 tokens) exceeds the available context size (512 tokens), try increasing it",
    "prompt is too long: 600 > 512; unexpected",
]


@pytest.mark.parametrize("text", LENGTHS)
def test_a_refused_length_refuses_no_field(text: str) -> None:
    assert not refused_fields(frozenset(EFFECTS), text)


def test_a_refusal_for_another_reason_refuses_no_field() -> None:
    assert not refused_fields(frozenset(EFFECTS), "The model `m` does not exist")
    assert not refused_fields(frozenset(), "Unexpected fields: best_of")


def test_the_key_opens() -> None:
    assert [request.error for request in ask("key", key=KEY)] == ["", ""]


@pytest.mark.parametrize("closes_after", [1, 0])
def test_a_kept_connection_that_the_server_closes_costs_no_request(closes_after: int) -> None:
    """The server closes each connection when a request after the first comes, or each connection at
    once: then the request fails after two tries."""
    connections: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while connections:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(re.search((rb"(?i)content-length: (\d+)"), head)[1]))  # type: ignore[index]
                if connections[-1] == closes_after:
                    break
                connections[-1] += 1
                said = (
                    b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'
                    b"data: [DONE]\n\n"
                )
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
        writer.close()

    async def main() -> list[str]:
        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with listening, await connect("") as session:
            url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            asking = Client(session, url, "m", chat=False, timeout_s=5.0, note=print)
            return [(await asking.ask("x", 1, now(), lambda tokens: None)).error for _ in range(3)]

    errors = asyncio.run(main())
    if closes_after:
        assert errors == [""] * 3 and len(connections) == 3
    else:
        assert (
            all(error.startswith("the connection broke off") for error in errors)
            and len(connections) == 6
        )


def test_a_server_that_is_not_there() -> None:
    async def nobody() -> Request:
        async with aiohttp.ClientSession() as session:
            return await Client(
                session, "http://127.0.0.1:9", "m", chat=False, timeout_s=2, note=print
            ).ask("p", 1, now(), lambda new: None)

    assert "cannot connect" in asyncio.run(nobody()).error


def run_traffic(
    knobs: Knobs,
    answer: Callable[[], Awaitable[bool]],
    then: Callable[[Traffic, list[float]], Awaitable[None]],
) -> list[float]:
    """Traffic with `knobs` while `then` looks on; when each request was due."""
    due: list[float] = []

    async def main() -> None:
        async def one(at: float) -> bool:
            due.append(at)
            return await answer()

        traffic = Traffic({**LOAD, **knobs}, one, seed=1)
        running = asyncio.create_task(traffic.run())
        try:
            await asyncio.wait_for(then(traffic, due), 20)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())
    return due


def intervals(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def test_a_closed_loop_keeps_so_many_on_their_way_and_follows_a_change() -> None:
    gate: list[asyncio.Event] = []

    async def answer() -> bool:
        gate.append(asyncio.Event())
        await gate[-1].wait()
        return True

    async def then(traffic: Traffic, due: list[float]) -> None:
        async def reach(active: int) -> None:
            while len(traffic.under_way) != active:
                await asyncio.sleep(0.005)

        await reach(3)
        traffic.change({**traffic.knobs, "concurrency": 5})
        await reach(5)
        traffic.change({**traffic.knobs, "concurrency": 2})
        for one in list(gate):
            one.set()
        await reach(2)
        traffic.pause()
        await reach(0)
        traffic.resume()
        await reach(2)

    run_traffic({"concurrency": 3}, answer, then)


def test_a_user_whose_requests_fail_does_not_spin() -> None:
    async def answer() -> bool:
        return False

    async def then(traffic: Traffic, due: list[float]) -> None:
        await asyncio.sleep(0.6)

    assert 2 <= len(run_traffic({"concurrency": 1}, answer, then)) <= 10


def test_an_open_loop_sends_at_its_rate_whatever_becomes_of_the_answers() -> None:
    async def answer() -> bool:
        await asyncio.sleep(3600)
        return True

    async def then(traffic: Traffic, due: list[float]) -> None:
        while len(due) < 400:
            await asyncio.sleep(0.01)

    gaps = intervals(run_traffic({"request_rate": 400.0}, answer, then))
    assert statistics.fmean(gaps) == pytest.approx(1 / 400, rel=0.2)
    assert statistics.stdev(gaps) == pytest.approx(1 / 400, rel=0.35), (
        "intervals of a Poisson process spread as much as their mean"
    )


def test_burstiness_is_the_spread_of_the_intervals() -> None:
    async def answer() -> bool:
        return True

    async def then(traffic: Traffic, due: list[float]) -> None:
        while len(due) < 400:
            await asyncio.sleep(0.01)

    def spread(burstiness: float) -> float:
        gaps = intervals(
            run_traffic({"request_rate": 500.0, "burstiness": burstiness}, answer, then)
        )
        return statistics.stdev(gaps) / statistics.fmean(gaps)

    assert spread(100.0) < 0.2 < 1.5 < spread(0.2)


def test_what_is_due_waits_in_the_client_where_there_is_no_place() -> None:
    async def answer() -> bool:
        await asyncio.sleep(3600)
        return True

    async def then(traffic: Traffic, due: list[float]) -> None:
        while len(traffic.under_way) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # in which some twenty more fall due
        assert len(traffic.under_way) == len(due) == 2
        for one in list(traffic.under_way):
            one.cancel()
        while len(due) < 3:
            await asyncio.sleep(0.01)
        assert now() - due[2] > 0.05, (
            "due when it should have been sent, not when there was a place"
        )

    run_traffic({"request_rate": 200.0, "max_concurrency": 2}, answer, then)


def test_prompts_have_the_length_that_the_server_counts_and_share_a_beginning() -> None:
    knobs = {**LOAD, "prompt_tokens": 100, "shared_prefix_ratio": 0.5}
    prompts = Prompts(seed=3)
    for _ in range(60):
        one, _ = prompts.next(knobs)
        prompts.learn(one, len(one) // 2)  # two characters a token
    assert prompts.characters_per_token == pytest.approx(2.0, rel=0.05)
    first, second = prompts.next(knobs)[0], prompts.next(knobs)[0]
    assert first[:90] == second[:90] and first != second


@pytest.mark.parametrize("made", [0.0, 0.5, 0.8])
def test_what_prompts_share_is_read_off_their_text(made: float) -> None:
    prompts = Prompts(seed=3)
    sent = [
        prompts.next({**LOAD, "prompt_tokens": 100, "shared_prefix_ratio": made})[0]
        for _ in range(32)
    ]
    assert shared_ratio(sent) == pytest.approx(made, abs=0.05)


def test_probe_variants_leave_out_what_is_shared_or_hide_it_from_caches() -> None:
    knobs = {**LOAD, "prompt_tokens": 100, "shared_prefix_ratio": 0.8}
    prompts = Prompts(seed=3, characters_per_token=1)
    found = {}
    for variant in ("plain", "salted", "cut"):
        prompts.variant = variant  # type: ignore[assignment]
        found[variant] = [prompts.next(knobs)[0] for _ in range(2)]
    shared = found["plain"][0][:80]
    assert found["plain"][1].startswith(shared)
    assert [len(one) for one in found["salted"]] == [100, 100] and found["salted"][0][:16] != found[
        "salted"
    ][1][:16]
    assert found["salted"][0][17:80] == shared[:63]
    assert [len(one) for one in found["cut"]] == [20, 20]


def test_lengths_spread_around_the_knobs() -> None:
    prompts = Prompts(seed=3, characters_per_token=1)
    pairs = [
        prompts.next({**LOAD, "prompt_tokens": 100, "output_tokens": 40, "length_spread": 0.5})
        for _ in range(300)
    ]
    lengths, outputs = [len(one) for one, _ in pairs], [tokens for _, tokens in pairs]
    assert 50 <= min(lengths) < 60 and 140 < max(lengths) <= 150
    assert min(outputs) >= 20 and max(outputs) <= 60


def test_a_server_that_counts_nonsense_does_not_make_prompts_grow_for_ever() -> None:
    prompts = Prompts(seed=3)
    for _ in range(200):
        prompts.learn(prompts.next({**LOAD, "prompt_tokens": 100})[0], 1)
    assert len(prompts.next({**LOAD, "prompt_tokens": 100})[0]) <= 1600


# --- answers in odd forms, over a socket ----------------------------------------------------------

DONE = b"data: [DONE]\n\n"
PAUSE_S = 0.02


def event(said: Any, *, usage: Any = None, reason: Any = None) -> bytes:
    """A chunk of a chat. `said`: a text, or a whole delta."""
    delta = said if isinstance(said, dict) else {"content": said}
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def told(tokens: Any) -> bytes:
    return b'data: {"choices": [], "usage": {"completion_tokens": %s}}\n\n' % str(tokens).encode()


END = event("", reason="length") + told(6) + DONE


async def write_answer(
    writes: Sequence[bytes],
    *,
    refused: tuple[str, ...] = (),
    status: str = "400 Bad Request",
    chat: bool | None = True,
    requests: int = 1,
    keep_open: bool = False,
) -> tuple[list[Request], list[str], float]:
    """Ask a server that makes these `writes`, PAUSE_S apart, for six tokens; the requests, the
    notes, and the tokens that were counted. The paths in `refused` are answered with `status`."""
    notes: list[str] = []
    counted: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search((rb"(?i)content-length: (\d+)"), head)[1]))  # type: ignore[index]
        if head.split()[1].decode() in refused:
            words = b"this model is not supported here"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: 32\r\n\r\n" % status.encode() + words)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            for part in writes:
                await asyncio.sleep(PAUSE_S)
                writer.write(part)
            if keep_open:
                await reader.read()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening, await connect("") as session:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        one = Client(session, url, "m", chat=chat, timeout_s=5.0, note=notes.append)
        watching = asyncio.create_task(break_off_silent(one))
        found = [await one.ask("x", 6, now(), counted.append) for _ in range(requests)]
        watching.cancel()
    return found, notes, sum(counted)


def each(*said: Any) -> list[bytes]:
    return [*(event(one) for one in said), END]


LETTERS = "abcdef"
CALL = [{"index": 0, "function": {"arguments": "x"}}]
SPLIT = b'data: {"choices": [{"index": 0,\ndata:  "delta": {"content": "a"}}]}\n\n'
READ: dict[str, list[bytes]] = {
    "four tokens a chunk": [event("ab"), event("cd"), END],
    "holes": each("a", "", "b", "", "c", ""),
    "reasoning": each(*({"reasoning": one} for one in LETTERS)),
    "reasoning under two names": each(
        *({"reasoning": one, "reasoning_content": one, "content": None} for one in LETTERS)
    ),
    "a field of later servers": each(*({"thoughts": one} for one in LETTERS)),
    "tools": each(*({"tool_calls": CALL} for _ in LETTERS)),
    "an old function": each(*({"function_call": {"arguments": one}} for one in LETTERS)),
    "parts": each(*({"content": [{"type": "text", "text": one}]} for one in LETTERS)),
    "a refusal": each(*({"refusal": one} for one in LETTERS)),
    "usage in each chunk": [
        *(event("a", usage={"completion_tokens": n + 1}) for n in range(6)), END
    ],
    "usage of each chunk": [*(event("a", usage={"completion_tokens": 1}) for _ in LETTERS), END],
    "float usage": [*(event(one) for one in LETTERS), told("6.0"), DONE],
    "usage as text": [*(event(one) for one in LETTERS), told('"6"'), DONE],
    "no choices, no usage": [
        *(event(one) + b'data: {"choices": null}\n\n' for one in LETTERS),
        event("", reason="length"),
    ],
    "NaN": [
        *(event(one).replace(b'"index": 0', b'"index": 0, "logprobs": [NaN]') for one in LETTERS),
        END,
    ],
    "an end as an object": [
        *(event(one) for one in LETTERS), event("", reason={"type": "length", "length": 6}), DONE
    ],
    "events without empty lines": [
        *(event(one).replace(b"\n\n", b"\n") for one in LETTERS), END
    ],
    "an event of two lines": [*[SPLIT] * 6, END],
    "a byte order mark, CR": [
        b"\xef\xbb\xbf", *(event(one).replace(b"\n", b"\r") for one in LETTERS), END
    ],
    "no empty line at the end": [*(event(one) for one in LETTERS), event("", reason="length")[:-2]],
    "tokens after the reason": [
        event("a", reason="length"), *(event(one) for one in "bcdef"), DONE
    ],
    "llama.cpp": [
        *(event(one) for one in LETTERS),
        b'data: {"choices": [{"delta": {}, "finish_reason": "length"}],'
        b' "timings": {"prompt_n": 2, "predicted_n": 6}}\n\n', DONE
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", READ)
def test_an_answer_is_read_in_every_form(form: str) -> None:
    """Six tokens, in chunks PAUSE_S apart."""
    (request,), _, counted = asyncio.run(write_answer(READ[form]))
    assert (request.error, request.output_tokens) == ("", 6) and counted == pytest.approx(6)
    assert request.ttft_s is not None and request.ttft_s >= PAUSE_S * 0.9
    assert request.e2e_s is not None and request.tpot_s is not None
    assert sum(request.gaps) == pytest.approx(request.e2e_s - request.ttft_s)
    # less where a client that reads late gets two chunks in one read
    assert sum(request.counts) <= 5 + 1e-9 and len(request.gaps) == len(request.counts)


A_FEW = [event("a"), event("b")]
FAILED: dict[str, tuple[list[bytes], str]] = {
    "error": ([*A_FEW, b'data: {"error": {"message": "no room"}}\n\n', DONE], "no room"),
    "object error": ([*A_FEW, b'data: {"object": "error", "message": "no room"}\n\n'], "no room"),
    "first": ([b'data: {"error": "no room"}\n\n'], "no room"),
    "event": ([*A_FEW, b'event: error\ndata: {"message": "no room"}\n\n', DONE], "no room"),
    "event, later": ([*A_FEW, b'data: {"message": "no room"}\nevent: error\n\n'], "no room"),
    "event, two lines": ([b'event: error\ndata: {"message":\ndata: "no room"}\n\n'], "no room"),
    "choice": (
        [b'data: {"choices": [{"error": {"message": "no room"}, "finish_reason": "error"}]}\n\n'],
        "no room",
    ),
    "abort": ([*A_FEW, event("", reason="abort"), DONE], "finish_reason abort"),
    "filter": ([*A_FEW, event("", reason="content_filter"), DONE], "content_filter"),
    "object": ([event("", reason={"type": "abort", "message": "no room"}), DONE], "no room"),
    "unknown": ([*A_FEW, event("", reason="evicted"), told(2), DONE], "evicted"),
    "JSON": ([b'{\n "error": {\n  "message": "no room"}}'], "no room"),
    "detail": ([b'{"detail": "no room"}\n'], "no room"),
    "page": ([b"<html><body><h1>no</h1> room</body></html>"], "no room"),
    "text": ([b"no room"], "no room"),
    "comments": ([b": ping\n\n", b": ping\n\n", DONE], "without a token"),
    "half an event": ([*A_FEW, b'data: {"choices": [{"del'], "broke off"),
}  # fmt: skip


@pytest.mark.parametrize("form", FAILED)
def test_a_failure_in_an_answer_is_a_failed_request_with_the_words_of_the_server(form: str) -> None:
    writes, words = FAILED[form]
    (request,), _, _ = asyncio.run(write_answer(writes))
    assert words in request.error and "\n" not in request.error and len(request.error) < 200


def whole_answer(message: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "choices": [{"message": message, "finish_reason": "length"}],
            "usage": {"completion_tokens": 6},
        },
        indent=1,
    ).encode()


@pytest.mark.parametrize(
    "writes",
    [[b"", b"".join(each(*LETTERS))], [b"", whole_answer({"content": LETTERS})]],
    ids=["held back", "not streamed"],
)
def test_an_answer_in_one_piece_has_no_ttft_and_no_gaps(writes: list[bytes]) -> None:
    (request,), _, _ = asyncio.run(write_answer(writes))
    assert (request.error, request.output_tokens, request.ttft_s) == ("", 6, None)
    assert (request.gaps, request.counts, request.tpot_s) == ((), (), None)
    assert request.e2e_s is not None and request.e2e_s >= PAUSE_S


def test_an_answer_that_is_complete_does_not_wait_for_the_end_of_its_connection() -> None:
    (request,), _, _ = asyncio.run(write_answer(each(*LETTERS), keep_open=True))
    assert (request.error, request.output_tokens) == ("", 6)


def test_answers_that_end_early_and_without_counts_are_said_once() -> None:
    short = [event("aa"), event("bb"), event("", reason="stop"), DONE]
    requests, notes, counted = asyncio.run(write_answer(short, requests=12))
    assert [request.output_tokens for request in requests] == [2] * 12 and counted == 24
    assert len(notes) == 2
    assert "no usage" in notes[0] and "2 of 6 tokens" in notes[1]


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed", "400 Bad Request"])
def test_a_server_that_only_chats_is_found_unless_completions_are_asked_for(status: str) -> None:
    refused = ("/v1/completions",)
    for chat in (None, False):
        requests, notes, _ = asyncio.run(
            write_answer(each(*LETTERS), refused=refused, status=status, chat=chat, requests=2)
        )
        assert [not request.error for request in requests] == [chat is None] * 2
        assert len(notes) == (chat is None) and all("chat/completions" in note for note in notes)


def test_a_server_with_neither_api_names_its_refusal() -> None:
    both = ("/v1/completions", "/v1/chat/completions")
    (request,), notes, _ = asyncio.run(write_answer([], refused=both, chat=None))
    assert request.error == "HTTP 400: this model is not supported here" and not notes
