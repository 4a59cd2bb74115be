"""Timers of the kernel as file descriptors (Linux), good to microseconds on any event loop.

uvloop's own timers count whole milliseconds and may be a millisecond early; the stock loop rounds its waits
up to whole milliseconds. Neither could measure a lag that matters where a token takes 0.29 ms.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import cache
from typing import Any

_CLOCK_MONOTONIC = 1  # the clock of `perf_counter_ns` on Linux
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


def open_timerfd() -> int | None:
    """A new timer, not set; `None` where there are none."""
    if sys.platform != "linux":
        return None
    fd: int = _libc().timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return fd if fd >= 0 else None


def set_timerfd(fd: int, at_ns: int, interval_ns: int = 0) -> None:
    """Let `fd` be readable from `at_ns` (`perf_counter_ns`) on, and anew at every interval after that."""
    # struct itimerspec: interval, then first expiry, each in seconds and nanoseconds; 0 would disarm it.
    times = struct.pack("@4l", *divmod(interval_ns, _NS_PER_S), *divmod(max(1, at_ns), _NS_PER_S))
    if _libc().timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.c_char_p(times), None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_timerfd(fd: int) -> int:
    """How many times it has expired since it was last read or set."""
    try:
        expired: int = struct.unpack("Q", os.read(fd, 8))[0]
    except BlockingIOError:
        return 0
    return expired


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
