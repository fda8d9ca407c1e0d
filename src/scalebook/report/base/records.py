"""The records of a report's runs: settings, software and commands, which no frame holds."""

from __future__ import annotations

from scalebook.errors import RecordError
from scalebook.record import RunRecord
from scalebook.report.base.frames import ReportData
from scalebook.store import read_record, run_directories


def records(data: ReportData) -> dict[str, RunRecord]:
    """Return the record of each run of the run frame by run id, in the order of the frame."""
    wanted: list[str] = data.runs["run_id"].to_list()
    found: dict[str, RunRecord] = {}
    for directory in run_directories(data.folder):
        try:
            record = read_record(directory)
        except RecordError:
            continue  # said among the problems of the report
        found.setdefault(record.run_id, record)
    return {run_id: found[run_id] for run_id in wanted if run_id in found}
