"""Composer and llm-foundry: one record over many lines, counters from 0, times in hours."""

from __future__ import annotations

import re

from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.numbers import columns, integer, number

# By what the run is limited: batches (of an epoch), or tokens, samples or seconds.
_HEADER = re.compile(
    r"\[(?:epoch=(\d+)(?:/\d+)?\])?\[?(batch|token|sample|second|iteration)=(\d+)(?:/(\d+))?\]:?"
)
_ENTRY = re.compile(r"\bTrain ([\w./-]+): +([-+\d.,eE]+|-?(?:[Nn]a[Nn]|[Ii]nf(?:inity)?))")
_COLUMNS = columns("composer")
_LENGTHS = 128  # lengths of packed samples are multiples of it
_LENGTH = re.compile(r"\s*max_seq_len: (\d{1,9})\s*$")  # samples are packed up to it


class Composer(LineDialect):
    """``[epoch=1][batch=5/5]:`` followed by ``Train key: value`` lines."""

    name = "composer"
    markers = ("Train ",)
    signature = re.compile(r"\[batch=\d+(?:/\d+)?\]:?|\bTrain throughput/|\bTrain time/batch:")

    def __init__(self) -> None:
        super().__init__()
        self._batch: int | None = None
        self._total: int | None = None
        self._entries: dict[str, float] = {}

    def line(self, line: str) -> bool:
        """Take a header or an entry of the record that is open."""
        header = _HEADER.search(line) if "=" in line else None
        if header:
            if self._batch is None and "time/batch" not in self._entries:  # cut off at its head
                self.out.job.counts.broken_records += bool(self._entries)
                self._entries = {}
            self._emit()
            batches = header[2] == "batch"
            self._batch = integer(header[3]) if batches else None
            self._total = integer(header[4]) if batches and header[4] and not header[1] else None
        entry = _ENTRY.search(line) if "Train " in line else None
        if entry and not self.cut:
            self._entries[entry[1]] = number(entry[2])
        length = _LENGTH.match(line) if "max_seq_len" in line else None
        if length:
            self.out.tell("sequence_length", integer(length[1]), weak=True)
        return bool(header or entry)

    def _emit(self) -> None:
        entries, self._entries = self._entries, {}
        row = {of: entries[key] * scale for key, (of, scale) in _COLUMNS.items() if key in entries}
        batches, samples = entries.get("time/batch"), entries.get("time/sample")
        step = batches + 1 if batches is not None else self._batch
        if step is not None:
            row["step"] = float(step)
        size = samples / batches if samples and batches else None
        if size and size.is_integer():
            self.out.tell("global_batch_size", int(size))
            self.out.job.derived["global_batch_size"] = "samples over batches"
        tokens = entries.get("time/token", 0.0) / samples if samples else 0.5
        if tokens.is_integer() and tokens % _LENGTHS == 0:  # not the mean of padded samples
            self.out.tell("sequence_length", int(tokens), weak=True)
            self.out.job.derived["sequence_length"] = "tokens over samples"
        rate = row.get("samples_per_second")
        if size and rate and rate > 0:
            row["seconds"] = size / rate
        entropy = [value for key, value in entries.items() if key.endswith("LanguageCrossEntropy")]
        if "loss" not in row and entropy:  # the total is not logged
            row["loss"] = entropy[0]
        micro = entries.get("trainer/device_train_microbatch_size")
        if micro and micro.is_integer():
            self.out.tell("micro_batch_size", int(micro))
        rates = [value for key, value in entries.items() if key.startswith("lr-")]
        if rates:
            row["learning_rate"] = rates[0]
        if len(row) > 1:
            self.out.step(row, total=self._total)

    def finish(self) -> None:
        """Read the record that is still open."""
        self._emit()
