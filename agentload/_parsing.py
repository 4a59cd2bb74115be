"""Reads answers off the path of the loop that stamps them: in one thread, with bounded memory.

An answer that is waiting to be read lies in memory up to a limit, and beyond it in a file of the run
directory that has no name there any more once it is open: a finished run has none, and a kill leaves none.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from agentload._answers import ParsedAnswer, parse_answer
from agentload._http_client import Answer
from agentload._options import Api

HELD_BYTES = 64 << 20
"""So much of unread answers is kept in memory."""

AT_ONCE_BYTES = 8_192
"""A shorter answer is parsed where it came in: handing it over to the thread takes longer, about 50 us."""

SWITCH_INTERVAL_S = 2e-4
"""How long the thread may keep the loop from the interpreter; Python's own 5 ms would be seen in stamps."""


class AnswerParser:
    """Parses answers in one thread; use as a context manager on the running loop's thread.

    directory: where what does not fit in memory is put. keep_message: see `parse_answer`.
    """

    def __init__(
        self, directory: Path, api: Api, *, keep_message: bool = False, held_bytes: int = HELD_BYTES
    ) -> None:
        self._directory = directory
        self._api = api
        self._keep_message = keep_message
        self._most_bytes = held_bytes
        self._held_bytes = 0
        self._spilled: IO[bytes] | None = None
        self._spilling = 0
        self.spilled_answers = 0

    def __enter__(self) -> AnswerParser:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agentload-parse")
        self._switch_interval_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(self._switch_interval_s)
        if self._spilled is not None:
            self._spilled.close()

    def parse_at_once(self, answer: Answer) -> ParsedAnswer | None:
        """The parsed answer, if it is short enough to be parsed here and now."""
        return self._parse(answer) if len(answer.body) <= AT_ONCE_BYTES else None

    async def parse(self, answer: Answer) -> ParsedAnswer:
        """The parsed answer, when the thread has come to it. The caller keeps no other hold of its body."""
        size = len(answer.body)
        if self._held_bytes + size <= self._most_bytes:
            with self._held(size):
                return await self._in_thread(partial(self._parse, answer))
        place = self._spill(answer.body)
        self.spilled_answers += 1
        without = answer._replace(body=b"")
        del answer
        try:
            return await self._in_thread(partial(self._parse_spilled, without, place, size))
        finally:
            self._spilling -= 1
            if not self._spilling and self._spilled is not None:
                self._spilled.truncate(0)  # nothing in it is waiting any more

    @contextmanager
    def _held(self, size: int) -> Iterator[None]:
        self._held_bytes += size
        try:
            yield
        finally:
            self._held_bytes -= size

    async def _in_thread(self, work: Callable[[], ParsedAnswer]) -> ParsedAnswer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _parse(self, answer: Answer) -> ParsedAnswer:
        return parse_answer(answer, self._api, keep_message=self._keep_message)

    def _parse_spilled(self, without: Answer, place: int, size: int) -> ParsedAnswer:
        return self._parse(without._replace(body=self._fetch(place, size)))

    def _spill(self, body: bytes) -> int:
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
        place = self._spilled.seek(0, 2)
        left = memoryview(body)
        while left:
            left = left[self._spilled.write(left) :]
        self._spilling += 1
        return place

    def _fetch(self, place: int, size: int) -> bytes:
        assert self._spilled is not None
        parts = []
        while size and (part := os.pread(self._spilled.fileno(), size, place)):
            parts.append(part)
            place, size = place + len(part), size - len(part)
        return b"".join(parts)
