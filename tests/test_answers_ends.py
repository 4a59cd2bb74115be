"""What is judged of an answer before it is parsed, and what it asks to wait."""

from __future__ import annotations

import aiohttp
import pytest
from answer_cases import APIS, answer_of, events_of
from fake_endpoint import FakeEndpoint
from fake_reply import Fault, Reply
from fake_wire import PINGS

from agentload._answers import ended_well, parse_answer, retry_after_s, shows_token
from agentload._http_client import Answer
from agentload._options import Api

LONG = Reply(text=" word" * 40)


@pytest.mark.parametrize("reply", [Reply(text=" a"), LONG])
@pytest.mark.parametrize("api", APIS)
def test_a_whole_stream_ended_well(api: Api, reply: Reply) -> None:
    events = events_of(api, reply)
    good = answer_of(events)
    assert ended_well(good, api)
    assert parse_answer(good, api).error is None
    body = b"".join(events)
    for answer in (
        good._replace(status=500),
        good._replace(error="cut", error_kind="cut_off"),
        good._replace(headers={"content-type": "application/json"}),
        good._replace(headers={**good.headers, "content-encoding": "gzip"}),
        answer_of([body[:-1]]),
        answer_of(events[:-1]),
        answer_of(events[:-2]),
        answer_of([*events, PINGS[api]]),
        answer_of([*events[:4], b"data: {oops\n\n", *events[4:]]),
        answer_of([*events[:4], b'event: error\ndata: {"message": "x"}\n\n', *events[4:]]),
        answer_of([*events[:4], b'data: {"error": {}}\n\n', *events[4:]]),
    ):
        assert not ended_well(answer, api)


@pytest.mark.parametrize("api", APIS)
def test_nulls_for_errors_are_none(api: Api) -> None:
    body = b"".join(events_of(api, LONG)).replace(b'{"', b'{"error": null, "')
    assert ended_well(answer_of([body]), api)
    assert parse_answer(answer_of([body]), api).error is None


@pytest.mark.parametrize("api", APIS)
def test_an_answer_without_tokens_did_not_end_well(api: Api) -> None:
    assert not ended_well(answer_of(events_of(api, Reply(text=""))), api)


@pytest.mark.parametrize("api", APIS)
def test_pings_and_roles_are_no_token(api: Api) -> None:
    events = events_of(api, Reply(text=" one"))
    first = next(number for number, sent in enumerate(events) if b" one" in sent)
    opening = b"".join([PINGS[api] * 3, *events[:first]])
    shows = shows_token(api)
    assert not shows(b"")
    assert not shows(opening + events[first][:-1])
    assert shows(opening + events[first])


@pytest.mark.parametrize(
    "fault", ["missing_finish", "no_terminal", "error_event", "invalid_json", "cut_in_event"]
)
@pytest.mark.parametrize("api", APIS)
async def test_faults_over_a_real_connection(api: Api, fault: Fault) -> None:
    """What a client reads of each fault that HTTP itself does not show."""
    kinds = {"missing_finish": "cut_off", "cut_in_event": "cut_off", "no_terminal": None}
    path = {"chat": "chat/completions"}.get(api, api)
    async with (
        FakeEndpoint(lambda number, body: Reply(fault=fault)) as endpoint,
        aiohttp.ClientSession() as client,
        client.post(f"{endpoint.url}/v1/{path}", json={"stream": True}) as response,
    ):
        headers = {name.lower(): value for name, value in response.headers.items()}
        answer = answer_of([await response.read()])._replace(headers=headers)
    parsed = parse_answer(answer, api)
    kind = kinds.get(fault, {"error_event": "error_event", "invalid_json": "bad_stream"}.get(fault))
    assert parsed.error_kind == kind
    # The responses API has no event of its own after the one with its finish reason.
    assert ended_well(answer, api) == (fault == "no_terminal" and api == "responses")


NOW = "Tue, 01 Dec 2026 10:00:00 GMT"
IN_10_S = "Tue, 01 Dec 2026 10:00:10 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "0.25"}, 0.25),
        ({"retry_after": IN_10_S}, 10.0),
        ({"retry_after": NOW.replace("10:00", "09:00")}, 0.0),
        ({"retry_after": "3", "retry_after_ms": "1500"}, 1.5),
        ({"retry_after": "-3"}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "1e999"}, None),
        ({"retry_after": ""}, None),
        ({"x_ratelimit_reset_requests": "20ms"}, 0.02),
        ({"x_ratelimit_reset_tokens": "6m0s"}, 360.0),
        ({"x_ratelimit_reset_tokens": "1.5"}, 1.5),
        ({"x_ratelimit_reset_tokens": "1796119205"}, 5.0),
        ({"x_ratelimit_reset_tokens": "1796119205000"}, 5.0),
        ({"x_ratelimit_reset_tokens": "6m0s", "x_ratelimit_remaining_tokens": "5000"}, None),
        ({"x_ratelimit_reset_tokens": "2s", "x_ratelimit_reset_requests": "3s"}, 3.0),
        ({"anthropic_ratelimit_tokens_reset": "2026-12-01T10:00:30Z"}, 30.0),
        ({"x_ratelimit_reset_tokens": "junk"}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], wait_s: float | None) -> None:
    asked = retry_after_s(answer_of([b""], status=429, date=NOW, **headers))
    assert asked == (None if wait_s is None else pytest.approx(wait_s))


def test_limits_are_no_wait_while_the_endpoint_does_not_refuse() -> None:
    answer: Answer = answer_of([b""], status=503, x_ratelimit_reset_tokens="3s")
    assert retry_after_s(answer) is None
    assert retry_after_s(answer_of([b""], status=503, retry_after="3")) == 3
