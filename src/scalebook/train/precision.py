"""The types that a run's precision stands for."""

from __future__ import annotations

import torch

# What parameters are computed in: FP8 is a format of the matrix products alone.
DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp32": torch.float32}
