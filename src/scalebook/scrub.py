"""Keep home directories and secrets out of what a run leaves on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scalebook import untrusted

MASK = "***"
# A part of a name between underscores: HF_TOKEN and AWS_SECRET_ACCESS_KEY, not TOKENS_PER_SECOND.
_PARTS = r"(?:[A-Z0-9]*TOKEN|[A-Z0-9]*SECRET|[A-Z0-9]*PASSWORD|PASSWD|(?:API|ACCESS|AUTH|)KEY)"
_NAME = re.compile(rf"(?:\w*[_-])?{_PARTS}(?:[_-]\w*)?", re.IGNORECASE)
_VALUE = r"[^\s\"',\\]+"
_IS = r"[\"']?\s*[=:]\s*[\"']?"
_WORDS = r"(?i:password|passwd|passphrase|secret|(?:api|private|secret|access)[_-]?key)"
# In a log a name in small letters is mostly a tokenizer's (eos_token): only these count.
_TOKENS = r"(?i:(?:auth|access|api|hf|hub|wandb|git|github|gitlab|ngc|refresh|session)[_-]?token)"


@dataclass(frozen=True, slots=True)
class _Secret:
    """What a kind of secret looks like: its first group stays, and ``rest`` follows the mask.

    One of ``signs`` is in every text that has it (without capitals: in any case of letters).
    Looking for those is fast, and most texts have none.
    """

    kind: str
    signs: tuple[str, ...]
    pattern: re.Pattern[str]
    rest: str = ""


_PREFIXES = (
    r"hf_(?=[A-Za-z0-9]{16})|gh[pousr]_(?=[A-Za-z0-9]{10})|github_pat_|glpat-|nvapi-|dckr_pat_"
    r"|npm_(?=[A-Za-z0-9]{20})|pypi-AgE|xox[abeprs]-|sk-(?:ant-|proj-)?(?=\w{16})"
    r"|A[KS]IA(?=[A-Z0-9]{16}\b)|AIza(?=[\w-]{30})|eyJ(?=[\w-]{8,}\.eyJ)"
)
_SIGNS = (
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "nvapi-", "dckr_pat"),
    *("npm_", "pypi-", "xox", "sk-", "AKIA", "ASIA", "AIza", "eyJ"),
)
_SECRETS = (
    _Secret(
        "private key", ("PRIVATE KEY",), re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]+")
    ),
    _Secret("token", _SIGNS, re.compile(rf"(\b(?:{_PREFIXES}))[\w.-]+")),
    _Secret("credential", ("bearer",), re.compile(rf"(\b(?i:bearer)\s+)(?=\S{{6}}){_VALUE}")),
    _Secret(
        "credential",
        ("authorization",),
        re.compile(rf"((?i:authorization){_IS}(?:\w+\s+)?){_VALUE}"),
    ),
    _Secret(
        "option",
        ("--",),
        re.compile(
            rf"(--(?:token|[\w-]*(?:{_WORDS}|{_TOKENS}))(?:\s+|=|[\"'],\s*)[\"']?)(?!-){_VALUE}"
        ),
    ),
    _Secret(
        "assignment",
        ("TOKEN", "SECRET", "PASSW", "KEY"),
        re.compile(
            r"((?:TOKEN|SECRET|PASSWORD|PASSWD|(?<![A-Za-z0-9])(?:API|ACCESS|AUTH)?KEY)(?:_\w*)?"
            rf"{_IS}){_VALUE}"
        ),
    ),
    _Secret(
        "assignment",
        ("passw", "passphrase", "secret", *(f"key{end}" for end in ("=", ":", " ", '"', "'"))),
        re.compile(rf"({_WORDS}{_IS}){_VALUE}"),
    ),
    _Secret(
        "assignment",
        tuple(f"token{end}" for end in ("=", ":", " ", '"', "'")),
        re.compile(rf"({_TOKENS}{_IS}){_VALUE}"),
    ),
    # Of a bare "token" only a value that looks like one: "token: 4096" is a count.
    _Secret(
        "assignment",
        tuple(f"token{end}" for end in ("=", ":", " ", '"', "'")),
        re.compile(rf"(\b[Tt]oken{_IS})(?=[\w./+-]*\d)(?=[\w./+-]*[A-Za-z])[\w./+-]{{16,}}"),
    ),
    _Secret(
        "address",
        ("?", "&"),
        re.compile(r"([?&](?i:[\w-]*(?:token|signature|credential|sig|key))=)[^\s&\"'\\]+"),
    ),
    _Secret("address", ("://",), re.compile(r"(://[^\s/:@\"']*:)[^\s/@\"']+@"), "@"),
    _Secret("address", ("://",), re.compile(r"(://)[^\s/:@\"']{16,}@"), "@"),  # a token as a name
)
_FLAG = re.compile(rf"--(?:token|[\w-]*(?:{_WORDS}|{_TOKENS}))")
_PACKED = {".gz", ".zst", ".xz", ".bz2", ".zip", ".distcp", ".pt", ".bin", ".safetensors"}
_SHORTEST_SECRET = 6  # a shorter value, such as "1", would mask what is no secret


def is_secret(name: str) -> bool:
    """Return whether a variable of this name may hold a secret."""
    return bool(_NAME.fullmatch(name))


def scrub(text: str, environment: Mapping[str, str], home: Path | None = None) -> str:
    """Return the text with secret values masked and the home directory written as ``~``."""
    for name, value in environment.items():
        if is_secret(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, MASK)
    for secret in _likely(text):
        text = secret.pattern.sub(rf"\1{MASK}{secret.rest}", text)
    place = str(home or environment.get("HOME", ""))
    if len(place) > 1:
        text = re.sub(rf"{re.escape(place)}(?=/|\b|$)", "~", text)
    return text


def _likely(text: str) -> list[_Secret]:
    small = text.lower()
    return [
        secret
        for secret in _SECRETS
        if any(sign in (small if sign.islower() else text) for sign in secret.signs)
    ]


def kinds(text: str) -> tuple[str, ...]:
    """Return what in a text looks like a secret, in words; what is masked does not."""
    return tuple(
        dict.fromkeys(
            secret.kind
            for secret in _likely(text)
            for found in secret.pattern.finditer(text)
            if found[0] != f"{found[1]}{MASK}{secret.rest}"
        )
    )


def scrub_all(
    lines: Iterable[str], environment: Mapping[str, str], home: Path | None = None
) -> tuple[str, ...]:
    """Return every line, or part of a command, scrubbed; a part after ``--token`` is a secret."""
    found: list[str] = []
    after = False
    for line in lines:
        found.append(MASK if after else scrub(line, environment, home))
        after = bool(_FLAG.fullmatch(line))
    return tuple(found)


def scrub_file(path: Path, environment: Mapping[str, str]) -> None:
    """Mask the secrets in the lines of a text file, if it has any; its other bytes stay.

    Raises:
        OSError: the file is no regular file, or cannot be replaced.
    """
    known = {name: value for name, value in environment.items() if name != "HOME"}
    with untrusted.opened(path) as stream:
        if all(line == _bytes(line, known) for line in stream):
            return
        stream.seek(0)
        with untrusted.replaced(path) as clean:
            clean.writelines(_bytes(line, known) for line in stream)


def in_folder(folder: Path) -> Iterator[tuple[Path, int, tuple[str, ...]]]:
    """Yield file, line and kinds of each line below a folder that holds what looks like a secret.

    Links are not followed; packed files and checkpoints are not looked into.
    """
    for place, folders, files in os.walk(folder):
        folders.sort()
        for path in (Path(place, name) for name in sorted(files)):
            if path.suffix in _PACKED:
                continue
            with suppress(OSError):  # a link, a pipe or another user's: nothing of ours to publish
                for number, line in enumerate(untrusted.lines(path), start=1):
                    if found := kinds(line.decode("latin-1")):
                        yield path, number, found


def _bytes(line: bytes, environment: Mapping[str, str]) -> bytes:
    # Each byte is one character in Latin-1: what is no secret stays as it is.
    return scrub(line.decode("latin-1"), environment).encode("latin-1")


def scrub_values(value: Any) -> Any:
    """Return a value of JSON with every text in it scrubbed and those of secret names masked."""
    if isinstance(value, str):
        return scrub(value, {})
    if isinstance(value, list):
        items = cast("list[Any]", value)
        texts = bool(items) and all(isinstance(item, str) for item in items)
        return list(scrub_all(items, {})) if texts else [scrub_values(item) for item in items]
    if isinstance(value, dict):
        return {
            name: MASK if isinstance(one, str) and is_secret(name) else scrub_values(one)
            for name, one in cast("dict[str, Any]", value).items()
        }
    return value


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with secrets masked: the values of secret names, and those that look so."""
    return {name: MASK if is_secret(name) else scrub_values(v) for name, v in variables.items()}
