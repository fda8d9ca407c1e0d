"""A log file as cleaned text: no colours, carriage returns or escape characters."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from scalebook.errors import IngestError
from scalebook.logs.numbers import clock_of, integer
from scalebook.logs.setting_lines import SIZES
from scalebook.untrusted import opened

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-B]|[@-Z\\^_])"
)
# What is left of a color where a copy lost the escape character.
_BARE_COLOR = re.compile(r"\[(?:0|1|2|4|7|22|39|49|[349][0-7]|10[0-7])(?:;\d{1,3}){0,4}m(?! ?\d)")
# What no log line needs; tab, newline, carriage return and escape are dealt with apart.
_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r\x1b")
_CODECS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# torchrun --tee, PyTorch, srun --label, mpirun --tag-output, pdsh and nemo-run, in this order.
_PREFIX = re.compile(
    r"\s*(?:\[default(?P<torchrun>\d+)\]:|\[rank(?P<torch>\d+)\]:|(?P<srun>\d{1,5}): ?"
    r"|\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:|[\w.-]+/(?P<role>\d+) (?= ?\S| +\w+:)"
    r"|\([\w.-]+ pid=\d+[^)]*\) )"
)


# What stands before every line and says nothing: a stream, a pod, a host, a quotation.
_LABEL = re.compile(
    r" ?(?:\[[\w./,-]{1,60}\](?:<std(?:out|err)>)?:? ?|\([\w.-]{1,60},? pid=\d+[^)\n]{0,80}\) ?"
    r"|[A-Za-z][\w.-]{0,60}\d *[:|] ?|\d{1,5}: ?|(?:INFO|DEBUG|WARNING):[\w.]{1,60}:|> ?)"
    r"|[ \t]{2,}"
)
_FEWEST_LABELLED, _LABELLED = 2, 0.95  # lines, and which share of them
_HEAD = 1 << 16  # characters that are looked at

# What a container, GitHub, journald or Python's logging puts before each line.
_OUTER_STAMP = re.compile(
    r"^(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+(?:Z|[+-]\d\d:?\d\d)?"
    r"(?: std(?:out|err) [FP]| - [\w.]+ - [A-Z]+ -)?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w.-]+\[\d+\]:) ",
    re.MULTILINE,
)


def stamped_twice(text: str) -> bool:
    """Whether nearly every line of a text begins with a time stamp, and most have another one."""
    lines = [line for line in text.split("\n") if line.strip()]
    behind = [line[found.end() :] for line in lines if (found := _OUTER_STAMP.match(line))]
    own = sum(not math.isnan(clock_of(line[:100])) for line in behind)
    return len(behind) >= max(_LABELLED * len(lines), _FEWEST_LABELLED) and own > len(behind) / 2


def label_of(text: str) -> str:
    """Return what nearly every line of a text begins with if it only names a source, else ''."""
    lines = [line for line in text.split("\n") if line.strip()]
    label, sample = "", lines[len(lines) // 2] if lines else ""
    while len(lines) >= _FEWEST_LABELLED and (found := _LABEL.match(sample, len(label))):
        longer = label + found[0].rstrip()
        longer = longer if longer != label else label + found[0]
        if sum(line.startswith(longer) for line in lines) < _LABELLED * len(lines):
            break
        label = longer
    return label


def encoding(start: bytes) -> str:
    """Return the encoding that a byte order mark names, UTF-8 without one."""
    return _CODECS.get(start[:2], "utf-8")


def clean(data: bytes, codec: str = "utf-8") -> str:
    """Return text with line ends as ``\\n`` alone and no escape or control characters.

    A carriage return ends a line too: a progress bar that overwrites itself becomes one line a
    state, so that nothing that was printed is lost. Bytes that are no text become U+FFFD.
    """
    if codec == "utf-8":
        text = data.translate(None, _CONTROL).decode(codec, "replace")
    else:
        text = data.decode(codec, "replace").translate(dict.fromkeys(_CONTROL))
    if text.startswith("\ufeff"):
        text = text[1:]
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "[3" in text or "[0m" in text:
        text = _BARE_COLOR.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def split_rank(line: str) -> tuple[int | None, str]:
    """Return the rank that a launcher's prefix names (None without one) and the line behind it."""
    rank: int | None = None
    for _ in range(3):  # launchers nest: srun --label around torchrun --tee
        found = _PREFIX.match(line)
        if found is None:
            break
        digits = next((d for d in found.group("torchrun", "torch", "srun", "mpi", "role") if d), "")
        rank = integer(digits) if digits else rank
        line = line[found.end() :]
    return rank, line


CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 13  # characters; a longer line is no record, and is counted, not read
# A log shrinks 10 to 200 times. Beyond both of these a file is a decompression bomb.
BOMB_BYTES = 256 << 20
BOMB_RATIO = 600
_ZSTD_HEADER = 18  # bytes, at most
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_XZ, _BZIP2, _ZIP = b"\xfd7zX", tuple(b"BZh%d" % level for level in range(1, 10)), b"PK\x03\x04"
# What unpackers raise, zipfile whatever damage makes of a header.
_DAMAGED = (
    *(EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)
_XZ_BYTES = 256 << 20  # of memory to unpack with; xz -9 asks for 65 MiB


def _pieces(stream: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    read = stream.read1 if isinstance(stream, gzip.GzipFile) else stream.read  # all until damage
    while piece := read(CHUNK_BYTES):
        yield piece


def _unpack(
    raw: BinaryIO, unpacker: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
) -> Iterator[bytes]:
    """Yield what an xz or bzip2 file of any number of streams holds, in pieces of at most a MiB.

    Raises:
        lzma.LZMAError, OSError: the data is damaged.
        EOFError: it ends within a stream; everything before was yielded.
    """
    one, packed = unpacker(), b""
    while True:
        if one.eof:
            packed = (one.unused_data or raw.read(CHUNK_BYTES)).lstrip(b"\0")  # xz pads
            if not packed:
                return
            one = unpacker()
        elif one.needs_input:
            packed = raw.read(CHUNK_BYTES)
            if not packed:
                raise EOFError("the end of the compressed data is missing")
        piece = one.decompress(packed, CHUNK_BYTES)
        packed = b""
        if piece:
            yield piece


def _unzip(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the only file of a zip archive in pieces of at most a MiB.

    Raises:
        IngestError: the archive holds several files, or one that needs more than zlib.
        zipfile.BadZipFile: it is damaged.
    """
    with zipfile.ZipFile(raw) as archive:
        files = [one for one in archive.infolist() if not one.is_dir()]
        if len(files) != 1:
            raise IngestError(
                f"{path} holds {len(files)} files; an archive of one log can be read. Unpack it "
                "and name the folder."
            )
        # Other methods unpack without a bound on the size of a piece.
        known = files[0].compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if files[0].flag_bits & 1 or not known:
            raise IngestError(f"{path} is encrypted or uses a rare compression. Unpack it by hand.")
        with archive.open(files[0]) as stream:
            yield from _pieces(cast(BinaryIO, stream))


def _unzstd(raw: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield what a zstd file of any number of frames holds, in pieces of at most a MiB.

    Raises:
        IngestError: the package that unpacks it is not installed.
        EOFError: it ends before the size that its first frame tells; all before was yielded.
    """
    try:
        module = import_module("zstandard")
    except ImportError as error:
        raise IngestError(
            f"{path} is compressed with zstd, which needs the package 'zstandard'. Install it "
            f"(pip install zstandard) or decompress the file first (zstd -d {path.name})."
        ) from error
    expected = module.frame_content_size(raw.read(_ZSTD_HEADER))  # -1 where it does not tell
    raw.seek(0)
    stream = module.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    total = 0
    for piece in _pieces(cast(BinaryIO, stream)):
        total += len(piece)
        yield piece
    if total < expected:
        raise EOFError("the end of the compressed data is missing")


@dataclass(slots=True)
class Source:
    """One file. ``notes`` collects what was odd about it, in words."""

    path: Path
    notes: list[str] = field(default_factory=list[str])
    bare: bool = False  # whether to drop the time stamps before the lines
    rank: int | None = None  # that a label of every line names
    joins: int = 0  # lines that were put together with the next one
    _hash: Any = field(default_factory=hashlib.sha256)
    _last: str = ""
    _label: str | None = None

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed bytes in pieces of at most a MiB.

        Raises:
            IngestError: the file cannot be opened, lacks its decompressor or is a bomb.
        """
        try:
            packed = max(self.path.stat().st_size, 1)
            raw = opened(self.path, follow=True)
        except OSError as error:
            raise IngestError(f"{self.path} cannot be read: {error.strerror}.") from error
        total, self._hash = 0, hashlib.sha256()
        with raw:
            magic = raw.read(4)
            raw.seek(0)
            compressed = magic.startswith(_GZIP) or magic in (_ZSTD, _XZ, _ZIP, *_BZIP2)
            for piece in self._unpacked(raw, magic):
                total += len(piece)
                if compressed and total > BOMB_BYTES and total > BOMB_RATIO * packed:
                    raise IngestError(
                        f"{self.path} unpacks to more than {BOMB_RATIO} times its size: refused. "
                        "Decompress it by hand if you trust it."
                    )
                self._hash.update(piece)
                yield piece

    def _unpacked(self, raw: BinaryIO, magic: bytes) -> Iterator[bytes]:
        """Yield pieces until the end, or until the data is damaged, which is noted."""
        try:
            if magic.startswith(_GZIP):
                yield from _pieces(gzip.GzipFile(fileobj=raw))
            elif magic == _ZSTD:
                yield from _unzstd(raw, self.path)
            elif magic == _XZ:
                yield from _unpack(raw, lambda: lzma.LZMADecompressor(memlimit=_XZ_BYTES))
            elif magic in _BZIP2:
                yield from _unpack(raw, bz2.BZ2Decompressor)
            elif magic == _ZIP:
                yield from _unzip(raw, self.path)
            else:
                yield from _pieces(raw)
        except _DAMAGED as error:
            self.note(f"The file is damaged or ends early ({error}); it was read up to there.")
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.note("The zstd data is damaged; the file was read up to there.")

    def texts(self) -> Iterator[str]:
        """Yield cleaned text in pieces that end at line ends (or, in an endless line, anywhere)."""
        rest, codec, self._label = b"", "", None
        for piece in self.pieces():
            codec = codec or encoding(piece)
            data = rest + piece
            if codec == "utf-8":
                end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
                end = end or (len(data) if len(data) > LONGEST_LINE else 0)
            else:
                end = len(data) & ~1
            rest = data[end:]
            if end:
                self._last = self._unlabelled(clean(data[:end], codec))
                yield self._last
        if rest:
            text = self._unlabelled(clean(rest, codec))
            self._last = self._last[-LONGEST_LINE:] + text
            yield text

    def _unlabelled(self, text: str) -> str:
        """Return a text without what stands before each line, as the file's beginning shows it."""
        if self._label is None:
            self.bare = self.bare or stamped_twice(text[:_HEAD])
            head = _OUTER_STAMP.sub("", text[:_HEAD]) if self.bare else text[:_HEAD]
            self._label = label_of(head)
            named = re.search(r"\[rank(\d{1,6})\]", self._label)  # of srun it is a task
            self.rank = int(named[1]) if named else None
        text = _OUTER_STAMP.sub("", text) if self.bare else text
        if not self._label:
            return text
        return re.sub(rf"^{re.escape(self._label)} ?", "", text, flags=re.MULTILINE)

    def digest(self) -> str:
        """Return the SHA-256 of what was read, decompressed."""
        return self._hash.hexdigest()

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """Return the last lines that were read and are not blank, each cut to 500 characters."""
        last = [line[:500].rstrip() for line in self._last[-LONGEST_LINE:].splitlines()]
        return tuple(line for line in last if line)[-lines:]

    def head(self, size: int = 1 << 16) -> str:
        """Return the first ``size`` bytes as cleaned text (fewer where the file is shorter)."""
        buffer = io.BytesIO()
        for piece in self.pieces():
            buffer.write(piece)
            if buffer.tell() >= size:
                break
        data = buffer.getvalue()[:size]
        return clean(data, encoding(data))


_NARROWEST = 60  # characters of a terminal that wraps lines


_HEAD_OF_BLOCK = re.compile(
    r"[^\w\n]*(?:\w+[ _])?(?:step|iteration|iter)\b\W{0,4}\d+", re.IGNORECASE
)
_VALUE_OF_BLOCK = re.compile(r"\W*[A-Za-z][\w /().-]{0,50}[:=] *[-\d.,e+]+ ?[\w/%]*\s*$")


def _of_blocks(lines: list[str]) -> Iterator[bool]:
    """Yield whether the line behind each one is a value of the step that was named above it."""
    inside = False
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        head = _HEAD_OF_BLOCK.match(line) is not None
        inside = head or (inside and _VALUE_OF_BLOCK.match(line) is not None)
        yield inside and not _HEAD_OF_BLOCK.match(after) and bool(_VALUE_OF_BLOCK.match(after))


def _cells(line: str) -> list[str]:
    """Return the cells of a row that lines or blanks separate."""
    if any(bar in line for bar in "│┃|"):
        return [cell.strip() for cell in re.split("[│┃|]", line.strip(" │┃|"))]
    return re.split(r"\s{2,}|\t", line.strip())


def _with_names(lines: list[str]) -> Iterator[str]:
    """Yield the lines; rows of a table as pairs of the column's name and the cell."""
    heads, sizes, at = list[str](), list[str](), 0  # sizes: of a table of settings, for the next
    for line in lines:
        cells = _cells(line)
        low = [cell.lower() for cell in cells]
        named = [one.replace(" ", "_").replace("-", "_") for one in low]
        if sum(one in SIZES for one in named) > 1:
            sizes = named
        elif len(cells) == len(sizes) and any(one.isdigit() for one in cells):
            pairs = zip(sizes, cells, strict=True)
            yield "\n".join(f"{name}: {cell}" for name, cell in pairs if name in SIZES)
            continue
        step = next(
            (i for i, one in enumerate(low) if one in ("step", "steps", "iter", "iteration")), -1
        )
        wide = len(cells) > 2 or "loss" in low[-1]  # of notebooks: Step, Training Loss
        if step >= 0 and wide and not any(one[:1].isdigit() for one in low):
            heads, at, sizes = cells, step, []
        cells = cells if len(cells) == len(heads) else line.split()
        if heads and len(cells) == len(heads) and cells[at].replace(",", "").isdigit():
            yield " | ".join(f"{name}: {cell}" for name, cell in zip(heads, cells, strict=True))
        else:
            yield line


@dataclass(slots=True)
class Unwrapped(Source):
    """A small file whose lines a terminal or a page has wrapped, with the pieces put together.

    ``where`` it was wrapped: at the ``width``, between ``words``, at ``bars``, or each value
    (``blocks``). Rows of ``tables`` get the names of their columns.
    """

    where: str = "width"
    _lines: list[str] | None = None

    def texts(self) -> Iterator[str]:
        """Yield the text; a line continues if it is full, had no room left or ends at a bar."""
        self._lines = lines = self._lines or "".join(Source.texts(self)).split("\n")
        if self.where == "tables":
            named = list(_with_names(lines))
            self.joins = sum(one != line for one, line in zip(named, lines, strict=True))
            yield "\n".join(named)
            return
        width = max(map(len, lines))
        words = [*(line.split(" ", 1)[0] for line in lines[1:]), ""]
        if self.where == "width":
            on = [len(line) == width >= _NARROWEST for line in lines]
        elif self.where == "words":
            on = [
                bool(line and word) and len(line) + len(word) >= width >= _NARROWEST
                for line, word in zip(lines, words, strict=True)
            ]
        elif self.where == "blocks":
            on = list(_of_blocks(lines))
        else:
            following = [*lines[1:], ""]
            on = [
                line.rstrip().endswith("|") or after.lstrip("#> ").startswith("| ")
                for line, after in zip(lines, following, strict=True)
            ]
        starts = [line.lstrip()[:3] for line in lines]
        both = zip(starts, starts[1:], on, strict=False)
        alike = sum(one and first == second for first, second, one in both)  # each is a record
        self.joins = sum(on) if sum(on) > 1 and 2 * alike <= sum(on) else 0
        between = {"words": " ", "blocks": " | "}.get(self.where, "")
        yield "".join(
            line + ("\n", between)[bool(self.joins) and one]
            for line, one in zip(lines, on, strict=True)
        )[:-1]
