"""Laws of reading answers: cuts change nothing, nothing raises, and what ended well is well."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from answer_cases import APIS, answer_of, cuts, events_of, split_at, texts
from fake_reply import Reply, ToolUse
from fake_wire import error_event
from hypothesis import given
from hypothesis import strategies as st

from agentload._answers import ended_well, parse_answer, shows_token
from agentload._answers_sse import events as events_in
from agentload._options import Api
from agentload_traces import count_tokens

apis = st.sampled_from(APIS)
pieces = st.lists(texts, min_size=1, max_size=30).filter(lambda some: any(some))
arguments = st.dictionaries(texts, texts | st.integers(0, 9) | st.lists(st.booleans()), max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    calls = draw(st.lists(arguments, max_size=3))
    return Reply(
        pieces=draw(pieces),
        reasoning=draw(texts),
        tool_calls=[ToolUse(f"f{n}", json.dumps(given), f"c{n}") for n, given in enumerate(calls)],
    )


@given(api=apis, reply=replies(), cut=cuts)
def test_how_a_stream_is_cut_into_reads_changes_only_the_times(
    api: Api, reply: Reply, cut: list[int]
) -> None:
    body = b"".join(events_of(api, reply))
    whole = parse_answer(answer_of([body]), api, keep_message=True)
    answer = answer_of(split_at(body, cut))
    parsed = parse_answer(answer, api, keep_message=True)
    assert parsed[1:] == whole[1:]
    assert parsed.error is None
    assert parsed.message is not None
    assert parsed.message.text == "".join(reply.pieces or ())
    times = [arrival.at_ns for arrival in parsed.arrivals]
    assert all(a < b for a, b in pairwise(times))
    assert set(times) <= set(answer.marks.at_ns)
    assert all(arrival.tokens > 0 for arrival in parsed.arrivals)
    assert sum(arrival.tokens for arrival in parsed.arrivals) == parsed.output_tokens
    assert ended_well(answer, api)


@given(api=apis, some=pieces)
def test_tokens_are_those_of_the_whole_text(api: Api, some: list[str]) -> None:
    parsed = parse_answer(answer_of(events_of(api, Reply(pieces=some))), api)
    assert parsed.output_tokens == count_tokens("".join(some))


@given(api=apis, some=pieces)
def test_the_message_does_not_depend_on_what_is_known_of_earlier_answers(api: Api, some: list[str]) -> None:
    """A stream of three times the same pieces is read by the frame that its first ones taught."""
    parsed = parse_answer(answer_of(events_of(api, Reply(pieces=["a", *some * 3]))), api, keep_message=True)
    assert parsed.message is not None
    assert parsed.message.text == "a" + "".join(some * 3)


@given(api=apis, reply=replies(), place=st.integers(0, 1000), text=texts)
def test_a_token_shows_from_the_event_that_holds_it(api: Api, reply: Reply, place: int, text: str) -> None:
    body = b"".join(events_of(api, reply))
    body = body[: len(body) * place // 1000]
    assert shows_token(api)(body) == (parse_answer(answer_of([body]), api).output_tokens > 0)


def _check(body: bytes, api: Api) -> None:
    answer = answer_of([body])
    parsed = parse_answer(answer, api, keep_message=True)
    if not ended_well(answer, api) or parsed.error is None:
        return
    # The one gap: an event amid a long stream that looks well, and is not what it should be.
    number = int(parsed.error.split()[1])
    assert parsed.error_kind == "bad_stream"
    assert parsed.error.startswith(f"event {number} of the stream is not a")
    whole = [event for event, _ in events_in(body)]
    assert 1 < number <= len(whole) - 4
    assert len(whole) > 12
    data = whole[number - 1].splitlines()[-1]
    assert data.endswith(b"}")


flips = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=3)


@given(api=apis, reply=replies(), flip=flips)
def test_what_ended_well_is_well_with_flipped_bytes(
    api: Api, reply: Reply, flip: list[tuple[int, int]]
) -> None:
    body = bytearray(b"".join(events_of(api, reply)))
    for place, mask in flip:
        body[len(body) * place // 10_001] ^= mask
    _check(bytes(body), api)


@given(api=apis, reply=replies(), at=st.integers(0, 1000), to=st.integers(0, 1000))
def test_what_ended_well_is_well_with_a_part_missing_or_repeated(
    api: Api, reply: Reply, at: int, to: int
) -> None:
    body = b"".join(events_of(api, reply))
    _check(body[: len(body) * at // 1000] + body[len(body) * to // 1000 :], api)


@given(api=apis, reply=replies(), data=st.data())
def test_what_ended_well_is_well_with_events_left_out_or_moved(
    api: Api, reply: Reply, data: st.DataObject
) -> None:
    events = events_of(api, reply)
    order = data.draw(st.lists(st.integers(0, len(events) - 1), max_size=len(events) + 2))
    _check(b"".join(events[number] for number in order), api)


@given(api=apis, reply=replies(), place=st.integers(0, 1000), words=st.integers(0, 30))
def test_an_error_event_anywhere_is_seen(api: Api, reply: Reply, place: int, words: int) -> None:
    events = events_of(api, replace(reply, pieces=[*(reply.pieces or ()), *[" word"] * words]))
    place = (len(events) - 1) * place // 1000
    answer = answer_of([*events[:place], error_event(api, "died"), *events[place:]])
    assert not ended_well(answer, api)
    assert parse_answer(answer, api).error_kind == "error_event"


@given(api=apis, body=st.binary(max_size=200), streamed=st.booleans(), status=st.sampled_from([200, 500]))
def test_no_bytes_raise(api: Api, body: bytes, streamed: bool, status: int) -> None:
    kind = "text/event-stream" if streamed else "application/json"
    answer = answer_of([body], content_type=kind, status=status)
    assert parse_answer(answer, api, keep_message=True).error is not None
    assert not ended_well(answer, api)
    assert not shows_token(api)(body)


FIELDS = """type delta index output_index content content_block text item response error usage choices message
tool_calls function arguments name id finish_reason stop_reason output status"""
TYPES = """message_start content_block_start content_block_delta message_delta error
response.output_text.delta response.output_item.added response.output_item.done response.completed
response.failed"""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS.split()), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(
    api=apis, kind=st.sampled_from(TYPES.split()), value=json_values, streamed=st.booleans(), reply=replies()
)
def test_no_json_raises(api: Api, kind: str, value: object, streamed: bool, reply: Reply) -> None:
    if isinstance(value, dict):
        value.setdefault("type", kind)
    data = json.dumps(value).encode()
    if not streamed:
        parse_answer(answer_of([data], content_type="application/json"), api, keep_message=True)
        return
    parse_answer(answer_of([b"data: " + data + b"\n\n"]), api, keep_message=True)
    events = events_of(api, reply)
    for place in (1, len(events) // 2, len(events)):
        _check(b"".join([*events[:place], b"data: " + data + b"\n\n", *events[place:]]), api)
