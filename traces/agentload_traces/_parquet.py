"""The native trace as Parquet: one `Turn` a row, the fields of `Turn` as columns; in batches."""

from __future__ import annotations

import functools
import itertools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from agentload_traces._errors import TraceError
from agentload_traces._importer import Head, Importer
from agentload_traces._json import describe
from agentload_traces._known_fields import TurnDecoder
from agentload_traces._polars_schema import parquet_source, schema_of
from agentload_traces._problems import ImportReport, Position
from agentload_traces._records import Turn
from agentload_traces._source import IS_EMPTY, Source

if TYPE_CHECKING:
    import polars as pl

_MAGIC = b"PAR1"
_FORMAT_KEY, _FORMAT = (
    "agentload_trace_format",
    "1",
)  # changes when a field changes its meaning, not when one is added
_REQUIRED = ("session_id", "turn_id", "input_tokens")
# A turn at a million tokens of context has 16,000 block ids: bound a batch by ids as well as by rows.
_BATCH_TURNS = 5_000
_BATCH_IDS = 500_000
_LEAST_ROWS = 256
_READ_BYTES = 2_000_000  # on disk, where such rows are 10 to 30 times smaller than in memory


def _recognises(head: Head) -> bool:
    return head.data.startswith(_MAGIC) and not head.compressed


def _read(source: Source, report: ImportReport) -> Iterator[tuple[Position, Turn]]:
    import polars as pl

    name, number = source.name, 0
    decoder = TurnDecoder(name, report)
    try:
        file = parquet_source(source.path)
        _refuse_other_format(name, pl.read_parquet_metadata(file).get(_FORMAT_KEY, _FORMAT))
        frame = pl.scan_parquet(file, glob=False)
        columns = frame.collect_schema().names()
        rows_total = frame.select(pl.len()).collect().item()
        if not rows_total:
            raise TraceError(f"{name}: {IS_EMPTY}")
        known = [column for column in columns if column in Turn.__struct_fields__]
        if missing := [column for column in _REQUIRED if column not in known]:
            raise TraceError(f"{name}: Parquet without column {missing[0]!r}; a trace has one row a turn")
        for column in columns:
            if column not in known:
                report.ignore(Position(name), column, rows_total)
        for row in _rows(frame.select(known), source, rows_total):
            number += 1
            report.lines_read = number
            where = Position(name, number)
            fields = {key: value for key, value in zip(known, row, strict=True) if value is not None}
            try:
                turn = decoder.from_fields(fields)
            except msgspec.ValidationError as error:
                report.skip(where, *describe(error))
                continue
            yield where, turn
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # panics on damaged pages
        message = (str(error).splitlines() or ["unknown error"])[0]
        if number == 0:
            raise TraceError(f"{name}: not a readable Parquet file ({message})") from None
        report.fail(Position(name, number + 1), f"nothing after this can be read ({message})")


def _refuse_other_format(name: str, format: str) -> None:
    if format != _FORMAT:
        raise TraceError(
            f"{name}: agentload trace format {format}, this version reads format {_FORMAT}; update agentload"
        )


def _rows(frame: pl.LazyFrame, source: Source, rows_total: int) -> Iterator[tuple[Any, ...]]:
    # Slice by slice, for `LazyFrame.collect_batches` decodes ahead of a slower consumer without bound.
    step = _READ_BYTES * rows_total // max(1, source.size_bytes)
    step = min(max(step, _LEAST_ROWS), 4 * _BATCH_TURNS)
    for offset in range(0, rows_total, step):
        batch = frame.slice(offset, step).collect()
        for piece in batch.iter_slices(_LEAST_ROWS):
            yield from piece.rows()
        source.bytes_read = source.size_bytes * min(rows_total, offset + step) // rows_total


NATIVE_PARQUET = Importer(
    name="agentload-parquet",
    summary="agentload's own trace, one turn a row (.parquet)",
    recognises=_recognises,
    read=_read,
    tool_calls_known="recorded",
)


def write_parquet(file: BinaryIO, turns: Iterable[Turn]) -> None:
    """Write turns as Parquet, a batch of them in memory at a time; an error of `turns` is passed on.

    A signal's exception (Ctrl-C) ends it at the next turn. Raises `OSError` where it cannot be written.
    """
    import polars as pl
    from polars.io.plugins import register_io_source

    schema = schema_of(Turn)
    stop = threading.Event()
    made = _batches(_until(stop, turns))
    first = next(made, [])

    def frames(
        columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        for batch in itertools.chain([first] if first else [], made):
            frame = pl.DataFrame({field: _column(batch, field) for field in schema}, schema=schema)
            yield frame if columns is None else frame.select(columns)

    # A row group is held in memory whole, by writer and reader: as many rows as the first batch took.
    row_group_rows = max(_LEAST_ROWS, len(first))
    source = register_io_source(frames, schema=schema)
    # Into an open file, not a path: what still runs in Polars after Ctrl-C must not make the file again.
    sink = functools.partial(
        source.sink_parquet,
        file,
        compression="zstd",
        row_group_size=row_group_rows,
        maintain_order=True,
        metadata={_FORMAT_KEY: _FORMAT},
    )
    _keep_sigint_from_polars()
    try:
        _call_interruptibly(sink, stop)
    except pl.exceptions.PolarsError as error:  # what the operating system said, in words of Polars
        raise OSError(str(error).splitlines()[0]) from None


def _keep_sigint_from_polars() -> None:
    """Give SIGINT back to Python.

    Polars hooks into it at its first query, and a Ctrl-C during a sink then panics in its threads, which
    can abort the process. It does not hook in again.
    """
    import polars as pl

    if threading.current_thread() is threading.main_thread():
        pl.select(pl.len()).lazy().collect()
        handler = signal.getsignal(signal.SIGINT)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


def _call_interruptibly(sink: Callable[[], object], stop: threading.Event) -> None:
    """Call `sink` in a thread, so that the main thread, which waits in Polars for no signal, can take one."""
    failed: list[BaseException] = []
    ended = threading.Event()

    def call() -> None:
        try:
            sink()
        except BaseException as error:  # whatever it is, it is raised where the caller is
            failed.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=call, name="write-parquet")
    thread.start()
    try:
        ended.wait()  # `join` takes a thread for ended when a signal interrupts it (CPython 3.11)
    finally:
        stop.set()
        ended.wait()
        thread.join()
    if failed:
        raise failed[0]


def _until(stop: threading.Event, turns: Iterable[Turn]) -> Iterator[Turn]:
    for turn in turns:
        if stop.is_set():
            return
        yield turn


def _batches(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    batch: list[Turn] = []
    ids = 0
    for turn in turns:
        batch.append(turn)
        ids += len(turn.blocks.ids) if turn.blocks else 0
        if len(batch) >= _BATCH_TURNS or ids >= _BATCH_IDS:
            yield batch
            batch, ids = [], 0
    if batch:
        yield batch


def _column(batch: list[Turn], field: str) -> list[Any]:
    values = [getattr(turn, field) for turn in batch]
    if field == "blocks":
        return [value and msgspec.structs.asdict(value) for value in values]
    if field in ("tool_calls", "messages"):
        return [value and [msgspec.structs.asdict(item) for item in value] for value in values]
    return values
