"""The vocabulary of claims: which fields there are and which quantity each one states."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from scalebook.facts import catalog
from scalebook.facts.catalog.types import Accelerator

BASE = "base_"  # prefix of a quantity of the run that a row is compared with
ALSO = "also_"  # prefix of a value that another place of the source gives the same quantity


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a claims file may have; ``scale`` turns its values into ``quantity``."""

    name: str
    quantity: str
    scale: float
    exact: bool
    total: bool
    meaning: str
    usual: Mapping[str, float]  # values that sources take without a word, by what they are


@cache
def _data() -> dict[str, Any]:
    path = files("scalebook.audit").joinpath("fields.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def words() -> dict[str, str]:
    """Return the fields that hold text, with their meaning."""
    return {name: row["meaning"] for name, row in _data()["words"].items()}


@cache
def choices(name: str) -> tuple[str, ...]:
    """Return what a field of text may say; empty where it may say anything."""
    return tuple(_data()["words"][name].get("choices", ()))


@cache
def fields() -> dict[str, Field]:
    """Return the fields that hold numbers, by name; base_ fields are not listed."""
    return {
        name: Field(
            name=name,
            quantity=row.get("quantity", name),
            scale=float(row.get("scale", 1)),
            exact=row.get("exact", False),
            total=row.get("total", False),
            meaning=row["meaning"],
            usual=row.get("usual", {}),
        )
        for name, row in _data()["fields"].items()
    }


def field(name: str) -> Field | None:
    """Return the field of a name, base_ and also_ fields included; None if there is none."""
    if name.startswith(ALSO):
        again = field(name.removeprefix(ALSO))
        return None if again is None else replace(again, name=name)
    own = fields().get(name.removeprefix(BASE))
    if own is None or not name.startswith(BASE):
        return own
    meaning = f"{own.meaning}, of the base"
    return replace(own, name=name, quantity=BASE + own.quantity, total=False, meaning=meaning)


def unknown_field(name: str) -> str:
    """Return the message for a field that there is not, with the nearest one."""
    nearest = difflib.get_close_matches(name, [*fields(), *words()], n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"Unknown field {name!r}.{hint} 'scalebook audit --fields' lists them."


@cache
def exact_quantities() -> frozenset[str]:
    """Return the quantities that are counts."""
    return frozenset(item.quantity for item in fields().values() if item.exact)


@cache
def headings() -> dict[str, Any]:
    """Return what a heading of somebody's document means, which units there are, and patterns."""
    path = files("scalebook.audit").joinpath("headings.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of a cell or a line."""
    return re.compile(headings()["patterns"][name], re.VERBOSE)


def factor(kind: str | None, unit: str) -> float | None:
    """Return what a number in this unit of a kind is multiplied by; None where it is none."""
    known, scaled = headings()["units"].get(kind, {}), headings()["scaled"]
    plain_unit = re.sub(" ?/ ?", "/", unit.lower().strip(" ."))
    scale = re.match(scaled["pattern"], plain_unit)
    if plain_unit in known or scale is None or kind not in scaled["kinds"]:
        return known.get(plain_unit)
    rest = plain_unit[scale.end() :]
    times = 1.0 if not rest else known.get(rest)
    return times and times * float(scaled[scale[1]])


def is_rate(kind: str, unit: str) -> bool:
    """Return whether a unit is one of this kind of rate, and no scale only: (K)."""
    return bool(factor(kind, unit)) and factor("tokens", unit) is None


def is_other(kind: str | None, unit: str) -> bool:
    """Return whether a unit is of another kind: a switch's throughput in Tbps is not of tokens."""
    known = [*headings()["units"]] if kind and unit and factor(kind, unit) is None else []
    rate = r"[a-z]+ ?(/|per) ?s(ec|econds?)?|[kmgt]?i?b(it)?ps|[a-z]+/s"
    if re.search(r"[x×] ?10|10 ?(\^|\*\*|[⁰¹²³⁴-⁹])|\b1e\d", unit):
        return True  # a scale of unknown sense
    odd = kind is not None and kind.endswith("_rate") and re.fullmatch(rate, unit)
    return bool(known) and (any(factor(one, unit) for one in known) or bool(odd))


_MARKS = re.compile(r"[*_`†‡↑↓]+|\[\^?\d+\]|✅|\(baseline\)", re.IGNORECASE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
LONGEST = 120  # characters of a label or a heading that is shown


def plain(text: str) -> str:
    """Return a cell without Markdown's marks, links and footnotes."""
    power = r"(?<![^\d.,]10)(?<!^10)"  # not behind 10, as of 10²⁴
    text = re.sub(rf"<br ?/?>|{power}<sup>[^<]*</sup>|{power}[⁰¹²³⁴-⁹]+", " ", text)
    text = re.sub(r"\\([-_*#~$])", r"\1", text)
    shown = _MARKS.sub(" ", _LINK.sub(r"\1", text))
    return " ".join("".join(c for c in shown if c.isprintable()).split())[:LONGEST]


def bare_size(cell: str) -> str:
    """Return the size by which a cell names a model, and nothing else: ``7B``, ``7B Dense``."""
    named = re.fullmatch(r"(\d+(\.\d+)?[MBT])( dense)?", cell, re.IGNORECASE)
    return named[1] if named else ""


def count_gpus(cell: str) -> str:
    """Return the number of GPUs of ``0-7``, their numbers, and of ``2x8 H100``, nodes by GPUs."""
    if numbers := re.fullmatch(r"(?:GPUs? )?0 ?[-–] ?(\d{1,5})", cell):
        return str(int(numbers[1]) + 1)
    product = pattern("nodes_by").match(cell)
    return str(int(product[1]) * int(product[2])) if product else cell


def accelerator_named(name: str) -> Accelerator:
    """Return the accelerator of a name: the catalog's, a platform's, a driver's, or people's.

    Raises:
        CatalogError: the catalog has none of this name, or several.
    """
    if (found := catalog.accelerator_for_device(name)) is not None:
        return found
    platforms = {item.name: item.accelerator for item in catalog.platforms()}
    return catalog.accelerator(platforms.get(name.lower()) or _spelled(name, platforms) or name)


def device_of(name: str) -> Accelerator | None:
    """Return the accelerator of its own, a platform's or a driver's name; none of a CPU."""
    return None if name.lower() in ("", "cpu") else accelerator_named(name)


_FORM = re.compile(r"pcie|sxm|nvl|oam|-card|-gcd", re.IGNORECASE)


def forms_of(name: str) -> tuple[Accelerator, ...]:
    """Return the device of a name, and the other forms of it that the name leaves open."""
    device, memory = device_of(name), re.search(r"(\d+) ?gb?\b", name.lower())
    if device is None or _FORM.search(name):
        return () if device is None else (device,)
    family = device.name.partition("-")[0]
    every = catalog.accelerators() if re.match(r"[A-Z]+\d", family) else ()
    others = (one for one in every if one.name.startswith(f"{family}-") and one != device)
    return (device, *(one for one in others if not memory or one.memory_gb == int(memory[1])))


def in_petaflops(peak: float) -> float:
    """Return a peak in TFLOP/s as sources round it, to a tenth of a PFLOP/s."""
    return round(peak / 1e3, 1) * 1e3


def peaks_of(name: str) -> tuple[float, ...]:
    """Return the peaks of a device in TFLOP/s, the dense one of BF16 first; none if unknown."""
    device = device_of(name)
    if device is None or "bf16" not in device.peak_tflops:
        return ()
    dense, sparse = device.peak_tflops, device.sparse_peak_tflops
    return (dense["bf16"], *dense.values(), *sparse.values())


# What says nothing of which device it is; generations of a form are left out too (SXM5).
_NO_NAME = re.compile(
    r"nvidia|amd|instinct|tesla|geforce|intel|google|aws|[dh]gx|gpus?|tensor|core|hbm\w*|oam"
    r"|nvl72|\d+x"
)


def _spelled(name: str, platforms: Mapping[str, str | None]) -> str | None:
    """Return the catalog's name of a device as people write it: ``H100 80GB SXM``, ``h100_80gb``.

    Of several that fit, the one that a platform is named after; None where that settles nothing.
    """

    def pieces(text: str) -> list[str]:
        plain = re.sub(r"(?<=sxm)\d", "", re.sub(r"(\d) ?gb?\b", r"\1gb ", text.lower()))
        return [one for one in re.findall(r"[a-z0-9]+", plain) if not _NO_NAME.fullmatch(one)]

    wanted = pieces(name.replace("_", " "))
    every = [device.name for device in catalog.accelerators()]
    fits = [one for one in every if wanted and set(wanted) <= set(pieces(one))]
    fits = fits or [one for one in every if "".join(wanted) == "".join(pieces(one))]
    usual = {device for one, device in platforms.items() if set(pieces(one)) <= set(wanted)}
    chosen = [one for one in fits if one in usual] or fits
    return chosen[0] if len(chosen) == 1 else None


_UNIT = re.compile(r"^(?P<name>.*?)\s*[(\[](?P<unit>[^()\[\]]*)[)\]]\s*$")
RATES = (
    ("gpu_token_rate", "tokens_per_second_per_gpu"), ("sample_rate", "samples_per_second"),
    ("token_rate", "tokens_per_second"),
    ("gpu_tflops", "model_tflops_per_second_per_gpu"),
)  # fmt: skip


def heading_of(text: str) -> tuple[str, str]:
    """Return the name and the unit of a heading: ``Step time (ms)``."""
    shown = plain(text.replace("_", " ")).lower()
    if field(shown.replace(" ", "_")) is None:
        shown = re.sub(r"(?: (seconds|ms)| ?(%))$", r" (\1\2)", shown)
        shown = re.sub(r"^(s|secs?|seconds|ms) ?(?:/|per ) ?(\w+)$", r"time per \2 (\1)", shown)
    match = _UNIT.match(shown)
    return (match["name"], match["unit"]) if match and match["name"] else (shown, "")


def named_by(name: str, unit: str) -> str | None:
    """Return the field that a heading states; its unit may say what a throughput is of."""
    for kind, field_name in RATES:
        if is_rate(kind, unit) and re.fullmatch(headings()["rated"]["names"], name):
            return field_name
    texts = dict.fromkeys((f"{name} {unit}".strip(), name))  # Training Time (GPU hours)
    named = (
        field_name
        for text in texts
        for field_name, patterns in headings()["fields"].items()
        if any(re.fullmatch(pattern, text) for pattern in patterns)
    )
    return next(named, None)


def named(head: str) -> tuple[str, str, str | None, str | None]:
    """Return name, unit and field of a heading: ``MicroBatchSize``.

    Then that without the words on how a number was found: ``clean``, ``mean``.
    """
    name, unit = heading_of(head)
    own, words = field(name.replace(" ", "_")), headings()["rated"]["found"]
    found = own.name if own else named_by(name, unit)
    if found is None:
        name, unit = heading_of(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", head))
        found = named_by(name, unit)
    bare = re.sub(rf"^(({words})[ -])+|([ ,]+({words}))+$", "", name)
    return name, unit, found, found or named_by(bare, unit)


_DENSE = re.compile(r"\b(dense|gpt|llama|opt|bert|bloom|pythia|t5)", re.IGNORECASE)


def unsaid(words: Mapping[str, str], at: Mapping[str, str], text: str) -> set[str]:
    """Return what a row of a document leaves open: how many weights work, over which peak."""
    known = "model" in words or "parameters" not in at or _DENSE.search(text)
    found = set[str]() if known else {"active_parameters"}  # a token may meet some experts only
    return found if "precision" in words else found | {"peak_precision"}
