"""Answers that wait to be read: in memory up to a limit, then in a file without a name."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agentload._http_client import Answer, Marks
from agentload._parsing import HELD_BYTES, AnswerParser

PIECE = 'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
END = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def an_answer(number: int) -> Answer:
    body = ("".join(PIECE % f" word{number}" for _ in range(number + 1)) + END).encode()
    return Answer(
        status=200,
        headers={"content-type": "text/event-stream"},
        body=body,
        marks=Marks([10 + number], [len(body)]),
        sent_ns=1,
        end_ns=20 + number,
        error=None,
        error_kind=None,
        opened=None,
        written_ns=None,
        first_byte_ns=None,
        unread_bytes=0,
    )


@pytest.mark.parametrize("held_bytes", [0, 700, HELD_BYTES])
async def test_answers_are_read_alike_from_memory_and_from_disk(tmp_path: Path, held_bytes: int) -> None:
    answers = [an_answer(number) for number in range(20)]
    ended: list[int] = []
    with AnswerParser(tmp_path, "chat", keep_message=True, held_bytes=held_bytes) as parser:

        async def read(number: int) -> str:
            parsed = await parser.parse(answers[number])
            ended.append(number)
            assert parsed.error is None
            assert parsed.message is not None
            return parsed.message.text

        texts = await asyncio.gather(*(read(number) for number in range(20)))
        assert os.listdir(tmp_path) == []  # noqa: PTH208 - also while it is in use
        # What waits no more takes no room: one alone fits again.
        before = parser.spilled_answers
        await parser.parse(answers[0])
        assert parser.spilled_answers - before == (held_bytes == 0)
    assert texts == [f" word{number}" * (number + 1) for number in range(20)]
    assert ended == list(range(20))
    assert (before > 0) == (held_bytes < HELD_BYTES)


async def test_the_interpreter_is_left_as_it_was(tmp_path: Path) -> None:
    interval_s = sys.getswitchinterval()
    with AnswerParser(tmp_path, "chat") as parser:
        assert sys.getswitchinterval() < interval_s
        await parser.parse(an_answer(3))
    assert sys.getswitchinterval() == interval_s
