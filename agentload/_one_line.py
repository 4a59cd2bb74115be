"""Makes one line of foreign text."""

from __future__ import annotations


def one_line(text: str) -> str:
    """At most 200 printable characters of foreign text: it goes to terminals and tables."""
    printable = "".join(character if character.isprintable() else " " for character in text[:2_000])
    return " ".join(printable.split())[:200]
