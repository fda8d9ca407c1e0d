"""Spans of time, and how long each combination of tracks lasted together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans without overlaps, in order; those that touch become one."""
    merged: list[Span] = []
    start = stop = 0.0
    for begin, end in sorted(spans):
        if end <= begin:
            continue
        if merged and begin <= stop:
            stop = max(stop, end)
            merged[-1] = (start, stop)
            continue
        start, stop = begin, end
        merged.append((start, stop))
    return merged


def length(spans: Iterable[Span]) -> float:
    """Return the sum of the lengths of spans."""
    return sum(stop - start for start, stop in spans)


def together(tracks: Sequence[Sequence[Span]]) -> dict[int, float]:
    """Return how long each combination of tracks lasted; bit i of a key stands for track i.

    The spans of one track must not overlap (see ``union``). Time in no track is left out.
    """
    turns: list[tuple[float, int]] = []
    for index, spans in enumerate(tracks):
        bit = 1 << index
        for start, stop in spans:
            turns.append((start, bit))
            turns.append((stop, bit))
    turns.sort()
    totals: dict[int, float] = {}
    state, before = 0, 0.0
    for time, bit in turns:
        if state and time > before:
            totals[state] = totals.get(state, 0.0) + (time - before)
        state ^= bit
        before = time
    return totals


def with_bits(totals: dict[int, float], wanted: int, without: int = 0) -> float:
    """Return how long all ``wanted`` bits lasted together while none of ``without`` did."""
    return sum(time for key, time in totals.items() if key & wanted == wanted and not key & without)
