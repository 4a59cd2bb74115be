"""Write a file whole or not at all, with one line for what goes wrong."""

from __future__ import annotations

from pathlib import Path

from agentload_traces._errors import AgentloadError
from agentload_traces._printable import printable
from agentload_traces._replacing import replacing_file


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; see `replacing_file`.

    Raises `AgentloadError` where that cannot be done. Nothing is left behind then.
    """
    try:
        with replacing_file(path) as file:
            file.write(content)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> AgentloadError:
    """The one line for a file or directory that cannot be written."""
    return AgentloadError(f"{printable(path)}: cannot be written: {error.strerror or error}")
