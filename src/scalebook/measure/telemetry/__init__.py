"""Power, energy, clocks and temperatures during a run, joined to its measured steps by time.

The same for what our sampler wrote and for what monitoring tools wrote beside an ingested log.
"""

from scalebook.measure.telemetry.readings import Telemetry, read
from scalebook.measure.telemetry.summary import Clocks, TelemetrySummary, summarize
from scalebook.measure.telemetry.throttling import flags

__all__ = ["Clocks", "Telemetry", "TelemetrySummary", "flags", "read", "summarize"]
