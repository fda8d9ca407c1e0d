"""The binary formats of W&B and TensorBoard: records in a file, and fields in a record.

Both keep protocol buffers, W&B in the log format of LevelDB and TensorBoard in TFRecords. Reading
the few fields that matter takes these functions; the clients read only files that they open by
themselves, without a limit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

MOST_BYTES = 16 << 20  # of one record; a larger one holds no number of a step, and is left out
_BLOCK = 1 << 15
_WANDB_MAGIC = b":W&B\xe1\xbe\x00"
_HEADER = struct.Struct("<IHB")  # checksum, length, kind
_CUT = "The file ends within a record: the run was still writing, or died."
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), reflected: RFC 3720, appendix B.4


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field of a protocol buffer, in order.

    Numbers come as unsigned integers; text, messages and fixed-width numbers as bytes.

    Raises:
        ValueError: the bytes are not a protocol buffer.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = message[at], at + 1
        if key >= 0x80:
            key, at = _varint(message, at - 1)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = message[at] if at < end else 0x80, at + 1
            if size >= 0x80:
                size, at = _varint(message, at - 1)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if size > end - at:
            raise ValueError("a field that is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned integer and where it ends."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(message):
            raise ValueError("a number that is cut off")
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & (2**64 - 1), at + place + 1
    raise ValueError("a number of more than 64 bits")


def members(message: bytes, *numbers: int) -> Iterator[bytes]:
    """Yield the messages or texts at the end of a path of field numbers."""
    if not numbers:
        yield message
        return
    for number, value in fields(message):
        if number == numbers[0] and isinstance(value, bytes):
            yield from members(value, *numbers[1:])


def texts(message: bytes, *numbers: int) -> list[str]:
    """Return the texts at the end of a path of field numbers."""
    return [value.decode(errors="replace") for value in members(message, *numbers)]


def integer(message: bytes, number: int) -> int:
    """Return the last signed integer of a field, 0 without one."""
    found = [value for key, value in fields(message) if key == number and isinstance(value, int)]
    value = found[-1] if found else 0
    return value - 2**64 if value >= 2**63 else value


def wandb_records(stream: BinaryIO, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the records of a .wandb file up to its end or its first damage, which is noted.

    LevelDB's log format: blocks of 32 KiB with fragments of records, which no fragment crosses.
    """
    if stream.read(len(_WANDB_MAGIC)) != _WANDB_MAGIC:
        note("The file does not begin as a W&B log of the known version; nothing was read.")
        return
    record, size = bytearray(), _BLOCK - len(_WANDB_MAGIC)
    while block := stream.read(size):
        at, whole, size = 0, len(block) == size, _BLOCK
        while len(block) - at >= _HEADER.size:
            checksum, length, kind = _HEADER.unpack_from(block, at)
            if not (checksum or length or kind):
                break  # the rest of the block is padding
            body = block[at + _HEADER.size : at + _HEADER.size + length]
            if len(body) < length:
                note(_CUT)
                return
            if zlib.crc32(body, zlib.crc32(bytes((kind,)))) != checksum:
                note("The file is damaged; it was read up to there.")
                return
            at += _HEADER.size + length
            record = bytearray() if kind in (_FULL, _FIRST) else record
            record += body[: MOST_BYTES + 1 - len(record)]
            if kind in (_FULL, _LAST) and len(record) <= MOST_BYTES:
                yield bytes(record)
        if not whole and any(block[at:]):
            note(_CUT)


def event_records(stream: BinaryIO, note: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the records of a TensorBoard event file up to its end or its first damage."""
    while header := stream.read(12):
        if len(header) < 12 or _masked(header[:8]) != header[8:]:
            note("An event file is damaged or ends within a record; it was read up to there.")
            return
        length = int.from_bytes(header[:8], "little")
        if length > MOST_BYTES:  # an image, a histogram
            stream.seek(length + 4, 1)
            continue
        body, checksum = stream.read(length), stream.read(4)
        if _masked(body) != checksum:
            note("An event file is damaged or ends within a record; it was read up to there.")
            return
        yield body


def _table() -> tuple[int, ...]:
    rows: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        rows.append(value)
    return tuple(rows)


_TABLE = _table()


def _masked(data: bytes) -> bytes:
    """Return TFRecord's masked CRC-32C of bytes."""
    value, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return (((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
