"""Text fit to show; foreign text first: names, ids and errors come from files and may hold anything."""

from __future__ import annotations

import os
import re

_UNFIT = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, what turns the writing direction, half surrogates."""


def printable(text: object) -> str:
    r"""`str(text)` on one line: characters that steer a terminal or cannot be encoded become `\x1b`, `\n`, …

    A path shows bytes that are not UTF-8 as "�".
    """
    shown = decodable(text) if isinstance(text, os.PathLike) else str(text)
    return _UNFIT.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), shown)


def decodable(path: str | os.PathLike[str]) -> str:
    """A path as text that can be encoded; bytes of its name that are not UTF-8 become "�"."""
    return os.fsencode(path).decode("utf-8", errors="replace")


def counted(count: int, thing: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
