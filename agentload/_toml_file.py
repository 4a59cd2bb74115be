"""A TOML file of a user's, read into what it should hold; what is wrong with it in one line."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import TypeVar

import msgspec

from agentload_traces import AgentloadError

T = TypeVar("T")


def from_toml(
    read: Callable[[], str], where: str, kind: type[T], error: type[AgentloadError] = AgentloadError
) -> T:
    """What the text that `read` gives holds, whole numbers being numbers, too.

    where: names the file in the error, which is raised if it cannot be read or a field of it is wrong.
    """
    try:
        return msgspec.convert(tomllib.loads(read()), kind, strict=False)
    except OSError as failure:
        raise error(f"{where}: {failure.strerror or failure}") from None
    except UnicodeDecodeError as failure:
        raise error(f"{where}: not UTF-8 text ({failure.reason} at byte {failure.start})") from None
    except tomllib.TOMLDecodeError as failure:
        raise error(f"{where}: not TOML: {failure}") from None
    except msgspec.ValidationError as failure:
        raise error(f"{where}: {failure}") from None
