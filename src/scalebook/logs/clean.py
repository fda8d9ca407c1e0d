"""Clean text of what terminals and launchers add: colours, carriage returns, rank prefixes."""

from __future__ import annotations

import re

from scalebook.logs.numbers import integer

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[()][0-9A-B]|[@-Z\\^_])"
)
# What no log line needs; tab, newline, carriage return and escape are dealt with apart.
_CONTROL = bytes(code for code in (*range(32), 127) if chr(code) not in "\t\n\r\x1b")
_CODECS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# torchrun --tee, PyTorch, srun --label, mpirun --tag-output, pdsh and nemo-run, in this order.
_PREFIX = re.compile(
    r"\s*(?:\[default(?P<torchrun>\d+)\]:|\[rank(?P<torch>\d+)\]:|(?P<srun>\d{1,5}): ?"
    r"|\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:|[\w.-]+/(?P<role>\d+) (?= ?\S)"
    r"|\([\w.-]+ pid=\d+[^)]*\) )"
)


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
