"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NAME_CHARACTERS = 40
"""How much of a file's name stands in that of its unfinished form, which must not be too long itself."""


@contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file beside `path`; it takes the place of `path` when the block ends without an exception.

    Otherwise it goes away and `path` stays as it was. A symlink stays, and what it points to is replaced. The
    new file has the permission bits of any new file.

    Raises `OSError` where it cannot be written, and for a directory, device, pipe or socket, which a rename
    would replace.
    """
    target = Path(os.path.realpath(path))
    kind = kind_of_file(target, missing_ok=True)
    if kind is not None:
        raise OSError(errno.EINVAL, f"is a {kind}; give the name of a file")
    # No tempfile: its files are for the user alone.
    unfinished = target.with_name(f".{target.name[:_NAME_CHARACTERS]}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  # a descriptor, not a path
            yield file
        unfinished.replace(target)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what the user must know
            unfinished.unlink()
        raise


def unfinished_forms(path: Path) -> list[Path]:
    """Return what killed writers left of a file; raises `OSError` if its directory cannot be read."""
    begin = re.escape(f".{path.name[:_NAME_CHARACTERS]}.")
    of_path = re.compile(begin + r"[0-9a-f]{16}\.tmp")
    return [sibling for sibling in path.parent.iterdir() if of_path.fullmatch(sibling.name)]


def kind_of_file(path: Path, *, missing_ok: bool = False) -> str | None:
    """Return what a path is that is no regular file ("directory", "pipe", "device", "socket"), else `None`.

    Raises `OSError` for a path that cannot be looked at, or is missing and must not be.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if missing_ok:
            return None
        raise
    if stat.S_ISREG(mode):
        return None
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"))
    return next((word for is_kind, word in kinds if is_kind(mode)), "device")
