"""What `agentload serve` prints of its log: one line a kind, however many clients misbehave."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

_LOGGERS = ("agentload_simbackend", "aiohttp", "asyncio")
_QUIET_S = 10.0
"""So long after a line no other of its kind is printed; the next one tells how many were left out."""

_KIND_CHARS = 24
_LINE_CHARS = 400


class OneLinePerKind(logging.Handler):
    """Prints a record as one line, and of each kind one line in 10 s.

    A kind is the start of the message, the type of the error and what the record's `kind` says. An error
    that no client and no limit of the system can cause is one of the program: its traceback is printed too.
    write: takes a line. clock: seconds, never going back.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._write = write
        self._clock = clock
        self._quiet_until: dict[object, float] = {}
        self._left_out: dict[object, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, or count it."""
        error = record.exc_info[1] if record.exc_info else None
        number = error.errno if isinstance(error, OSError) else None
        kind = (str(record.msg)[:_KIND_CHARS], type(error), number, getattr(record, "kind", None))
        now = self._clock()
        if now < self._quiet_until.get(kind, now):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._quiet_until[kind] = now + _QUIET_S
        text = _line(record.getMessage(), error)
        if left_out := self._left_out.pop(kind, 0):
            text += f" (and {left_out} more of this kind before)"
        if error is not None and not isinstance(error, OSError):
            text += "\n" + logging.Formatter().formatException((type(error), error, error.__traceback__))
        with suppress(OSError):  # nobody reads it
            self._write(f"warning: {text}")

    def close(self) -> None:
        """Tell how many records were left out since the last line."""
        if left_out := sum(self._left_out.values()):
            self._left_out.clear()
            with suppress(OSError):
                self._write(f"warning: {left_out} more warnings of these kinds were left out")
        super().close()


@contextmanager
def one_line_log() -> Iterator[None]:
    """Print the log of the server and of the libraries under it through `OneLinePerKind`, on stderr."""
    handler = OneLinePerKind(lambda line: click.echo(line, err=True))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, propagated, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
        handler.close()


def _line(message: str, error: BaseException | None) -> str:
    """The first line of a message with the error, what could move a terminal's cursor shown as codes."""
    line = message.partition("\n")[0]
    if isinstance(error, OSError):
        line += f": {error.strerror or error}"
        if error.errno == errno.EMFILE:
            line += "; clients wait until others have gone (`ulimit -n` sets the limit)"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= _LINE_CHARS else shown[:_LINE_CHARS] + "..."
