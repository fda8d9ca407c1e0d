"""Dialects that are one JSON document."""

from __future__ import annotations

import json
from typing import Any, cast

from scalebook.logs.dialects.dialect import Dialect
from scalebook.logs.job import Job
from scalebook.logs.source import Source

LARGEST_DOCUMENT = 64 << 20  # characters; a results file takes far less


class JSONDialect(Dialect):
    """Reads a whole document of bounded size; one that is no JSON becomes a note with its line."""

    def read(self, source: Source) -> list[Job]:
        """Return the jobs of a file."""
        pieces: list[str] = []
        size = 0
        for text in source.texts():
            pieces.append(text)
            size += len(text)
            if size > LARGEST_DOCUMENT:
                self.out.job.note("The document is larger than 64 MiB and was not read.")
                return self.out.close()
        try:
            document = json.loads("".join(pieces))
        except ValueError as error:
            where = (
                f"line {error.lineno}: {error.msg}"
                if isinstance(error, json.JSONDecodeError)
                else str(error)
            )
            self.out.job.note(f"{source.path.name} is not valid JSON, {where}.")
        except RecursionError:
            self.out.job.note(f"{source.path.name} is nested too deeply.")
        else:
            for part in cast(list[Any], document if isinstance(document, list) else [document]):
                if isinstance(part, dict):
                    self.document(cast(dict[str, Any], part))
        return self.out.close()

    def document(self, document: dict[str, Any]) -> None:
        """Take one document."""
        raise NotImplementedError
