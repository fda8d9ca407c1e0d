"""The catalog: facts with sources, exact device names, users' own rows, and refused rows."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.errors import CatalogError
from scalebook.facts import catalog
from scalebook.facts.catalog import build
from scalebook.facts.catalog.rows import TomlRow, parse

# Dense BF16 TFLOP/s of one device, from the vendors' data sheets.
DENSE_BF16 = {
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA H100 80GB HBM3": 989.4,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H200": 989.4,
    "NVIDIA B200": 2250.0,
    "AMD Instinct MI300X": 1307.4,
    "AMD Instinct MI325X OAM": 1307.4,
    "AMD Instinct MI355X": 2516.6,
}
ACCELERATOR = """
[[accelerators]]
name = "X1"
vendor = "acme"
memory_gb = 64
device_names = ["ACME X1"]
source = "data sheet"
peak_tflops = { bf16 = 100 }
"""
MODEL = """
[[models]]
name = "mine-1b"
num_layers = 16
hidden_size = 2048
ffn_hidden_size = 8192
num_attention_heads = 16
num_query_groups = 4
head_dim = 128
vocab_size = 32000
gated_mlp = true
tied_embeddings = false
normalization = "rms"
attention_bias = "none"
max_sequence_length = 4096
source = "own config"
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a function that writes a user's catalog file and makes it count."""

    def write(text, name="own.toml"):
        path = tmp_path / name
        path.write_text(text)
        monkeypatch.setenv("SCALEBOOK_CATALOG", str(path))
        return path

    monkeypatch.chdir(tmp_path)
    return write


def first_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(("device", "peak"), DENSE_BF16.items())
def test_the_bf16_peak_of_a_device_is_the_dense_one(device, peak):
    assert catalog.peak_tflops(device, "bf16") == (peak, None)


def test_the_sparse_figures_stand_apart_from_the_dense_ones():
    h100 = catalog.accelerator("h100-sxm5-80gb")
    assert h100.sparse_peak_tflops["bf16"] == 1978.9
    for item in catalog.accelerators():
        for name, sparse in item.sparse_peak_tflops.items():
            assert sparse >= item.peak_tflops[name], (item.name, name)


def test_the_best_measured_product_is_no_peak(own):
    """MI300X: 51.4 % of 1,300 TFLOP/s in the source, which rounds the peak."""
    mi300x = catalog.accelerator("MI300X")
    share = mi300x.best_product_tflops["bf16"] / mi300x.peak_tflops["bf16"]
    assert share == pytest.approx(0.514, abs=0.005)
    for item in catalog.accelerators():
        for name, best in item.best_product_tflops.items():
            assert 0.5 < best / item.peak_tflops[name] < 1, item.name
    sizes = 'vendor = "amd"\nmemory_gb = 1\nsource = "x"\npeak_tflops = { bf16 = 100 }\n'
    own(f'[[accelerators]]\nname = "X"\n{sizes}best_product_tflops = {{ bf16 = 101 }}\n')
    with pytest.raises(CatalogError, match="no bf16 product is above the peak"):
        catalog.accelerator("X")


def test_an_unknown_device_has_no_facts_and_says_how_to_add_them():
    for device in ("NVIDIA H100", "nvidia h100 80gb hbm3", "NVIDIA H100 80GB HBM3 ", "H100", ""):
        assert catalog.accelerator_for_device(device) is None
        peak, reason = catalog.peak_tflops(device, "bf16")
        assert peak is None
        assert reason is not None
        assert repr(device) in reason
        assert "[[accelerators]]" in reason


@pytest.mark.parametrize("profile", ["1g.10gb", "1g.10gb+me", "1c.2g.20gb", "7g.80gb"])
def test_a_slice_of_a_device_has_no_peak_and_says_why(profile: str):
    for item in catalog.accelerators():
        for name in item.device_names:
            device = f"{name} MIG {profile}"
            assert catalog.accelerator_for_device(device) is None
            peak, reason = catalog.peak_tflops(device, "bf16")
            assert peak is None
            assert reason is not None
            assert f"{device!r} is a MIG slice" in reason
            assert "[[accelerators]]" in reason


def test_a_precision_without_a_published_peak_has_none():
    peak, reason = catalog.peak_tflops("NVIDIA A100-SXM4-80GB", "fp8")
    assert peak is None
    assert reason is not None
    assert "No dense peak for accelerator 'NVIDIA A100-SXM4-80GB' in fp8" in reason
    assert not catalog.accelerator("MI308X").peak_tflops


def test_no_two_accelerators_claim_one_device_name():
    names = [name for item in catalog.accelerators() for name in item.device_names]
    assert len(names) == len(set(names))


def test_every_row_has_a_source():
    for item in (*catalog.accelerators(), *catalog.models(), *catalog.platforms()):
        assert item.source.strip(), item.name
    for item in (*catalog.strategy_rows(), *catalog.published()):
        assert item.source.strip()


def test_a_proxy_is_the_same_shape_with_fewer_layers():
    whole, proxy = catalog.model("llama3.1-8b"), catalog.model("llama3.1-8b@8")
    assert (proxy.name, proxy.num_layers) == ("llama3.1-8b@8", 8)
    assert proxy.hidden_size == whole.hidden_size
    assert catalog.model("deepseek-v3@4").moe == catalog.model("deepseek-v3").moe


@pytest.mark.parametrize(
    "name",
    ["llama3.1-8b@", "llama3.1-8b@0", "llama3.1-8b@x", "tiny-moe@-1", "tiny-llama@" + "9" * 5000],
)
def test_a_proxy_without_a_number_of_layers_is_refused(name):
    with pytest.raises(CatalogError, match="number of layers"):
        catalog.model(name)


def test_a_proxy_without_experts_left_is_refused():
    with pytest.raises(CatalogError, match="Use at least 4 layers"):
        catalog.model("deepseek-v3@3")


def test_a_hybrid_stack_has_no_proxy():
    with pytest.raises(CatalogError, match="layers of several kinds"):
        catalog.model("nemotron-3-nano-30b@8")


def test_models_are_found_by_the_other_ways_people_write_them():
    for alias, name in (
        ("gpt-3-175b", "gpt3-175b"),
        ("Llama-3.1-8B", "llama3.1-8b"),
        ("llama-2-70b@4", "llama2-70b@4"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
    ):
        assert catalog.model(alias).name == name


def test_unknown_names_come_with_a_suggestion():
    for call, suggestion in (
        (lambda: catalog.model("llama3.1-8"), "'llama3.1-8b'"),
        (lambda: catalog.platform("mi30x"), "'mi300x'"),
        (lambda: catalog.accelerator("H100-SXM-80GB"), "'H100-SXM5-80GB'"),
        (lambda: catalog.accelerator("h200-sxm"), "'H200-SXM-141GB'"),  # not GB200
    ):
        with pytest.raises(CatalogError, match=f"Did you mean {suggestion}"):
            call()


def test_of_many_names_the_nearest_are_listed_and_the_others_counted():
    with pytest.raises(CatalogError) as caught:
        catalog.model("llama3.1-8")
    message = str(caught.value)
    assert "Known models: llama3.1-8b, " in message
    assert f" and {len(catalog.models()) - 5} more ('scalebook models' lists them)." in message


def test_every_platform_names_a_known_accelerator_of_its_vendor():
    for item in catalog.platforms():
        if item.accelerator is None:
            assert item.vendor == "cpu"
        else:
            assert catalog.accelerator(item.accelerator).vendor == item.vendor
    names = {item.name for item in catalog.platforms()}
    assert names >= {"cpu", "a100", "h100", "h200", "b200", "mi300x", "mi325x", "mi355x"}


# Name, platform, model, TP and PP as the TPrimat README gives them for 8 GPUs.
SEED = [
    ("maximum_performance", "h100", "llama3.1-8b", 4, 1),
    ("maximum_performance", "h100", "qwen2.5-7b", 4, 2),
    ("maximum_performance", "mi300x", "llama3.1-8b", 1, 1),
    ("maximum_performance", "mi300x", "qwen2.5-7b", 1, 1),
    ("identical_config", "h100", "llama3.1-8b", 4, 1),
    ("truly_identical", "mi300x", "qwen2.5-7b", 4, 2),
    ("memory_optimized", "h100", "llama3.1-8b", 4, 2),
    ("memory_optimized", "mi300x", "qwen2.5-7b", 4, 2),
    ("minimal_communication", "h200", "qwen2.5-7b", 1, 1),
    ("balanced", "h100", "llama3.1-8b", 2, 1),
    ("balanced", "mi355x", "qwen2.5-7b", 2, 2),
    ("Memory-Optimized", "h100", "llama3.1-8b@8", 4, 2),
]


@pytest.mark.parametrize(("name", "platform", "model", "tensor", "pipeline"), SEED)
def test_a_strategy_has_the_sizes_it_was_published_with(name, platform, model, tensor, pipeline):
    found = catalog.strategy(name, platform, model)
    assert (found.tensor_parallel_size, found.pipeline_parallel_size) == (tensor, pipeline)


def test_both_models_have_all_five_strategies_on_every_gpu_platform():
    for item in catalog.platforms():
        if item.vendor == "cpu":
            continue
        for model in ("llama3.1-8b", "qwen2.5-7b"):
            assert len(catalog.strategy_rows(item.name, model)) == 5, (item.name, model)


def test_a_strategy_that_does_not_cover_a_model_is_refused():
    with pytest.raises(CatalogError, match="Known here: memory_optimized, minimal_communication"):
        catalog.strategy("balanced", "h100", "gpt3-175b")


def test_published_results_refer_to_known_models_and_accelerators():
    from scalebook.facts.flops import CONVENTIONS

    rows = catalog.published()
    assert len({row.id for row in rows}) == len(rows) > 800
    for row in rows:
        assert row.model is None or catalog.model(row.model)
        assert row.accelerator is None or catalog.accelerator(row.accelerator)
        assert row.flops_convention is None or row.flops_convention in CONVENTIONS
        assert row.claimed_mfu is None or 0 < row.claimed_mfu < 1


def test_every_published_result_has_a_model_or_says_why_none_can_be_stated():
    without = [row for row in catalog.published() if row.model is None]
    assert len(without) == 16  # of 26 before DeepSeek V4 and others
    assert all("no model: " in (row.caveat or "") for row in without)


def test_a_users_file_adds_rows(own):
    own(
        ACCELERATOR
        + MODEL
        + """
[[platforms]]
name = "x1"
vendor = "nvidia"
accelerator = "X1"
gpus_per_node = 4
default_precision = "bf16"
source = "own"

[[strategies]]
name = "wide"
platform = "x1"
model = "mine-1b"
tensor_parallel_size = 4
source = "own"

[[published]]
id = "own-1"
source = "own table"
model = "mine-1b"
tokens_per_second_per_gpu = 1000
"""
    )
    assert catalog.peak_tflops("ACME X1", "bf16") == (100.0, None)
    assert catalog.model("mine-1b@2").num_layers == 2
    assert catalog.strategy("wide", "x1", "mine-1b").tensor_parallel_size == 4
    assert catalog.published()[-1].tokens_per_second_per_gpu == 1000
    assert catalog.platform("h100").gpus_per_node == 8


def test_the_documented_example_is_a_valid_catalog(own, root):
    text = (root / "src" / "scalebook" / "facts" / "catalog" / "README.md").read_text(
        encoding="utf-8"
    )
    own(text.split("```toml")[1].split("```")[0])
    assert catalog.model("mine-1b@4").num_layers == 4
    assert catalog.strategy("wide", "x1", "mine-1b").tensor_parallel_size == 4
    assert catalog.peak_tflops("NVIDIA X1", "fp8") == (200.0, None)
    assert catalog.published()[-1].model == "mine-1b"


def test_a_users_row_overrides_the_keys_that_it_gives(own):
    own('[[platforms]]\nname = "h100"\ngpus_per_node = 4\nsource = "our racks"\n')
    found = catalog.platform("h100")
    assert (found.gpus_per_node, found.accelerator) == (4, "H100-SXM5-80GB")
    assert found.source == "our racks"


def test_a_changed_file_is_read_again(own):
    path = own('[[platforms]]\nname = "h100"\ngpus_per_node = 4\nsource = "a"\n')
    assert catalog.platform("h100").gpus_per_node == 4
    path.write_text('[[platforms]]\nname = "h100"\ngpus_per_node = 2\nsource = "a"\n')
    os.utime(path, ns=(1, 1))
    assert catalog.platform("h100").gpus_per_node == 2


def test_a_file_of_the_project_counts_below_it_and_a_named_file_overrides_it(own, monkeypatch):
    row = '[[platforms]]\nname = "h100"\ngpus_per_node = {}\nsource = "own"\n'
    path = own(row.format(2), ".scalebook.toml")
    monkeypatch.delenv("SCALEBOOK_CATALOG")
    (path.parent / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(path.parent / "deep" / "er")
    assert catalog.platform("h100").gpus_per_node == 2
    own(row.format(3))
    assert catalog.platform("h100").gpus_per_node == 3


def test_a_project_file_above_the_repository_does_not_count(own, monkeypatch):
    path = own('[[platforms]]\nname = "h100"\ngpus_per_node = 2\nsource = "a"\n', ".scalebook.toml")
    monkeypatch.delenv("SCALEBOOK_CATALOG")
    (path.parent / "clone" / ".git").mkdir(parents=True)
    monkeypatch.chdir(path.parent / "clone")
    assert catalog.platform("h100").gpus_per_node == 8


BAD_ROWS = {
    "unknown key": ('vendor = "acme"', 'vendor = "acme"\nbf16 = 3', "line 5: .*Unknown key 'bf16'"),
    "misspelt key": ("memory_gb", "memory_bg", "line 2: .*memory_gb is missing"),
    "no source": ('source = "data sheet"\n', "", "line 2: .*source is missing"),
    "empty source": ('"data sheet"', '" "', "line 7: .*source=' ' must be"),
    "negative": ("memory_gb = 64", "memory_gb = -64", "line 5: .*memory_gb=-64 must be"),
    "zero": ("memory_gb = 64", "memory_gb = 0", "line 5: .*memory_gb=0 must be"),
    "not a number": ("memory_gb = 64", "memory_gb = nan", "line 5: .*memory_gb=nan must be"),
    "enormous": ("memory_gb = 64", f"memory_gb = 1{'0' * 400}", "line 5: .*memory_gb=1000"),
    "infinite": ("bf16 = 100", "bf16 = inf", "line 8: .*peak_tflops.bf16=inf must be"),
    "true": ("bf16 = 100", "bf16 = true", "line 8: .*peak_tflops.bf16=True must be"),
    "text for a number": ("= 64", '= "64"', "line 5: .*memory_gb='64' must be"),
    "precision": ("bf16 = 100", "bf17 = 100", "line 8: .*Did you mean 'bf16'"),
    "device names": ('["ACME X1"]', '"ACME X1"', "line 6: .*device_names='ACME X1' must be a list"),
    "peaks": ("{ bf16 = 100 }", "100", "line 8: .*peak_tflops=100 must be a table"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_refused_with_its_file_and_line(own, name):
    old, new, message = BAD_ROWS[name]
    assert old in ACCELERATOR
    path = own(ACCELERATOR.replace(old, new))
    with pytest.raises(CatalogError, match=message) as error:
        catalog.accelerators()
    assert first_line(error).startswith(f"{path} line ")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_layers = 16", "num_layers = 16.5", "num_layers=16.5 must be a whole number"),
        ("num_layers = 16", "num_layers = true", "num_layers=True must be a whole number"),
        ('"mine-1b"', '"Mine 1B"', "must be lower case"),
        ('"mine-1b"', '"mine@2"', "must be lower case"),
        ('"mine-1b"', '"<b>mine"', "must be lower case"),
        ("num_query_groups = 4", "num_query_groups = 5", "not a multiple of num_query_groups=5"),
        ('"rms"', '"batch"', "must be one of rms, layer"),
        ("gated_mlp = true", 'gated_mlp = "yes"', "must be true or false"),
        (
            'source = "own config"',
            'source = "x"\nmoe = { num_experts = 2, top_k = 3, ffn_hidden_size = 8 }',
            "top_k=3 is more than num_experts=2",
        ),
        (
            'source = "own config"',
            'source = "x"\nmoe = { num_experts = 2, top_k = 1, ffn = 8 }',
            "ffn_hidden_size is missing",
        ),
        ('source = "own config"', 'source = "x"\npadded_vocab_size = 100', "below vocab_size"),
        (
            'source = "own config"',
            'source = "x"\nhybrid = { pattern = "M*", mamba_num_heads = 4, mamba_head_dim = 8, '
            "mamba_num_groups = 1, mamba_state_dim = 8 }",
            "a letter of M .* for each of 16 layers",
        ),
    ],
)
def test_a_bad_model_is_refused(own, old, new, message):
    assert old in MODEL
    own(MODEL.replace(old, new))
    with pytest.raises(CatalogError, match=message) as error:
        catalog.models()
    assert " line " in first_line(error)


def test_rows_that_refer_to_nothing_are_refused(own):
    own('[[platforms]]\nname = "h100"\naccelerator = "H1000"\nsource = "x"\n')
    with pytest.raises(CatalogError, match=r"line 3: .*Unknown accelerator 'H1000'"):
        catalog.platforms()
    own('[[strategies]]\nname = "s"\nplatform = "h1000"\nsource = "x"\n')
    with pytest.raises(CatalogError, match=r"line 3: .*Unknown platform 'h1000'"):
        catalog.strategy_rows("h100", "llama3.1-8b")


def test_one_name_twice_in_a_file_is_refused(own):
    own(MODEL + MODEL)
    with pytest.raises(CatalogError, match=r"line 18: .*twice"):
        catalog.models()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[models]\n", "is not valid TOML: .*line 1"),
        (f"[[models]]\nnum_layers = {'9' * 5000}\n", "is not valid TOML"),
        (f"a = {'[' * 5000}\n", "is not valid TOML"),
        ("[[model]]\nname = 'x'\n", "Unknown table 'model'.*Did you mean 'models'"),
        ("[models]\nname = 'x'\n", r"under its own \[\[models\]\]"),
        ("models = 3\n", r"under its own \[\[models\]\]"),
        ("[[models]]\nsource = 'x'\n", "line 1: models: name is missing"),
        ("[[models]]\nname = 3\nsource = 'x'\n", "line 2: .*name=3"),
    ],
)
def test_a_broken_file_is_refused(own, text, message):
    own(text)
    with pytest.raises(CatalogError, match=message) as error:
        catalog.models()
    first_line(error)


def test_a_file_that_is_missing_or_not_text_is_refused(own, tmp_path, monkeypatch):
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    for name in ("none.toml", "bytes.toml"):
        monkeypatch.setenv("SCALEBOOK_CATALOG", str(tmp_path / name))
        with pytest.raises(CatalogError, match="cannot be read"):
            catalog.models()


def test_rows_written_inline_are_read_without_a_guessed_line():
    rows = parse('platforms = [{ name = "a", source = "x" }]', "f.toml")["platforms"]
    assert str(rows[0].error("bad", "name")) == "f.toml: platforms 'a': bad"


def test_a_child_process_sees_the_users_file(own):
    own(MODEL)
    code = "from scalebook.facts import catalog; print(catalog.model('mine-1b').num_layers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "16"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
GOOD_ROWS = {kind: rows[0] for kind, rows in parse(ACCELERATOR + MODEL, "f.toml").items()}


@given(st.sampled_from(sorted(GOOD_ROWS)), st.data())
def test_any_value_in_a_row_is_taken_or_refused_in_one_line(kind, data):
    good = GOOD_ROWS[kind]
    key = data.draw(st.sampled_from([*good.values, "moe", "mla", "notes", "extra"]))
    row = TomlRow(kind, {**good.values, key: data.draw(VALUES)}, "f.toml", 1)
    try:
        (build.model if kind == "models" else build.accelerator)(row)
    except CatalogError as error:
        assert "\n" not in str(error)
        assert str(error).startswith("f.toml line 1: ")


@given(st.text(max_size=40) | st.text("[]={}modelsabc\"'\n .", max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        parse(text, "f.toml")
    except CatalogError as error:
        assert "\n" not in str(error)


def number(text):
    return float(text) if text else None


# The data sheet prints a digit more than the golden table.
SHEETS = {("L40S", "bf16"): 362.05, ("L40S", "fp16"): 362.05}


def test_every_accelerator_has_the_figures_of_the_golden_table(root):
    known = {item.name: item for item in catalog.accelerators()}
    with (root / "tests/golden/accelerators.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 30
    for row in rows:
        item = known[row["name"]]
        for column in (
            "memory_gb",
            "memory_bandwidth_tb_per_second",
            "interconnect_gb_per_second",
            "tdp_watts",
        ):
            assert getattr(item, column) == number(row[column]), (item.name, column)
        for precision in ("bf16", "fp8"):
            assert item.sparse_peak_tflops.get(precision) == number(row[f"sparse_{precision}"])
        for precision in ("fp32", "fp32_matrix", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"):
            place = item.name, precision
            right = SHEETS.get(place, number(row[precision]))
            assert item.peak_tflops.get(precision) == right, place


def test_every_published_rate_is_the_one_of_its_source(root):
    known = {row.id: row for row in catalog.published()}
    with (root / "tests/golden/published.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(known) > 800
    for row in rows:
        item = known[row["id"]]
        assert item.source == row["source"]
        assert item.tokens_per_second_per_gpu == number(row["tokens_per_second_per_gpu"])
        assert item.claimed_tflops_per_second_per_gpu == number(row["tflops_per_second_per_gpu"])
        claimed = number(row["mfu_percent"])
        assert item.claimed_mfu == (None if claimed is None else pytest.approx(claimed / 100))


def test_values_print_as_json():
    from scalebook.cli.terminal import plain

    for item in (*catalog.accelerators(), *catalog.models(), *catalog.published()):
        json.dumps(plain(item), allow_nan=False)
