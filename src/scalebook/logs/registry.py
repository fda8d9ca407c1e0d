"""Every dialect, the more particular ones first: the first that recognises a text reads it."""

from __future__ import annotations

from scalebook.logs.amd_smi import AMDSMICSV, AMDSMIMonitor, RocmSMICSV, RocmSMIText
from scalebook.logs.composer import Composer
from scalebook.logs.deepspeed import DeepSpeed
from scalebook.logs.dialect import Dialect
from scalebook.logs.gpt_neox import GPTNeoX
from scalebook.logs.hf_trainer import HFTrainer
from scalebook.logs.kineto import Kineto
from scalebook.logs.litgpt import LitGPT
from scalebook.logs.maxtext import MaxText
from scalebook.logs.megatron import MegatronLM
from scalebook.logs.megatron_bridge import MegatronBridge
from scalebook.logs.megatron_deepspeed import MegatronDeepSpeed
from scalebook.logs.mlperf import MLPerf
from scalebook.logs.nanotron import Nanotron, NanotronCSV
from scalebook.logs.nemo import NeMo1, NeMo2
from scalebook.logs.nemo_automodel import NeMoAutomodel
from scalebook.logs.nvidia_smi import DcgmiDmon, NvidiaDmon, NvidiaSMI
from scalebook.logs.prime_rl import PrimeRL
from scalebook.logs.primus import PrimusMegatron
from scalebook.logs.swissarmy import SwissArmy
from scalebook.logs.torchtitan import TorchTitan
from scalebook.logs.torchtune import Torchtune
from scalebook.logs.tprimat import TPrimat

DIALECTS: tuple[type[Dialect], ...] = (
    TPrimat,
    NanotronCSV,
    Nanotron,
    SwissArmy,
    NeMo2,
    PrimusMegatron,
    MegatronBridge,
    MegatronDeepSpeed,
    GPTNeoX,
    MegatronLM,
    NeMo1,
    NeMoAutomodel,
    TorchTitan,
    PrimeRL,
    MaxText,
    Torchtune,
    LitGPT,
    Composer,
    MLPerf,
    HFTrainer,
    DeepSpeed,
    NvidiaSMI,
    NvidiaDmon,
    DcgmiDmon,
    AMDSMICSV,
    AMDSMIMonitor,
    RocmSMICSV,
    RocmSMIText,
    Kineto,
)
