"""Scalars of TensorBoard's event files, which are records with checksums."""

import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from ettsweep.errors import MetricsError

Field = tuple[int, int | bytes]
"""Number of a field of a message, and its value: a whole number, or bytes."""


class Scalar(NamedTuple):
    """A number of a step; `wall_s` is the time of its record, in seconds since 1970."""

    wall_s: float
    step: int
    tag: str
    value: float


def records(data: bytes, where: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield the end and the content of each complete record; leave an unfinished one.

    A record is its length (8 bytes) with its checksum (4), and its content with its checksum. A damaged content is
    None.

    Raises:
        MetricsError: the checksum of a length is wrong, and the next record cannot be found.
    """
    start = 0
    while start + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        if not _is_whole(data[start : start + 8], data[start + 8 : start + 12]):
            raise MetricsError(f"{where}: wrong checksum: the file is damaged, or not an event file of TensorBoard")
        end = start + 12 + length + 4
        if end > len(data):
            return
        content = data[start + 12 : end - 4]
        yield end, content if length > CHECKED_BYTES or _is_whole(content, data[end - 4 : end]) else None
        start = end


CHECKED_BYTES = 4096
"""Size in bytes above which records are not checked: those are images and histograms, without scalars."""


def _is_whole(content: bytes, checksum: bytes) -> bool:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _crc_table()[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked) == checksum


@cache
def _crc_table() -> tuple[int, ...]:
    """Return the table of CRC-32C (Castagnoli)."""
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 if crc & 1 else crc >> 1
        table.append(crc)
    return tuple(table)


def scalars(event: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an Event: wall_time (1), step (2), and in its summary (5) values (1) of a tag (1).

    A value is simple_value (2), or a tensor (8) of one float or double.
    """
    parts = dict(fields(event))
    (wall_s,) = struct.unpack("<d", _bytes(parts.get(1, bytes(8))))
    step = parts.get(2, 0)
    if isinstance(step, int) and step >= 2**63:
        step -= 2**64  # loggers use it for values without a step
    for number, value in fields(_bytes(parts.get(5, b""))):
        if number == 1:
            inner = dict(fields(_bytes(value)))
            scalar = _float(inner[2]) if 2 in inner else _tensor(_bytes(inner.get(8, b"")))
            if scalar is not None and isinstance(step, int):
                yield Scalar(wall_s, step, _bytes(inner.get(1, b"")).decode(errors="replace"), scalar)


def _tensor(tensor: bytes) -> float | None:
    """Return the one float or double of a TensorProto: dtype (1), tensor_content (4), float_val (5), double_val (6)."""
    inner = dict(fields(tensor))
    code = {1: "<f", 2: "<d"}.get(inner.get(1), "")  # type: ignore[arg-type]
    for number in (4, 5, 6):
        content = _bytes(inner.get(number, b""))
        if code and content and len(content) == struct.calcsize(code):
            return float(struct.unpack(code, content)[0])
    return None


def _float(value: int | bytes) -> float | None:
    content = _bytes(value)
    return float(struct.unpack("<f", content)[0]) if len(content) == 4 else None


def _bytes(value: int | bytes) -> bytes:
    return value if isinstance(value, bytes) else b""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message of Protocol Buffers, without a damaged rest."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(message, at)
            case 5:
                size = 4
            case _:
                return
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if message[at - 1] < 0x80:
            break
    return value, at
