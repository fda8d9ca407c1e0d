"""Settings in the text of a log: dumps, assignments, names of devices and of runs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeAlias

from scalebook.facts import catalog
from scalebook.logs.numbers import alternatives, integer, names, number

Value: TypeAlias = int | float | str | bool

# Names that trainers print -> ours. An architecture name keeps Megatron's word.
SIZES = names("settings")
WORDS = alternatives("told")["words"]
_FORMATS = names("formats")
_DOTTED = re.compile(  # DeepSpeed leaves no room for dots behind a long name
    r"(?<![\w.-])([A-Za-z_]\w*) ?\.{2,}:? ?([^\n]*)|:print\] +(\w{29,}) +(\S+)"
)
_ORIGIN = re.compile(r"\.{3,}\w+\s*$")  # GPT-NeoX puts where a value came from behind it
_GROUP_SIZES = re.compile(  # Megatron, and InternEvo with blanks
    r"(encoder-)?(world|(?:data|context|tensor|pipeline)[- ](?:model[- ])?parallel)"
    r"(?:[- ]size: | with size )(\d+)"
)
_RANKS_OF_GROUP = re.compile(
    r"Rank 0 has (data|context|tensor|pipeline)(?: model)? parallel group ?: \[([\d, ]+)\]"
)
_MICRO_BATCHES = re.compile(r"setting number of micro-?batches to constant (\d+)")
_ASSIGNED = re.compile(
    r"[\s#\[│┃║|-]*['\"]?(?:[\w-]+\.)*([A-Za-z_]\w*)['\"]?(?:\s*[:=|│]\s*|\s{2,})['\"]?([\w.+-]+)['\"]?"
    r"\s*,?\s*(?:#.*|[│┃║|])?$"
)
# Devices that the catalog does not know; their name is kept, and they have no peak.
_OTHER_DEVICE = re.compile(
    r"\b(?:NVIDIA (?:GeForce |RTX |GTX |Quadro |PRO |TITAN |Tesla )*[A-Z]{0,3}\d{1,4}[A-Z]?\b"
    r"(?:[ -](?:\d+GB|HBM\d\w?|SXM\d?|PCI[eE]|NVL|Ti|SUPER|Ada|Generation|Blackwell))*"
    r"|AMD[ _]Instinct[ _]MI\d{3}[XA]?(?:[ _]OAM)?|Tesla [KMPT]\d{1,3}(?:-[\w-]+)?)"
)


# The slice of a device, behind its name or (nvidia-smi -L) in the line below its UUID.
_SLICE = re.compile(rf"\s*(?:\(UUID: [\w-]+\)\s*)?(?<!\w)({catalog.MIG_SLICE})(?![\w.])")


def device_pieces() -> tuple[str, ...]:
    """Return pieces of which each name of a device begins with one."""
    return _known_devices(tuple(n for one in catalog.accelerators() for n in one.device_names))[1]


@lru_cache(maxsize=8)
def _known_devices(names: tuple[str, ...]) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return a pattern of device names, and pieces of which each name begins with one."""
    longest_first = sorted(names, key=lambda name: -len(name))
    pattern = "|".join(map(re.escape, longest_first))
    starts = {name[:4] for name in names} | {"AMD_", "Tesl"}
    known = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE)
    return known, (*starts, *map(str.lower, starts))


def device_in(text: str) -> str | None:
    """Return the first accelerator that a text names, as its driver does; None without one.

    A MIG slice keeps its profile: it is not the whole device.
    """
    names = tuple(name for item in catalog.accelerators() for name in item.device_names)
    pattern, starts = _known_devices(names)
    if not any(start in text for start in starts):
        return None
    known, other = pattern.search(text), _OTHER_DEVICE.search(text)
    found = [one for one in (known, other) if one]
    first = min(found, key=lambda one: (one.start(), -one.end()), default=None)
    if first is None:
        return None
    part, said = _SLICE.match(text, first.end()), first[0].strip()
    said = next((name for name in names if name.lower() == said.lower()), said)  # Composer: small
    return f"{said} {part[1]}" if part else said


_PROCESS = re.compile(
    r"^\| +(\d+) +\S+ +\S+ +\d+ +C +\S*python\S* +(?:\S.* )?(\S+) *\|", re.MULTILINE
)


def busy_gpus(text: str) -> int:
    """Return on how many GPUs a process of Python runs, by the table of nvidia-smi.

    0 where processes have no memory yet on some of the GPUs: others may be starting.
    """
    found = _PROCESS.findall(text)
    busy = len({gpu for gpu, _ in found})
    starting = busy < text.count("MiB / ") and any(memory == "0MiB" for _, memory in found)
    return 0 if starting else busy


PIECES = alternatives("pieces")  # of lines that say something of a run
NAMED_PIECES = (*PIECES["partial"], *PIECES["packed"])
_PACKED = re.compile(
    r"--packing true\b|\b(?:packed_sequence|(?:neat_|sample_)?packing|reset_attention_mask"
    r"|use_remove_padding|packed"
    r"|(packed_sequence_size))['\"]?\s*[.:=]+\s*['\"]?(?(1)[1-9]\d*|(?i:true))\b"
    r"|\bpacking_efficiency_estimate: \d"  # Axolotl
)
_PARTIAL = re.compile(
    r"(?i:\b(?:peft|peft_scheme|finetuning_type|train_type|tuner_type|adapter)['\"]?\s*[.:=]+\s*['\"]?"
    r"(?P<kind>q?lora|dora|adalora|lora\+|ia3|adapter|prefix|prompt)\b)"
    r"|\b(?i:use_[dl]ora|enable_lora|lora_enable)['\"]?\s*[.:=]+\s*(?i:true|1)\b"
    r"|--(?:use[_-](?:peft|lora)\b(?![ =](?i:false|0))|lora[_-](?:r|rank|dim)[ =][1-9])"
    r"|\bFine-tuning method: (?!Full)(?P<method>\w+)"
    r"|\btrainable params: [\d,]+ \((?P<bracket>\w+)\)"
    r"|\bTrainable parameters: (?!100)[\d.]+% \(|\bSaving LoRA weights"
    r"|\b(?:PeftModel|LoraConfig\(|LoRA training active|LoRA:? enabled|LoRA adapters added"
    r"|(?:Adding|Applying|Applied|Using|Injecting|Setting up|model with) LoRA)"
)
_COUNTED = re.compile(r"rainable param\w*(?:: | = )([\d,]+) ?(?:\|\| all params: |of |/ ?)([\d,]+)")
_SHARE = re.compile(  # of the weights
    r"(?i)\bnon-trainable parameters:? [1-9]|(?<!non-)trainable\b[^\n%]{0,60}[\[(:]"
    r"(?!100|99|0*\.?0*%)[\d.]+ ?%"
)
_FROZEN = re.compile(r"(?<![\d.,])([\d.,]+) ?[KMBT]?\s+Non-trainable params")


_WORLD = re.compile(
    r"\bMEMBER: \d+/(\d+)"  # Lightning
    r"|\b(?i:distributed [\w ]{0,40}|total [\w ]{0,60}GPUs\b[\w ]{0,40})[:,=]? (?:with )?(\d+)"
    r"(?=\s|\.?$)"
)
_GPUS = re.compile(
    r"(?i)\b(?:training|running|using|runs?) (?:on|with)? ?(\d{1,6}) ?x? (?:GPUs|devices|ranks)\b"
)
# Other names need an option, a call, an assignment or a row.
_WORK = [name for name, ours in SIZES.items() if "_" in name and ours.endswith(PIECES["any_line"])]
_FIGURE = r"([1-9]\d{0,2}(?:,\d{3})+|\d{1,9})(?![\w]|[.,]\d| *(?:tokens|tok|of)\b)"


def _any_of(of: Iterable[str]) -> str:
    longest = sorted(of, key=len, reverse=True)
    return "|".join(re.escape(name).replace("_", "[-_ ]") for name in longest)


_STATED = re.compile(
    rf"(?i)(?<![\w-])(?<!parallel )(?:\w+[./]){{0,8}}({_any_of(_WORK)})(?:_in_use)?['\"]?"
    rf"(?: [A-Z](?![A-Z]))?(?: \([^)\n]{{0,60}}\))?(?:\s*[:=|│]\s*| is |\s+)['\"]?{_FIGURE}"
    r"|\b([1-9][\d,]{2,}) tokens per (?:train(?:ing)? )?(?:step|iteration)\b"
)
_FLAG = re.compile(  # --tp-size is an inference engine's
    r"(?<![\w-])--(?:\w+\.)*(?!.p[-_]size)([a-z][\w-]*)(?:[ =]|', ')'?(\d{1,9})(?![\w.])"
)
_KEYWORD = re.compile(r"(?<![\w.])'?([a-z_]+)(?:=|': )(\d{1,9})(?=[,)}])")
_ARGUMENTS = re.compile(r"(?:Arg(?:ument)?s|Namespace|[Cc]onfig)\(|\{'\w+': ")
# Not of training: engines of inference, and the parts of a dump on what else they do.
_OPTIONS = names("options")
_ENGINE = re.compile(r"(?i)engine|server_?args|vllm|sglang|inference")
_OTHER_PARTS = ("valid", "eval", "test_ds", "rollout", "ref", "critic", "reward", "data.train")
_BESIDE = re.compile(
    r"['\"]?(?:\w*validation\w*|eval\w*|test_ds|rollout|ref|critic|reward\w*)['\"]?\s*[:=]\s*"
    r"(?:\w+\([^()]*\)|\{[^{}]*\})"
    r"|(?<!\S)\+{0,2}(?=\S{0,99}\b(?:\w*validation\w*|eval|test_ds|rollout|ref|critic|reward\w*)\.)"
    r"\S+"
    r"|(?<!\S)\S*data\.train_batch_size=\S+"  # counts prompts
)
_VARIABLES = names("variables")
# A variable of the script that starts the trainer: MBS=4 \
_VARIABLE = re.compile(rf"(?<![^\s/,;])({'|'.join(_VARIABLES)})=(\d{{1,9}})(?![^\s/,;])")
_PROCESSES = re.compile(
    r"\b(?:mpirun|mpiexec) [^|\n]*?-n?p? (\d{1,6}) (?!.*\b(?:torchrun|deepspeed)\b)"
)
_FORMAT = re.compile(
    r"(?i)(?<![a-z_])(?:default_float|(?:compute[_ ])?dtype|mixed[_ ]precision(?:_param)?|precision"
    r"|data_type)['\"]?(?:\s*(?:[:=|│]|\.{2,})\s*|\s{2,})['\"]?(?:<?[\w ]*[. '])?(?:amp_)?"
    r"(bf16|bfloat16|fp16|float16|16-mixed|fp32|float32)"
    r"|(?<![\w.-])['\"]?(bf16|fp16)['\"]?\s*[:=]\s*(?:\{['\"]enabled['\"]: )?true\b"
    r"|(?<!\S)--(bf16|fp16)(?=\s*$|\s+(?:-|\\|true))"
    r"|(?<![\w'\"])torch_dtype[:= ] ?(?:torch\.)?(bf16|bfloat16|fp16|float16)"
    r"|\busing torch\.(float16|bfloat16) for parameters|\b(bfloat16) enabled for mixed precision"
)


_FP8 = re.compile(
    r"--fp8-format[ =](hybrid|e4m3)|\bquantization['\"]?[:=] ?['\"]?(fp8)\b|(?<!\S)TE_(FP8)=1\b"
)
_SIZE_OF_MODEL = r"[a-z][\w.-]*(?:[ -]\d[\d.x]*|\d)[bm]\b[\w.-]*"
_MODEL = re.compile(
    r"(?i)(?<![\w./])(?<!teacher )(?<!reward )(?<!draft )(?:(?:pretrained_)?model_name_or_path"
    r"|base_model|model(?:[_ ](?:name|variant|path|id|type))?|building|loading (?:base )?model)"
    rf"(?:['\"]?\s*[:=|│]\s*|\s+|', )['\"]?(?:[\w.-]*/)*({_SIZE_OF_MODEL})"
    r"|_component_: [\w.]+\.(?:q?lora_)?(\w+)|--config (\w+/\d+b)_"  # torchtune
)
_VARIANT = re.compile(r"-(?:instruct|base|chat|it|hf|v\d[\d.]*|\d{4})\b")


@lru_cache(maxsize=1)
def _models() -> dict[str, str]:
    return {re.sub(r"[-_. ]", "", one): name for one, name in catalog.model_names().items()}


def model_in(line: str) -> str | None:
    """Return the model of the catalog whose published name a line gives as the one to train."""
    found = _MODEL.search(line)
    if found is None:
        return None
    said = _VARIANT.sub("", (found[1] or found[2] or found[3]).lower()).removeprefix("meta-")
    return _models().get(re.sub(r"[-_. /]", "", said))


_DEGREE = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp|ep)=(\d+)")
_MESH = re.compile(r"device mesh with ([^\n]{0,100}?)\[(\d+(?:, *\d+)*)\]")
_TITAN = names("torchtitan-sizes")
_BANNERS = names("banner")
_BANNER = re.compile(
    rf"\b({'|'.join(_BANNERS)})(?: \([^)]*\))? = ([\d,]+)(?: \(([\d,]+) tokens\))?"
)


def banner(line: str) -> Iterator[tuple[str, int]]:
    """Yield the settings of a line that a trainer prints before it starts."""
    for name, digits, tokens in _BANNER.findall(line) if " = " in line else ():
        size, every = (integer(one.replace(",", "")) for one in (digits, tokens))
        yield _BANNERS[name], size
        if "batch" in name and size and every and every % size == 0:
            yield "sequence_length", every // size
    if "device mesh with parallelism" in line:
        degrees = {name: integer(size) for name, size in _DEGREE.findall(line)}
        yield from ((_TITAN[name], size) for name, size in degrees.items() if name in _TITAN)
        yield "data_parallel_size", degrees.get("dp_replicate", 0) * degrees.get("dp_shard", 0)
        outer = [size for name, size in degrees.items() if name != "ep"]  # ep is inside them
        if len(outer) == 5:
            yield "world_size", math.prod(outer)
    if mesh := _MESH.search(line) if "device mesh with" in line else None:
        sizes = [integer(size.strip()) for size in mesh[2].split(",")]
        yield "world_size", math.prod(sizes)
        axes = zip(re.findall(r"'(\w+)'", mesh[1]), sizes, strict=False)
        yield from ((_TITAN[name], size) for name, size in axes if name in _TITAN)


def _sizes(line: str) -> Iterator[tuple[str, str]]:
    """Yield sizes that a line states, and their digits."""
    if world := _WORLD.search(line):
        yield "world_size", world[1] or world[2]
    options = _FLAG.findall(line) if " --" in line or "'--" in line else []
    for name, digits, tokens in _STATED.findall(line):
        options.append(("total_batch_size", tokens) if tokens else (name, digits))
    options += _KEYWORD.findall(line) if _ARGUMENTS.search(line) else []
    for name, digits in options:
        plain = re.sub("[- ]", "_", name.lower())
        if ours := _OPTIONS.get(plain) or SIZES.get(plain):
            yield ours, digits
    if "=" in line:
        yield from ((_VARIABLES[name], digits) for name, digits in _VARIABLE.findall(line))
    if processes := _PROCESSES.search(line):
        yield "world_size", processes[1]
    if gpus := _GPUS.search(line):
        yield "gpus_said", gpus[1]


def stated(line: str) -> Iterator[tuple[str, Value]]:
    """Yield what a line says in words that trainers and launchers share."""
    if "init_method" in line or "get_world_size(" in line or _ENGINE.search(line):
        return
    if any(piece in line for piece in _OTHER_PARTS):
        line = _BESIDE.sub("", line)
    for name, digits in _sizes(line):
        if size := integer(digits.replace(",", "")):
            yield name, size
    if model := model_in(line):
        yield "model", model
    single = "torchrun " in line and "nproc" in line and "nnodes" not in line
    if single or ("deepspeed " in line and "num_gpus" in line and "node" not in line):
        yield "nodes", 1
    if ("fp8" in line or "FP8" in line) and (recipe := _FP8.search(line)):
        yield "fp8", next(filter(None, recipe.groups())).lower()
    if number_format := _FORMAT.search(line):
        word = next(filter(None, number_format.groups())).lower()
        yield "precision", "bf16" if word[0] == "b" else "fp32" if "32" in word else "fp16"


# The tokens per second of a GPU over the whole run, on a line that holds nothing else.
RATE_OF_RUN = re.compile(r"(?i)\s*tokens/(?:GPU/s|s/GPU): ([\d.]+)\s*$")
_PEAK = re.compile(
    r"(?i)\bpeak (?:gpu |cuda )?mem(?:ory)?(?: allocated| usage| consumption)?:? *([\d.,]+) ?"
    r"(MiB|GiB)\b"
    r"|^Memory used: ([\d.]+) GB$"  # LitGPT: 10^9 bytes
    r"|Max CUDA memory (?:allocated was|usage:) ([\d.]+) ([GM])B"  # of 2^30 and 2^20 bytes
)


def peak_gib(line: str) -> float | None:
    """Return the peak of allocated memory that a line states, in GiB."""
    found = _PEAK.search(line)
    if found is None:
        return None
    if found[3]:
        return number(found[3]) * 1e9 / 2**30
    return number(found[4] or found[1]) / (1024 if (found[2] or found[5])[0] in "mM" else 1)


# The batch in the name of a checkpoint or a folder: mbs2_gbs128, mbs_128gbs.
BATCH_IN_NAME = re.compile(
    r"(?<![A-Za-z])(?:(?P<kind>[mg])bs[-_=]?(?P<size>\d{1,6})"
    r"|(?P<before>\d{1,6})(?P<kind2>[mg])bs)(?![A-Za-z\d])"
)


def batch_in_name(text: str) -> Iterator[tuple[str, int]]:
    """Yield the batch sizes that the names of paths in a text contain."""
    for found in BATCH_IN_NAME.finditer(text):
        kind, size = found["kind"] or found["kind2"], integer(found["size"] or found["before"])
        yield ("micro_batch_size" if kind == "m" else "global_batch_size"), size


def partial_training(line: str) -> str | None:
    """Return what a line says was trained, such as LoRA, part or all; None if it does not."""
    found = _PARTIAL.search(line)
    if found:
        return (found["kind"] or found["bracket"] or found["method"] or "LoRA").lower()
    counted = _COUNTED.search(line)
    if counted:
        return "part" if number(counted[1]) < number(counted[2]) else "all"
    if "rainable" in line and _SHARE.search(line):
        return "part"
    frozen = _FROZEN.search(line)
    return "part" if frozen and number(frozen[1]) > 0 else None


def packs(text: str) -> bool:
    """Return whether a text says that several documents share a sample."""
    return any(piece in text for piece in PIECES["packed"]) and _PACKED.search(text) is not None


def _value(name: str, text: str) -> tuple[str, Value] | None:
    name = name.lower()
    text = text.strip()
    if name in _FORMATS:  # DeepSpeed
        name, text = _FORMATS[name], text.removeprefix("enabled=").partition(" ")[0]
    if name == "recompute_modules":
        return name, ",".join(re.findall(r"\w+", text)).replace("None", "")
    if name in WORDS:
        low = text.lower()
        return name, {"true": True, "false": False}.get(low, low[:40])
    ours = SIZES.get(name)
    if ours is None or not text[:1].isdigit():
        return None
    value = number(text)
    return (ours, int(value)) if value.is_integer() and value >= 1 else None


def dotted(line: str) -> tuple[str, Value] | None:
    """Return the setting of a ``name ....... value`` line, None where it is unknown.

    DeepSpeed dumps its own view in the same form: there ``world_size`` counts replicas, and of the
    rest only batch sizes are taken. Megatron's ``batch_size`` was that of a micro batch.
    """
    found = _DOTTED.search(line)
    if found is None:
        return None
    name, text = found[1] or found[3], found[2] or found[4] or ""
    if ":print]" in line and name == "world_size":
        name = "data_parallel_size"
    elif name == "batch_size":
        name = "micro_batch_size"
    elif ":print]" in line and not name.startswith("train_") and name not in _FORMATS:
        return None
    return _value(name, _ORIGIN.sub("", text))


EVALUATION = re.compile(  # the section of a dump on it
    r"\s*['\"]?(?:\w*validation\w*|eval\w*|test_ds|rollout|generation)['\"]?\s*[:=]\s*[{(]?\s*$"
)


def assigned(line: str) -> tuple[str, Value] | None:
    """Return the setting of a YAML, TOML or shell-like ``name: value`` line."""
    if len(line) > 160:
        return None
    found = _ASSIGNED.match(line)
    return _value(found[1], found[2]) if found else None


def scan(line: str) -> Iterator[tuple[str, Value]]:
    """Yield the settings that a line of a dump, or of the sizes of groups, states."""
    if "Rank 0 has" in line and (group := _RANKS_OF_GROUP.search(line)):  # NeMo
        yield f"{group[1]}_parallel_size", group[2].count(",") + 1
    if "icro" in line and (count := _MICRO_BATCHES.search(line)):
        yield "num_microbatches", integer(count[1])
    if " size" in line and any(piece in line for piece in PIECES["groups"]):
        for encoder, kind, digits in _GROUP_SIZES.findall(line):
            if not encoder and integer(digits) >= 1:
                name = re.sub("[- ](?:model[- ])?", "_", kind)
                yield f"{name}_size", integer(digits)
    elif (".. " in line or ":print] " in line) and (found := dotted(line)):
        yield found
