"""Keep home directories and secrets out of what a run leaves on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any, cast

from scalebook import untrusted

MASK = "***"
# A part of a name between underscores: HF_TOKEN and AWS_SECRET_ACCESS_KEY, not TOKENS_PER_SECOND.
_PARTS = (
    r"(?:[A-Z0-9]*TOKEN|[A-Z0-9]*SECRET|[A-Z0-9]*PASSWORD|PASSWD|(?<=[_-])PWD"
    r"|(?:API|ACCESS|AUTH|)KEY)"
)
_NAME = re.compile(rf"(?:\w*[_-])?{_PARTS}(?:[_-]\w*)?", re.IGNORECASE)
_VALUE = r"[^\s\"',\\]+"
_IS = r"[\"']?\s*[=:]\s*[\"']?"
_WORDS = r"(?i:password|passwd|passphrase|secret|(?:api|private|secret|access|account)[_-]?key)"
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
    r"(?:hf|api_org)_(?=[A-Za-z0-9]{16})|gh[pousr]_(?=[A-Za-z0-9]{10})|github_pat_|nvapi-|dckr_pat_"
    r"|gl(?:pat|dt|rt|cbt)-(?=[\w-]{16})|npm_(?=[A-Za-z0-9]{20})|pypi-AgE"
    r"|xox[abeprs]-|xapp-(?=\d)|A[KS]IA(?=[A-Z0-9]{16}\b)|AIza(?=[\w-]{30})|eyJ(?=[\w-]{8,}\.eyJ)"
    # of OpenAI and Anthropic: a name such as sk-learn-based has no digits and capitals
    r"|sk-(?=[\w-]{20})(?=[\w-]*\d)(?=[\w-]*(?:[A-Z]|[0-9a-f]{32}))|[rs]k_live_|gsk_(?=\w{40})"
    r"|ya29\.(?=[\w-]{20})|GOCSPX-|wandb_v\d_(?=\w{16})|dop_v\d_(?=\w{16})|hvs\.(?=[\w-]{20})"
    r"|SG\.(?=[\w-]{16,}\.)|dapi(?=[0-9a-f]{32}\b)|key-(?=[0-9a-f]{32}\b)|r8_(?=\w{30})"
    r"|\w{14}\.atlasv1\."
)
_SIGNS = (
    *("hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "nvapi-"),
    *("dckr_pat", "glpat-", "gldt-", "glrt-", "glcbt-", "npm_", "pypi-", "xox", "xapp-", "sk-"),
    *("sk_live", "rk_live", "gsk_", "AKIA", "ASIA", "AIza", "eyJ", "ya29.", "GOCSPX-", "wandb_v"),
    *("dop_v", "hvs.", "SG.", "dapi", "key-", "r8_", ".atlasv1."),
)
_KEY_BEGINS = r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
_SECRETS = (
    _Secret("private key", ("PRIVATE KEY",), re.compile(rf"({_KEY_BEGINS})[^-]*")),
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
        ("TOKEN", "SECRET", "PASSW", "_PWD", "KEY"),
        re.compile(
            r"((?:TOKEN|SECRET|PASSWORD|PASSWD|(?<=_)PWD|(?<![A-Za-z0-9])(?:API|ACCESS|AUTH)?KEY)(?:_\w*)?"
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
    _Secret(
        "address",
        ("hooks.slack.com", "/api/webhooks", "api.telegram.org"),
        re.compile(
            r"(hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|api\.telegram\.org/bot)[\w/:-]+"
        ),
    ),
    _Secret(
        "credential",
        ("cookie",),
        re.compile(r"(\b(?i:(?:set-)?cookie)[\"']?\s*:\s*[\"']?)[^\s=;\"']+=[^\r\n\"'\\]+"),
    ),
    # Of commands: curl -u NAME:PASSWORD, sshpass -p PASSWORD, wandb login KEY; lines of .netrc.
    _Secret(
        "credential",
        ("curl", "sshpass", "wandb", "login"),
        re.compile(
            r"(\bcurl\b[^\r\n]*?\s(?:-u|--user)[ =][\"']?[^\s:\"']+:|\bsshpass\s+-p\s*"
            r"|\bwandb\s+login\s+(?:--\S+\s+)*(?=[0-9a-f]{40})|\blogin\s+\S+\s+password\s+)"
            rf"(?!\*){_VALUE}"
        ),
    ),
    _Secret("address", ("://",), re.compile(r"(://[^\s/:@\"']*:)[^\s/@\"']+@"), "@"),
    _Secret("address", ("://",), re.compile(r"(://)[^\s/:@\"']{16,}@"), "@"),  # a token as a name
)
# Each sign, and whether it counts in any case of letters.
_SIGNS_BY_CASE = {sign: sign.islower() for secret in _SECRETS for sign in secret.signs}
_PLAIN: set[str] = set()  # lines seen without a sign: most lines of records are those of others
_MOST_PLAIN, _LONGEST_PLAIN = 10_000, 200
_KEY_BEGUN = re.compile(rf"{_KEY_BEGINS}[^-]*$")
# What its lines end with, maybe after a stamp of a log. Of a short last line no key can be made.
_OF_A_KEY = re.compile(r"(?:[A-Za-z0-9+/=]{16,}|[A-Za-z0-9+/]+=+)\s*$")
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
    """Return the secrets whose signs are in a text: an end of line is in no sign."""
    fresh = set(text.split("\n")).difference(_PLAIN)
    there = _signs("\n".join(fresh), _SIGNS_BY_CASE)
    if len(_PLAIN) < _MOST_PLAIN:
        short = [line for line in fresh if len(line) <= _LONGEST_PLAIN]
        _PLAIN.update([line for line in short if not _signs(line, there)] if there else short)
    return [one for one in _SECRETS if not there.keys().isdisjoint(one.signs)] if there else []


def _signs(text: str, among: Mapping[str, bool]) -> dict[str, bool]:
    small = text.lower()
    return {s: any_case for s, any_case in among.items() if s in (small if any_case else text)}


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


def scrub_all(lines: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return every line, or part of a command, scrubbed; a part after ``--token`` is a secret."""
    found: list[str] = []
    after = False
    for line in _without_keys(lines):
        found.append(MASK if after else scrub(line, environment))
        after = bool(_FLAG.fullmatch(line))
    return tuple(found)


def _without_keys(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, masked where they are part of a private key; its first line stays."""
    inside = False
    for line in lines:
        inside = inside and "-----END" not in line
        if inside and (body := _OF_A_KEY.search(line)):
            yield f"{line[: body.start()]}{MASK}{line[len(line.rstrip()) :]}"
            continue
        # A key may have a header, such as Proc-Type: 4,ENCRYPTED, and an empty line below it.
        inside = bool(_KEY_BEGUN.search(line)) or (inside and (":" in line or not line.strip()))
        yield line


def scrub_file(path: Path, environment: Mapping[str, str]) -> None:
    """Mask the secrets in the lines of a text file, if it has any; its other bytes stay.

    Raises:
        OSError: the file is no regular file, or cannot be replaced.
    """
    known = {name: value for name, value in environment.items() if name != "HOME"}
    with untrusted.opened(path) as stream:
        if all(line == clean for line, clean in _cleaned(stream, known)):
            return
        stream.seek(0)
        with untrusted.replaced(path) as replacement:
            replacement.writelines(clean for _, clean in _cleaned(stream, known))


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


def _cleaned(
    stream: Iterable[bytes], environment: Mapping[str, str]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line of a file as it is and scrubbed."""
    # Each byte is one character in Latin-1: what is no secret stays as it is.
    ours, others = tee(line.decode("latin-1") for line in stream)
    for line, without in zip(ours, _without_keys(others), strict=True):
        body = without.rstrip("\r\n")
        clean = scrub(body, environment) + without[len(body) :]
        yield line.encode("latin-1"), clean.encode("latin-1")


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
