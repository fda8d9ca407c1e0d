"""A against B: which is faster, by how much, how sure that is, and what would decide.

The ratio is throughput of A over throughput of B, so above 1 means that A is faster: tokens per
second where both sides tell their tokens, else steps per second. ``compare`` works on estimates
alone; ``read`` makes them from runs, folders of repeats and files (``series``), ``differences``
says what else differs between the sides, and ``gate`` compares folders of runs configuration by
configuration.
"""

from scalebook.measure.verdicts.compare import Verdict, compare

__all__ = ["Verdict", "compare"]
