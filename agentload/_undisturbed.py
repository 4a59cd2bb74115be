"""What must be done to its end, whatever a user or the system says meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within the block Ctrl-C, SIGTERM and SIGHUP do nothing; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(each, signal.SIG_IGN) for each in stops]
    try:
        yield
    finally:
        for each, handler in zip(stops, before, strict=True):
            signal.signal(each, handler)
