"""The content of a recorded body: framing and compression taken off, for reading only."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterable, Mapping

from agentload._record._http import ChunkedBody, NotHttpError

_Decode = Callable[[bytes], bytes]


class UnreadableError(Exception):
    """A body that cannot be read. Its text is a few words that may be counted."""


def content(pieces: Iterable[bytes], fields: Mapping[str, str]) -> list[bytes]:
    """What each piece of a body adds to its content; raises `UnreadableError`."""
    decode = _decoder(fields.get("content-encoding", ""))
    chunked = fields.get("transfer-encoding", "").lower().rpartition(",")[2].strip() == "chunked"
    kept: list[bytes] = []
    body = ChunkedBody(kept)
    out = []
    for piece in pieces:
        if chunked:
            kept.clear()
            try:
                body.feed(piece, 0)
            except NotHttpError as error:
                raise UnreadableError(str(error)) from None
            piece = b"".join(kept)
        out.append(piece if decode is None else decode(piece))
    return out


def _decoder(encoding: str) -> _Decode | None:
    names = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in _DECODERS:
        raise UnreadableError(f"encoded as {encoding[:40]}")
    return _DECODERS[names[0]]()


def _safely(decode: _Decode, name: str, *errors: type[Exception]) -> _Decode:
    def decode_piece(data: bytes) -> bytes:
        try:
            return decode(data) if data else b""
        except errors as error:
            raise UnreadableError(f"not {name}, though it says so") from error

    return decode_piece


def _gzip() -> _Decode:
    return _safely(zlib.decompressobj(zlib.MAX_WBITS | 32).decompress, "gzip", zlib.error)


def _deflate() -> _Decode:
    """Zlib's format as the standard says, or bare as some servers send it; the first byte tells."""
    found: list[_Decode] = []

    def decode(data: bytes) -> bytes:
        if not found:
            zlib_format = data[0] & 0x0F == 8
            found.append(zlib.decompressobj(zlib.MAX_WBITS if zlib_format else -zlib.MAX_WBITS).decompress)
        return found[0](data)

    return _safely(decode, "deflate", zlib.error)


def _zstd() -> _Decode:
    import zstandard

    return _safely(zstandard.ZstdDecompressor().decompressobj().decompress, "zstd", zstandard.ZstdError)


def _brotli() -> _Decode:
    for name in ("brotli", "brotlicffi"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            continue
        return _safely(library.Decompressor().process, "br", library.error)
    raise UnreadableError("encoded as br, and there is no library for it (pip install brotli)")


_DECODERS: dict[str, Callable[[], _Decode]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
    "br": _brotli,
}
