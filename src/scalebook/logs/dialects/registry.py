"""Every dialect, the more particular ones first: the first that recognises a text reads it."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from scalebook.logs.dialects.dialect import Dialect

ENTRIES = (  # module:class
    "tprimat:TPrimat",
    "rows:TrainerState",
    "rows:GoldenValues",
    "rows:Autotuning",
    "nanotron:NanotronCSV",
    "nanotron:Nanotron",
    "swissarmy:SwissArmy",
    "nemo:NeMo2",
    "primus:PrimusMegatron",
    "megatron_bridge:MegatronBridge",
    "megatron_deepspeed:MegatronDeepSpeed",
    "gpt_neox:GPTNeoX",
    "megatron:MegatronLM",
    "megatron:Progress",
    "nemo:NeMo1",
    "key_value:Nanochat",
    "key_value:Verl",
    "key_value:OLMoCore",
    "nemo_automodel:NeMoAutomodel",
    "torchtitan:TorchTitan",
    "prime_rl:PrimeRL",
    "maxtext:MaxText",
    "torchtune:Torchtune",
    "litgpt:LitGPT",
    "composer:Composer",
    "mlperf:MLPerf",
    "hf_trainer:HFTrainer",
    "deepspeed:DeepSpeed",
    "nvidia_smi:NvidiaSMI",
    "nvidia_smi:NvidiaDmon",
    "nvidia_smi:DcgmiDmon",
    "amd_smi:AMDSMICSV",
    "amd_smi:AMDSMIMonitor",
    "amd_smi:RocmSMICSV",
    "amd_smi:RocmSMIText",
    "kineto:Kineto",
    "rows:Rows",
)


@cache
def dialects() -> tuple[type[Dialect], ...]:
    """Return every dialect, in the order in which they are tried."""
    found: list[type[Dialect]] = []
    for entry in ENTRIES:
        module, _, name = entry.partition(":")
        found.append(getattr(import_module(f"scalebook.logs.dialects.{module}"), name))
    return tuple(found)
