"""The process that reads the proxy's copies; see `_feeder`. It must not take the proxy's time.

Called with the options as JSON. Exchanges come on standard input; at the end of them it writes the trace and
prints its totals.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from agentload._answers_gathered import text_tokens
from agentload._record._exchange import Exchange, Finish, Origin, read
from agentload._record._journal import Journal
from agentload._record._turns import Totals, TurnMaker
from agentload_traces import AgentloadError

READY = b"ready\n"
"""What it prints first."""

_NICER = 5
"""The proxy and what it stands between go first."""


class WorkerOptions(msgspec.Struct, kw_only=True):
    """trace: absolute path of the trace. session_field, keep_text: see `TurnMaker`."""

    trace: str
    session_field: str | None = None
    keep_text: bool = False


class Recorded(msgspec.Struct, kw_only=True):
    """What the process says at its end. error: why there is no trace; the journal stays then."""

    totals: Totals
    error: str | None = None


def make_trace(file: BinaryIO, options: WorkerOptions) -> Recorded | None:
    """Read exchanges and write the trace; `None` if the proxy has died, which leaves the journal as it is."""
    journal = Journal(Path(options.trace))
    first = read(file)
    if not isinstance(first, Origin):
        return None
    maker = TurnMaker(
        journal,
        origin_ns=first.start_ns,
        session_field=options.session_field,
        keep_text=options.keep_text,
    )
    while isinstance(told := read(file), Exchange):
        try:
            maker.take(told)
        except Exception:
            # One exchange that is not understood must not cost the others.
            maker.misread()
            traceback.print_exc(file=sys.stderr)
    if not isinstance(told, Finish):
        return None
    error = None
    try:
        journal.finish()
    except AgentloadError as problem:
        error = str(problem)
    return Recorded(totals=maker.totals(), error=error)


def main() -> None:
    """See the module."""
    with suppress(OSError):
        os.nice(_NICER)
    options = msgspec.json.decode(sys.argv[1], type=WorkerOptions)
    text_tokens("warm")  # loads the vocabulary now, not beside the first answers
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    recorded = make_trace(sys.stdin.buffer, options)
    if recorded is not None:
        sys.stdout.buffer.write(msgspec.json.encode(recorded))


if __name__ == "__main__":
    main()
