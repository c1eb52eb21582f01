"""Documents of parquet files and of the Arrow files of `datasets`: rows of a table, a few at a time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ettsweep.errors import InputError
from ettsweep.tasks.text.preparation.pieces import DocumentRule, Piece, no_field

ROWS = 256
"""Rows of a table that are in memory at once."""


def read_parquet(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents of a piece of a parquet file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(piece.file.path, pre_buffer=False, buffer_size=2**20) as file:
        start = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if start < piece.stop and start + rows > piece.start:
                batches = file.iter_batches(ROWS, row_groups=[group], columns=[rule.text_field], use_threads=False)
                yield from _rows(batches, start, piece, rule.text_field)
            start += rows


def read_arrow(piece: Piece, rule: DocumentRule) -> Iterator[str]:
    """Yield the documents of a piece of an Arrow file."""
    with _arrow_reader(piece.file.path) as reader:
        yield from _rows(reader, 0, piece, rule.text_field)


def _rows(batches: Iterable[Any], start: int, piece: Piece, name: str) -> Iterator[str]:
    """Yield the texts of a piece; the first batch begins at row `start`."""
    for batch in batches:
        low, high = max(0, piece.start - start), min(batch.num_rows, piece.stop - start)
        column = batch.column(name)
        for first in range(low, high, ROWS):
            for text in column.slice(first, min(ROWS, high - first)).to_pylist():
                yield text or ""
        start += batch.num_rows
        if start >= piece.stop:
            return


def parquet_groups(path: str, name: str) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of each row group, after a look at the column."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        _check_column(path, file.schema_arrow, name)
        data = file.metadata
        columns = [k for k in range(data.num_columns) if data.schema.column(k).path == name]
        for k in range(data.num_row_groups):
            group = data.row_group(k)
            yield group.num_rows, sum(group.column(c).total_uncompressed_size for c in columns)


def arrow_batches(path: str, name: str | None) -> Iterator[tuple[int, int]]:
    """Yield rows and bytes of each batch, after a look at the column; None for rows alone."""
    with _arrow_reader(path) as reader:
        if name is not None:
            _check_column(path, reader.schema, name)
        for batch in reader:
            yield batch.num_rows, 0 if name is None else batch.column(name).nbytes


@contextmanager
def _arrow_reader(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file, pa.ipc.open_stream(file) as reader:
        yield reader


def _check_column(path: str, schema: Any, name: str) -> None:
    import pyarrow as pa

    def is_text(kind: Any) -> bool:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))

    if name not in schema.names:
        raise InputError(f"{path}: {no_field(name, [f.name for f in schema if is_text(f.type)] or schema.names)}")
    if not is_text(schema.field(name).type):
        raise InputError(f"{path}: field {name!r} is no text but {schema.field(name).type}")
