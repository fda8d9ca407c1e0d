"""Claims about reading the tables of a document."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.audit import Claims, audit, load, read_document
from scalebook.audit.knowledge import accelerator_of
from scalebook.cli import main
from scalebook.errors import ClaimError

MARKDOWN = """\
# Results

| Setup | Model | GPU | # GPUs | Seq len | Tokens/s/GPU | MFU | Remark |
|---|:-:|---:|---|---|---|---|---|
| **TP=2, PP=1** | Llama 3.1 8B | H100 | 8 | 8K | 7,771 | 40.4% | best |
| no fusion[1] | `Llama 3.1 8B` | NVIDIA H100 | 8 | 8K | 7,000 | 58.2% | - |
"""


def wrong(claims: Claims) -> list[tuple[str, str]]:
    """The field and the stated text of every claim that is wrong."""
    checks = audit(claims).checks
    return [(c.field, c.stated) for c in checks if c.verdict in ("contradicts", "impossible")]


def test_a_markdown_table_is_read_with_its_names_lines_and_sizes():
    claims = read_document(MARKDOWN, ".md", "page.md")
    first, second = claims.rows
    assert (first.table, first.label, first.line) == ("Results", "TP=2, PP=1", 5)
    assert first.words["model"] == "llama3.1-8b"
    assert first.words["accelerator"] == "H100"
    assert {name: value.text for name, value in first.values.items()} == {
        "gpus": "8", "sequence_length": "8K", "tokens_per_second_per_gpu": "7,771", "mfu": "40.4%",
        "tensor_parallel_size": "2", "pipeline_parallel_size": "1",
    }  # fmt: skip
    assert second.label == "no fusion"
    assert claims.unread == ("'Remark' of 'Results'",)
    # 7,771 x 51.47 GFLOP / 989.4 = 40.4 %; 7,000 give 36.4 % (2:4 sparsity or not, never 58.2 %)
    assert wrong(claims) == [("mfu", "58.2%")]


def test_html_and_separated_values_say_the_same_as_markdown():
    cells = [["GPUs", "Step time (ms)", "Elapsed time", "Steps"], ["8", "250", "25 min", "6,000"]]
    rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells)
    html = read_document(f"<h2>Runs</h2><table>{rows}</table>", ".html", "a.html")
    tsv = read_document("\n".join("\t".join(row) for row in cells), ".tsv", "a.tsv")
    quoted = "\n".join(",".join(f'"{cell}"' for cell in row) for row in cells)
    for claims in (html, tsv, read_document(quoted, ".csv", "a.csv")):
        (row,) = claims.rows
        assert set(row.values) == {"gpus", "step_milliseconds", "elapsed_minutes", "steps"}
        assert wrong(claims) == []  # 6,000 x 0.25 s = 1,500 s = 25 min
    assert html.rows[0].table == "Runs"


def test_characters_that_html_writes_by_number_are_read():
    cells = "<tr><th>GPUs</th><th>Tokens&#47;s</th></tr><tr><td>8</td><td>1&#44;200</td></tr>"
    (row,) = read_document(f"<table>{cells}</table>", ".html", "a.html").rows
    assert row.values["tokens_per_second"].value == 1200


def test_the_smallest_row_that_says_100_percent_is_the_base():
    text = "GPUs,Tokens/s,Efficiency\n8,100,100%\n16,190,95%\n32,300,94%\n"
    assert wrong(read_document(text, ".csv", "a.csv")) == [("scaling_efficiency", "94%")]


def test_rates_of_two_models_are_not_compared():
    text = "Model,GPUs,Tokens/s,Efficiency\nA,8,100,100%\nB,16,19,95%\n"
    assert wrong(read_document(text, ".csv", "a.csv")) == []


def test_before_and_after_make_a_ratio():
    text = (
        "Model,Baseline (tokens/sec),Optimized (tokens/sec),Speedup\na,100,320,3.2x\nb,100,200,3x\n"
    )
    assert wrong(read_document(text, ".csv", "a.csv")) == [("ratio", "3")]
    nameless = "\n".join(line.partition(",")[2] for line in text.splitlines())
    assert wrong(read_document(nameless, ".csv", "a.csv")) == [("ratio", "3")]


def test_a_factor_is_a_ratio_only_beside_what_it_is_of():
    alone = read_document("GPUs,Tokens/s,Factor\n8,100,2x\n", ".csv", "a.csv")
    assert set(alone.rows[0].values) == {"gpus", "tokens_per_second"}
    assert [text.partition(" of ")[0] for text in alone.unread] == ["'Factor'"]


def test_a_heading_that_stands_twice_or_has_two_meanings_is_listed_and_not_guessed():
    text = "Nodes,Tokens/s (Linear),Tokens/s (90% Eff),TFLOPS,Daily tokens\n1,100,90,400,8.64M\n"
    claims = read_document(text, ".csv", "a.csv")
    assert set(claims.rows[0].values) == {"nodes", "tokens_per_day"}
    assert [text.partition(" of ")[0] for text in claims.unread] == [
        "'Tokens/s (Linear)'", "'Tokens/s (90% Eff)'", "'TFLOPS'"
    ]  # fmt: skip


def test_a_number_without_a_needed_unit_is_listed():
    claims = read_document("GPUs,Elapsed time\n8,25\n", ".csv", "a.csv")
    assert claims.unread == ("'25' under 'Elapsed time', line 2",)


@pytest.mark.parametrize(
    ("heading", "cell", "value"),
    [("MFU", "40-45%", 0.425), ("MFU", "forty", None), ("Elapsed time", "20-25", None)],
)
def test_a_range_is_its_middle_where_no_unit_is_needed(heading, cell, value):
    claims = read_document(f"GPUs,{heading}\n8,{cell}\n", ".csv", "a.csv")
    assert [claims.rows[0].values[name].value for name in ("mfu",) if value] == (
        [pytest.approx(value)] if value else []
    )
    assert claims.unread == (() if value else (f"'{cell}' under '{heading}', line 2",))


@pytest.mark.parametrize(
    ("cell", "field", "value"),
    [
        ("145K tok/s", "tokens_per_second", 145_000),
        ("12.5 samples/s", "samples_per_second", 12.5),
        ("7,771 tokens/s/GPU", "tokens_per_second_per_gpu", 7771),
    ],
)
def test_the_unit_of_a_throughput_says_what_it_is_of(cell, field, value):
    (row,) = read_document(f"GPUs\tThroughput\n8\t{cell}\n", ".tsv", "a.tsv").rows
    assert row.values[field].value == value


def test_audit_reads_a_document_lists_what_it_could_not_map_and_exits_with_1(capsys, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(MARKDOWN)
    assert main(["audit", str(path)]) == 1
    out = capsys.readouterr().out
    assert "line 6  no fusion: mfu = 58.2%, should be" in out
    assert "Not read:\n  'Remark' of 'Results'" in out
    assert main(["audit", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unread"] == ["'Remark' of 'Results'"]


def test_a_document_without_a_known_table_is_an_error_with_its_headings(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("| Name | Colour |\n|---|---|\n| a | red |\n")
    with pytest.raises(ClaimError, match=r"no table with a known heading.*'Colour'"):
        load(path)


@given(st.text(max_size=300), st.sampled_from([".md", ".html", ".csv", ".tsv"]))
def test_no_document_breaks_the_reader(text, suffix):
    for whole in (text, f"| GPUs | MFU |\n|---|---|\n| {text} | {text} |"):
        try:
            audit(read_document(whole, suffix, "x"))
        except ClaimError as error:
            assert "\n" not in str(error)


def test_lists_of_a_document_are_claims_too(tmp_path, capsys):
    """390 of 989.4 are 39.4 %; 1979 is the sparse peak of an H100, 312 the dense one of an A100."""
    path = tmp_path / "notes.txt"
    path.write_text(
        "### GPT-462B\n\n- **GPUs**: 6144 H100\n- **MFU**: 47-48%\n"
        "- **Throughput**: ~390 TFlops/GPU\n"
        "\n### NVIDIA H100 (Hopper)\n- **Peak Performance**:\n  - BF16: 1979 TFlops\n"
        "  - FP8: 1978.9 TFlops\n- **Memory**: 80GB HBM3\n"
        "\n### NVIDIA A100\n* Peak:\n  * FP16: 312 TFLOPS (with sparsity)\n  * BF16: 312 TFLOPS\n"
        "\n### NVIDIA Nemotron-4 340B\n- **Architecture**: Mixture of Experts\n"
        "- **Framework**: NeMo\n"
        "\n### Speed\n- Result: 1.11x faster\n- Steps: 12\n"
    )
    assert main(["audit", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    checks = [(one["line"], one["field"], one["verdict"]) for one in found["checks"]]
    wrong = [one[:2] for one in checks if one[2] == "contradicts"]
    assert wrong == [
        (3, "mfu"),
        (9, "peak_tflops_per_second"),
        (15, "sparse_peak_tflops_per_second"),
        (19, "architecture"),
    ]
    assert (10, "peak_tflops_per_second", "holds") in checks
    assert (16, "peak_tflops_per_second", "holds") in checks
    assert all(field != "gpus" for line, field, _ in checks if line > 20)


def test_a_claims_file_may_be_called_a_text_file(tmp_path):
    path = tmp_path / "claims.txt"
    path.write_text(
        'title = "a"\nsource = "b"\n[[claims]]\nlabel = "x"\naccelerator = "h100"\n'
        'precision = "bf16"\npeak_tflops_per_second = "1979"\n'
    )
    assert wrong(load(path)) == [("peak_tflops_per_second", "1979")]


def test_each_size_of_a_list_of_valid_sizes_is_a_claim():
    """Qwen 2.5 7B has 4 key-value groups: 7 ranks cannot share them."""
    table = "| Model | Layers | Valid TP Values |\n|---|---|---|\n| Qwen 2.5 7B | 28 | 1, 2, 7 |\n"
    listed = "## Sizes\n\n**Qwen 2.5 7B:**\n- Valid TP: 1, 2, 7\n- Heads: 28\n"
    for text in (table, listed):
        claims = read_document(text, ".md", "a.md")
        assert wrong(claims) == [("tensor_parallel_size", "7")]
        assert claims.unread == ()


def test_tflops_above_what_a_gpu_reaches_are_of_all_and_the_text_says_of_how_many():
    """4,000 / 8 / 1,307.4 = 38.2 %, so there are 8 GPUs; 3,600 / 8 / 989.4 = 45.5 %."""
    text = (
        "A run of 8 GPUs.\n\n## Compared\n\n| Platform | TFLOPS | Utilization |\n|---|---|---|\n"
        "| AMD MI300X | 4,000 | 38.2% |\n| NVIDIA H100 | 3,600 | 22.7% |\n"
    )
    assert wrong(read_document(text, ".md", "a.md")) == [("mfu", "22.7%")]
    # of 64 GPUs no row is right, so they are of something else
    other = read_document(text.replace("8 GPUs", "64 GPUs"), ".md", "a.md")
    assert wrong(other) == []
    # a GPU may reach 500; 3,958 is a peak of the maker
    for cell in ("500", "3,958"):
        with pytest.raises(ClaimError, match="'TFLOPS' of 'Compared': of one GPU or of all"):
            read_document(text.replace("3,600", cell), ".md", "a.md")


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("H100: 1979 TFLOPS BF16", [("peak_tflops_per_second", "1979")]),
        ("- **NVIDIA H100**: 989 TFLOPS per GPU (BF16 dense)", []),
        ("- AMD MI300X: 1,307 TFLOPS per GPU\n- H100: 1,979 TFLOPS per GPU",
         [("peak_tflops_per_second", "1,979")]),
        ("MI300X: 500 / 1,307 = 38.3%\nH100: 450 / 1,979 = 22.7%",
         [("peak_tflops_per_second", "1,979"), ("mfu", "22.7%")]),
        ("H100: 450 TFLOPS per GPU BF16", []),  # a rate that was reached
    ],
)  # fmt: skip
def test_a_peak_of_a_device_in_the_text_is_a_claim(lines, found):
    text = f"# Peaks\n\n{lines}\n\n| GPUs | MFU |\n|---|---|\n| 8 | 40% |\n"
    assert wrong(read_document(text, ".md", "a.md")) == found


def test_a_peak_without_a_precision_is_listed():
    """1,979 is the sparse BF16 peak and the dense FP8 one."""
    text = "H100: 1,979 TFLOPS\n\n| GPUs | MFU |\n|---|---|\n| 8 | 40% |\n"
    claims = read_document(text, ".md", "a.md")
    assert claims.unread == ("'1,979' of 'H100', a peak without its precision",)
    assert wrong(claims) == []


TIMES = """\
## Hardware Setup

- **Instance**: 8x NVIDIA A100 40GB
- **Cluster**: 4 nodes (32 GPUs total)

## Time to train (7B Model)

| Dataset size | Baseline time | Optimized time |
|---|---|---|
| 100B tokens | 18.3 hours | 2,000 hours |

## Strategies

| Strategy | Model size limit |
|---|---|
| DDP | 7B |
| FSDP | 175B+ |
"""


def test_times_side_by_side_are_of_the_hardware_of_the_document():
    """6 x 7e9 x 100e9 / (18.3 x 3600) / 32 = 1,992 TFLOP/s; 112 GB of state are above 40 GB."""
    claims = read_document(TIMES, ".md", "a.md")
    assert set(wrong(claims)) == {("elapsed_hours", "18.3"), ("parameters", "7B")}
    assert claims.rows[0].given == {"gpus", "accelerator", "parameters"}
    # a table of another machine is not of this one
    other = TIMES.replace("| Baseline", "| GPU | Baseline").replace("|\n| 100B", "---|\n| 100B")
    other = other.replace("tokens |", "tokens | a chip |")
    assert ("elapsed_hours", "18.3") not in wrong(read_document(other, ".md", "a.md"))


@pytest.mark.parametrize(
    ("above", "given"),
    [
        ("All runs of Llama 3.1 8B on 8 H100 GPUs in BF16:",
         {"model": "llama3.1-8b", "accelerator": "h100", "gpus": "8", "precision": "bf16"}),
        ("Runs on H100, compared to A100 and FP8.", {"accelerator": "h100"}),
        ("Runs on H100 and A100.", {}),
    ],
)  # fmt: skip
def test_the_text_above_a_table_states_facts_of_its_rows(above, given):
    table = "| Setup | Seq len | Tokens/s/GPU |\n|---|---|---|\n| a | 8K | 7,771 |\n"
    text = f"# Runs\n\n{above}\n\n{table}"
    (row,) = read_document(text, ".md", "a.md").rows
    told = {name: row.words.get(name) or row.values[name].text for name in row.given}
    assert told == given


def test_the_model_of_the_text_is_not_that_of_rows_that_name_their_own():
    """Llama 3.1 8B has no experts; the row is of another model, which the catalog may not have."""
    text = "Runs of Llama 3.1 8B on GPUs:\n\n| Run | EP | GPUs |\n|---|---|---|\n| {} | 2 | 4 |\n"
    own = read_document(text.format("DeepSeek-V2-Lite, 6 layers"), ".md", "a.md")
    assert wrong(own) == []
    assert "model" not in own.rows[0].words
    assert wrong(read_document(text.format("a"), ".md", "a.md")) == [("expert_parallel_size", "2")]


def test_a_year_before_a_device_is_no_count_of_gpus():
    (row,) = read_document("Run,MFU\nMarch 2026 H100,40%\n", ".csv", "a.csv").rows
    assert set(row.values) == {"mfu"}
    (row,) = read_document("Run,MFU\n512 H100s,40%\n", ".csv", "a.csv").rows
    assert row.values["gpus"].value == 512


def test_a_model_may_be_named_by_two_columns():
    """Mixtral 8x7B has 46.7 billion parameters, of which a token meets 12.9."""
    text = (
        "| Model | Active params | Total params | GPUs |\n|---|---|---|---|\n"
        "| Mixtral | 12.9B (active) | 8×7B (56B) | 64 |\n"
    )
    assert wrong(read_document(text, ".md", "a.md")) == [("parameters", "56B")]


def test_a_worked_example_in_a_list_is_of_the_model_that_introduces_it():
    """2 N are 350 GFLOP a token; a step of 1536 x 2048 tokens on 512 GPUs is 1,229 tokens/s/GPU."""
    text = (
        "## Formula\n\n**Example (GPT-3 175B)**:\n- Per-token FLOPs: ~350 billion for 175B model\n"
        "- Batch size: 1536 (global)\n- Sequence length: 2048\n"
        "- Time per iteration: ~5 seconds on 512 H100s\n- Throughput: ~390 TFlops/GPU on H100\n"
    )
    assert wrong(read_document(text, ".md", "a.md")) == [
        ("flops_per_token", "~350 billion"), ("model_tflops_per_second_per_gpu", "~390")
    ]  # fmt: skip


BLOCK = """\
```json
{"run": {
    "num_gpus": 8,
    "tensor_model_parallel_size": 4,
    "data_parallel_size": 2,
    "global_batch_size": 128,
    "sequence_length": 2048,
    "tokens_per_second": 11113,
    "tokens_per_second_per_gpu": 2000,
    "avg_step_time_seconds": 23.59
}}
```
"""


def test_a_block_of_settings_is_one_row_unless_a_name_stands_twice():
    """128 x 2048 / 23.59 = 11,112 tokens/s, of 8 GPUs 1,389 each."""
    assert wrong(read_document(BLOCK, ".md", "a.md")) == [("tokens_per_second_per_gpu", "2000")]
    twice = BLOCK.replace('    "num_gpus": 8,', '    "num_gpus": 8,\n    "num_gpus": 16,')
    table = "| GPUs | MFU |\n|---|---|\n| 8 | 40% |\n"
    claims = read_document(f"{table}\n{twice}", ".md", "a.md")
    assert wrong(claims) == []
    assert claims.unread == ("the block above line 17, which has a name twice",)


def test_a_share_of_a_rate_is_no_rate_and_two_counts_are_none():
    text = "Strategy,GPUs,Throughput\nFSDP,8,0.92x\n"
    assert set(read_document(text, ".csv", "a.csv").rows[0].values) == {"gpus"}
    listed = "- Instance: 8x A100\n- Cluster: 4 nodes (32 GPUs)\n- Steps: 12\n- Batch size: 64\n"
    assert "gpus" not in read_document(listed, ".md", "a.md").rows[0].values


@pytest.mark.parametrize(
    ("heading", "cell", "told"),
    [
        ("MFU (%)", "40.4", []), ("MFU [%]", "40.4", []), ("MFU", "40.4", []),
        ("MFU", "40.4%", []), ("MFU", "0.404", []), ("MFU (%)", "0.6", [("mfu", "0.6%")]),
        ("MFU", "61.3", [("mfu", "61.3%")]), ("MFU", "1.2", [("mfu", "1.2"), ("mfu", "1.2")]),
    ],
)  # fmt: skip
def test_a_column_of_percentages_need_not_say_so_in_its_cells(heading, cell, told):
    """7,771 tokens/s of 51.47 GFLOP are 40.4 % of an H100's 989.4 TFLOP/s."""
    text = (
        f"| Model | GPU | Seq len | Tokens/s/GPU | {heading} |\n|---|---|---|---|---|\n"
        f"| Llama 3.1 8B | H100 | 8192 | 7,771 | {cell} |\n"
    )
    assert wrong(read_document(text, ".md", "page.md")) == told


def test_a_table_in_short_words_is_read_whole():
    """By hand: 8 x 3 x 6 = 144 samples of 8,192 tokens; 460.7 of FP8's 1,978.9 are 23.28 %."""
    text = (
        "## H100 80GB FP8\n"
        "| Model | SeqLen (T) | # GPUs | GPU | MFU | Model TFLOP/s/GPU | MicroBatchSize |"
        " GradAccum | GlobalBatchSize | Throughput (T/s) | Throughput (T/s/GPU) |"
        " GlobalBatchSize (T) |"
        " Precision | NumParams |\n" + "|---" * 14 + "|\n"
        "| 3b | 8192 | 8 | h100_80gb | 23.28 | 460.7 | 3 | 6 | 144 | 153174 | 19146 | 1179648 |"
        " amp_fp8 | 2667566080 |\n"
    )
    (row,) = read_document(text, ".md", "page.md").rows
    assert (row.words["precision"], row.words["accelerator"]) == ("fp8", "h100 80gb")
    assert {name: row.values[name].value for name in (
        "gpus", "micro_batch_size", "num_microbatches", "global_batch_size", "tokens_per_step",
        "tokens_per_second", "tokens_per_second_per_gpu", "parameters", "mfu",
    )} == {
        "gpus": 8, "micro_batch_size": 3, "num_microbatches": 6, "global_batch_size": 144,
        "tokens_per_step": 1179648, "tokens_per_second": 153174,
        "tokens_per_second_per_gpu": 19146, "parameters": 2667566080, "mfu": 0.2328,
    }  # fmt: skip
    checks = audit(read_document(text, ".md", "page.md")).checks
    holding = {check.field for check in checks if check.verdict == "holds"}
    assert {"mfu", "tokens_per_step", "tokens_per_second_per_gpu"} <= holding
    assert wrong(read_document(text, ".md", "page.md")) == []
    halved = text + text.splitlines()[-1].replace("23.28", "46.56")  # over the peak of BF16
    assert wrong(read_document(halved, ".md", "a.md"))[0][0] == "mfu"
    assert wrong(read_document(text.replace("23.28", "46.56"), ".md", "a.md")) == []
    assert wrong(read_document(text.replace("23.28", "36.56"), ".md", "a.md"))[0][0] == "mfu"


def test_a_batch_of_millions_is_of_tokens_to_a_power_of_two_or_ten():
    head = "| GPU Num | Seq Len | Micro Bsz | Micro Num | Global Bsz |\n|---|---|---|---|---|\n"
    assert wrong(read_document(f"{head}| 8 | 2048 | 8 | 1 | 0.125M |\n", ".md", "a.md")) == []
    (row,) = read_document(f"{head}| 8 | 2048 | 8 | 1 | 4M |\n", ".md", "a.md").rows
    assert row.values["tokens_per_step"].value == 4e6


@pytest.mark.parametrize(
    ("heading", "cell", "field", "value"),
    [
        ("Model TFLOPs/sec/GPU", "410", "model_tflops_per_second_per_gpu", 410),
        ("TFLOP/s/rank", "410", "model_tflops_per_second_per_gpu", 410),
        ("TFLOP<br>/chip/sec", "410", "model_tflops_per_second_per_gpu", 410),
        ("Max seq", "8K", "sequence_length", 8000), ("nnodes", "4", "nodes", 4),
        ("Number of GPU", "8", "gpus", 8), ("Peak mem (MiB)", "51200", "memory_gb", 50),
        ("Peak reserved memory", "37.5GiB", "memory_gb", 37.5), ("wall time (s)", "9",
         "elapsed_seconds", 9),
    ],
)  # fmt: skip
def test_a_heading_is_known_in_the_words_of_benchmark_tables(heading, cell, field, value):
    (row,) = read_document(f"| Run | {heading} |\n|---|---|\n| a | {cell} |\n", ".md", "a.md").rows
    assert {name: found.value for name, found in row.values.items()} == {field: value}


@pytest.mark.parametrize(
    ("written", "device"),
    [
        ("H100 SXM", "H100-SXM5-80GB"), ("h100_80gb", "H100-SXM5-80GB"),
        ("DGX H100", "H100-SXM5-80GB"), ("NVIDIA H100 80GB SXM5", "H100-SXM5-80GB"),
        ("H100 PCIe", "H100-PCIe-80GB"),
        ("a100_40gb", "A100-SXM4-40GB"), ("A100 80GB", "A100-SXM4-80GB"), ("Gaudi 2", "Gaudi2"),
        ("8x H200 SXM", "H200-SXM-141GB"), ("GB200 NVL72", "GB200"), ("RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X OAM", "MI300X"), ("80GB", None), ("GPU", None), ("8", None),
        ("A100 MIG 1g.10gb", None), ("H900 SXM", None),
    ],
)  # fmt: skip
def test_a_device_is_known_however_people_write_it(written, device):
    text = f"| GPU | Tokens/s/GPU |\n|---|---|\n| {written} | 7,771 |\n"
    (row,) = read_document(text, ".md", "a.md").rows
    found = accelerator_of(row)
    assert (found.name if found else None) == device


def test_the_memory_that_a_list_of_devices_gives_them_is_no_memory_in_use():
    head = "| GPU | Memory (GB) | Bandwidth (GB/s) |\n|---|---|---|\n"
    assert wrong(read_document(f"{head}| MI250X | 128 | 3276.8 |\n", ".md", "a.md")) == []
    runs = "| GPU | GPUs | Memory (GB) |\n|---|---|---|\n"
    assert wrong(read_document(f"{runs}| H100 | 8 | 95 |\n", ".md", "a.md")) == [
        ("memory_gb", "95")
    ]
    # 80 GiB are 85.9 GB
    assert wrong(read_document(f"{runs}| H100 | 8 | 85 |\n", ".md", "a.md")) == []


def test_an_impossible_time_is_said_once():
    """10^11 tokens of 6 x 7e9 FLOPs in 5 hours on 32 A100s are 7,292 TFLOP/s of each."""
    text = (
        "| Dataset size | Model size | GPU | GPUs | Training time |\n|---|---|---|---|---|\n"
        "| 100B tokens | 7B | A100 | 32 | 5 hours |\n"
    )
    assert wrong(read_document(text, ".md", "a.md")) == [("elapsed_hours", "5")]


def table(head: str, *rows: str, above: str = "# In BF16\n\n") -> Claims:
    cells = "".join(f"|{row}|\n" for row in (head, "|".join("-" * len(head.split("|"))), *rows))
    return read_document(above + cells, ".md", "a.md")


def test_a_size_that_is_the_models_name_is_not_accused():
    # gpt-oss-120b has 116.8 billion parameters, Qwen3-30B-A3B 30.5 of which 3.3
    assert wrong(table("Model|Parameters", "gpt-oss-120b|120B", "Qwen3-30B-A3B|30B")) == []
    # the experts share attention: 46.7 billion, not 56
    assert wrong(table("Model|Parameters", "Mixtral-8x7B|56B")) == [("parameters", "56B")]
    assert wrong(table("Model|Parameters", "gpt-oss-120b|130B")) == [("parameters", "130B")]


def test_a_rate_from_whole_samples_is_as_coarse_as_these():
    # 1,024 x 256 / 8,192 = 32 samples/s, so 31.5 to 32.5: 2,584 TFLOP/s +- 1.6 %
    head = "Model|#-GPUs|Seq len|Tokens/s/GPU|Model TFLOP/s/GPU"
    assert wrong(table(head, "Llama 3.1 405B|256|8192|1024|2617")) == []
    assert wrong(table(head, "Llama 3.1 405B|256|8192|1024|2800"))
    assert wrong(table(head, "Llama 3.1 405B|256|8192|1025|2617"))


def test_data_parallel_ranks_may_be_those_of_the_experts():
    head = "GPUs|TP|PP|CP|EP|DP"
    assert wrong(table(head, "256|1|16|1|16|1", "512|1|16|1|16|2")) == []
    assert wrong(table(head, "256|1|16|1|8|1")) == [("gpus", "256")]


def test_nodes_of_so_many_gpus_are_not_that_many_gpus():
    for cell in (
        "16 nodes x 4 GPUs",
        "16 nodes, 4 GPUs each",
        "16 nodes with 4 H100 GPUs per node",
    ):
        (row,) = table("Part|Layout|MBS", f"Policy|{cell}; TP4, PP2|2").rows
        assert row.values["nodes"].value == 16
        assert row.values["gpus_per_node"].value == 4
        assert "gpus" not in row.values


def test_a_broken_product_of_counts_names_what_else_would_settle_it():
    found = audit(table("GPUs|DP|GAS|MBS|GBS", "64|1|256|4|2048")).checks
    (check,) = (one for one in found if one.verdict == "contradicts")
    assert "or data_parallel_size should be 2" in check.note


def test_tflops_alone_may_count_recomputation_unless_an_mfu_follows_from_them():
    # 3.27 samples/s x 4,096 / 16 = 837 tokens/s; 8 N = 468.8 TFLOP/s, 6 N = 351.6
    head = "GPUs|Model Size|Seqlen|Throughput|{}"
    row = "16|70B|4096|3.27 samp/s|469.1"
    assert wrong(table(head.format("TFLOPS/GPU"), row)) == []
    claimed = [("model_tflops_per_second_per_gpu", "469.1")]
    assert wrong(table(head.format("Model TFLOPS/GPU"), row)) == claimed
    assert claimed[0] in wrong(table(head.format("TFLOPS/GPU|MFU"), f"{row}|47.4%"))


def test_every_expert_and_a_second_forward_pass_are_wrong_counts_by_name():
    head = "Model|GPU|Seq len|Tokens/s/GPU|Model TFLOP/s/GPU"
    rows = ("Mixtral-8x7B|H100|4096|2,000|560.4", "Llama 3.1 8B|H100|8192|10,000|686.3")
    found = audit(table(head, *rows)).checks
    notes = [check.note for check in found if check.verdict == "contradicts"]
    assert "every expert counted" in notes[0]  # 6 x 46.7 billion x 2,000
    assert "recomputation, counted as useful" in notes[1]  # 514.7 x 4 / 3


def test_the_factor_of_a_unit_is_named():
    # $2.00 / 10,000 tokens/s / 3,600 s = $0.0556 per million
    head = "GPUs|Tokens/s|Price per GPU hour|Cost per 1M tokens"
    found = audit(table(head, "8|80,000|$2.00|$55.6")).checks
    assert any(
        "a factor of 1,000" in check.note for check in found if check.verdict == "contradicts"
    )


def test_the_throughput_of_a_switch_and_the_bandwidth_before_a_device_are_no_claims():
    text = (
        "Switch,Nodes,Throughput (Tbps),Rate (GB/s),GPU\nS1,4,51.2,600,A100\nS2,8,102.4,900,H100\n"
    )
    claims = read_document(text, ".csv", "a.csv")
    assert [{*row.values} for row in claims.rows] == [{"nodes"}, {"nodes"}]
    assert "'Throughput (Tbps)' of 'a.csv': in tbps?" in claims.unread


def test_the_name_of_a_model_is_no_count_and_the_models_made_for_a_cpu_are_nobodys():
    text = "Model,Size,GPUs,DP\nMixtral,8x7B,64,64\nTinyLlama,1.1B,8,8\ntiny-llama,5B,4,4\n"
    claims = read_document(text, ".csv", "a.csv")
    assert wrong(claims) == []
    mixtral, tiny, toy = claims.rows
    assert ("parameters" in mixtral.values, mixtral.words["model"]) == (False, "mixtral-8x7b")
    assert tiny.words["model"] == "tinyllama-1.1b"
    assert "model" not in toy.words


@pytest.mark.parametrize(
    ("before", "after", "told", "false"),
    [
        ("100", "250", "2.5x", "1.5x"),  # a rate: after over before
        ("100", "250", "150%", "250%"),
        ("150 s", "15 s", "10x speedup", "7x speedup"),  # a time: before over after
        ("25 s", "18 s", "28% faster", "39% faster"),  # 7 of 25
        ("80 GiB", "60 GiB", "-25%", "-20%"),  # a change, with its sign
    ],
)
def test_an_improvement_is_a_factor_or_a_share_of_a_rate_or_of_a_time(before, after, told, false):
    def accused(improvement: str) -> bool:
        text = f"Metric,Before,After,Improvement\nA,{before},{after},{improvement}\n"
        claims = read_document(text, ".csv", "a.csv")
        assert claims.rows[0].values.keys() >= {"before", "after"}
        return bool(wrong(claims))

    assert not accused(told)
    assert accused(false)


@pytest.mark.parametrize(
    ("before", "after", "improvement"),
    [("10k", "12k", "+2k"), ("40 %", "50 %", "+10 pp"), ("100 ms", "0.08 s", "20 %")],
)
def test_a_difference_and_two_units_are_not_read_as_a_share(before, after, improvement):
    text = f"Metric,Before,After,Improvement\nA,{before},{after},{improvement}\n"
    claims = read_document(text, ".csv", "a.csv")
    assert wrong(claims) == []
    assert claims.unread == (f"'{improvement}' of '{before}', line 2",)


def test_a_column_that_says_lora_counts_two_thirds_of_the_flops():
    """Llama 2 7B: 6 N is 40.43 GFLOP a token; 25,206 of them are 1,019 TFLOP, and 2/3 are 679."""
    head = "Model,Task,GPUs,Tokens / sec / GPU,Model TFLOP / sec / GPU\n"
    rows = ("SFT,8,17617,702", "LoRA,8,25206,673", "LoRA,8,25206,1019")
    text = head + "".join(f"LLAMA2-7B,{row}\n" for row in rows)
    claims = read_document(text, ".csv", "a.csv")
    assert [row.words.get("trained") for row in claims.rows] == ["all", "lora", "lora"]
    assert wrong(claims) == [("model_tflops_per_second_per_gpu", "1019")]


def test_devices_by_number_are_counted_from_zero():
    (row,) = read_document("GPUs,TP,DP\n0–3,1,4\n", ".csv", "a.csv").rows
    assert row.values["gpus"].value == 4


def test_a_hidden_dim_beside_a_dim_is_the_width_of_the_mlp():
    block = "# Qwen3 8B\n\n```yaml\nnum_layers: 36\n{}hidden_dim: 12288\n```\n"
    assert wrong(read_document(block.format("dim: 4096\n"), ".md", "a.md")) == []
    alone = read_document(block.format(""), ".md", "a.md")
    assert wrong(alone) == [("hidden_size", "12288")]


def test_a_model_that_the_catalog_lacks_is_said_with_what_to_do():
    found = table("Model | GPU | Tokens/s/GPU", "Foo-9B | X900 | 100", "llama3-8b | H100 | 200")
    lost = [text for text in found.unread if "not checked" in text]
    assert [text.split(":")[0] for text in lost] == ["the model 'Foo-9B'", "the accelerator 'X900'"]
    assert "[[models]]" in lost[0]
    assert "'scalebook accelerators'" in lost[1]
    sized = table("Model | Size | Tokens/s", "Foo | 9B | 100")
    assert any("'Foo'" in text for text in sized.unread)


@pytest.mark.parametrize(
    "written", ["meta-llama/Meta-Llama-3-8B-Instruct", "Llama 3 8B", "LLAMA3-8B", "llama3.1-8b-hf"]
)
def test_a_model_is_known_however_people_write_it(written):
    (row,) = table("Model | Tokens/s/GPU", f"{written} | 100").rows
    assert row.words["model"] == "llama3.1-8b"


def test_a_heading_may_name_a_model_by_its_alias():
    (row,) = table("GPUs | Tokens/s/GPU", "8 | 100", above="# Llama3 8B\n\n").rows
    assert row.words["model"] == "llama3.1-8b"


def test_a_column_of_modes_says_what_is_trained():
    # NeMo 24.03: 23,711 x 4 x 6.74e9 = 639 TFLOP/s of adapters, less the input table 627
    head = "Model | Mode | Sequence length | Tokens/s/GPU | Model TFLOP/s/GPU"
    for mode, accused in (("LoRA", []), ("SFT", [("model_tflops_per_second_per_gpu", "633")])):
        assert wrong(table(head, f"LLAMA2-7B | {mode} | 4096 | 23711 | 633")) == accused


@pytest.mark.parametrize(
    ("heading", "cell", "value"),
    [
        ("Model size (GB)", "15.01", None), ("Parameters", "140 GB", None),
        ("Parameters", "140GB / 4 (TP) / 4 (PP) = 8.75GB", None),
        ("Params (B)", "8.03", 8.03e9), ("Parameters (billion)", "8.03", 8.03e9),
        ("Params (B)", "8B", 8e9), ("Params", "8.03 billion", 8.03e9), ("Size", "8B", 8e9),
    ],
)  # fmt: skip
def test_a_size_in_bytes_is_no_number_of_parameters(heading, cell, value):
    (row,) = table(f"Model | {heading} | Tokens/s", f"Llama 3.1 8B | {cell} | 100").rows
    found = row.values.get("parameters")
    assert (found and found.value) == (value and pytest.approx(value))


def test_a_product_with_ranks_is_no_number_of_gpus():
    (row,) = table("Role | Batch | Tokens/s", "TP8 DP4 | 16 (4 x DP4) | 100").rows
    assert "gpus" not in row.values
    (row,) = table("Role | Tokens/s", "TP8, 16 x H100 | 100").rows
    assert row.values["gpus"].value == 16


def test_a_table_of_a_quantity_a_row_is_one_run():
    # 8 x 7,403 = 59,224; 400 / 989.4 = 40.43 %
    text = "# Run on H100\n\n|Metric|Value|Notes|\n|---|---|---|\n|Tokens/s/GPU|7,403|-|\n"
    text += "|GPUs|8|-|\n|Tokens/s|{}|-|\n|Precision|BF16|-|\n|TFLOP/s/GPU|400|-|\n|MFU|{}|-|\n"
    assert wrong(read_document(text.format("59,224", "40.4%"), ".md", "a.md")) == []
    found = wrong(read_document(text.format("69,224", "20.2%"), ".md", "a.md"))
    assert {field for field, _ in found} == {"tokens_per_second_per_gpu", "mfu"}


def test_a_model_that_is_named_by_its_size_is_of_that_size():
    # 6 x 1.3e9 x 120,000 = 936 TFLOP/s, of 312
    head = "Model | GPUs | GPU type | Duration | Throughput"
    found = wrong(table(head, "1.3B | 64 | A100 80GB | 14 days | 120K tok/s/gpu"))
    assert found == [("tokens_per_second_per_gpu", "120K")]  # and not the days
    assert wrong(table(head, "1.3B | 64 | A100 80GB | 14 days | 12K tok/s/gpu")) == []


@pytest.mark.parametrize(
    ("written", "model"),
    [("DeepSeek V3 671B", "deepseek-v3"), ("DeepSeek-V3 (671B)", "deepseek-v3"),
     ("DeepSeek V3 16B", None), ("GPT-OSS 20B", "gpt-oss-20b")],
)  # fmt: skip
def test_a_size_behind_a_models_name_must_be_its_own(written, model):
    (row,) = table("Model | Tokens/s/GPU", f"{written} | 100").rows
    assert row.words.get("model") == model


@pytest.mark.parametrize(
    ("above", "gpus"),
    [("run with 8x NVIDIA H100 80GB GPUs", 8), ("on 64 GPUs", 64), ("(16 H100 GPUs)", 16),
     ("on 2x8 H100 GPUs", None), ("with 4 x 8 GPUs", None)],
)  # fmt: skip
def test_the_gpus_of_the_text_are_those_of_all_nodes(above, gpus):
    (row,) = table("Run | Tokens/s", "a | 100", above=f"{above}\n\n").rows
    assert ("gpus" in row.values and row.values["gpus"].value) == (gpus or False)


def test_a_heading_further_up_may_say_that_adapters_are_trained():
    # 2,643 x 4 x 69.5e9 = 735 TFLOP/s: two thirds of 6 N (NeMo 25.09, LoRA of Llama 3 70B)
    head, row = "GPUs | Sequence length | Tokens/s/GPU | Model TFLOP/s/GPU", "8 | 4096 | 2643 | 735"
    tuned = "### LoRA performance\n\n#### Model: LLAMA3_70B\n\n"
    assert wrong(table(head, row, above=tuned)) == []
    after = f"{tuned}text\n\n### Pre-training\n\n#### Model: LLAMA3_70B\n\n"
    assert wrong(table(head, row, above=after)) == [("model_tflops_per_second_per_gpu", "735")]


@pytest.mark.parametrize(
    ("cell", "accused"),
    [("40.4 GFLOPs", False), ("0.0404 TFLOPs", False), ("4.04e10", False), ("27.25 GFLOPs", True)],
)
def test_flops_per_token_are_read_with_their_unit(cell, accused):
    # 6 x 6.738e9 for Llama 2 7B
    found = wrong(table("Model | FLOPs per token", f"Llama 2 7B | {cell}"))
    assert bool(found) is accused


def verdicts_of(text: str) -> dict[tuple[str, str], str]:
    """Return the verdict of each claim of a document by what its row is called and its field."""
    found = audit(read_document(text, ".md", "a.md")).checks
    return {(one.label.partition(" (")[0], one.field): one.verdict for one in found}


DEVICES = """| Spec | B200 | H200 | A100 |
|---|---|---|---|
| Memory | 192 GB HBM3e | 192 GB | 40 GB HBM2 |
| Memory bandwidth | 8.0 TB/s | 4,800 GB/s | ~1.6 TB/s |
| TDP | 1 kW | 575W | 400 W |
| BF16 dense | 2.25 PFLOPS | 989 TFLOPS | 312 TFLOPS |
| FP8 Tensor Sparse | 9 PFLOPS | 4,958 TFLOPS | - |
| BF16 peak per pod | 50 PFLOPS | 50 PFLOPS | 50 PFLOPS |
"""
MEMORY, BANDWIDTH = "device_memory_gb", "memory_bandwidth_tb_per_second"


@pytest.mark.parametrize("turned", [False, True])
def test_a_table_of_devices_is_held_against_the_catalog(turned: bool) -> None:
    text = DEVICES
    if turned:  # a device per row
        cells = [line.strip("|").split("|") for line in DEVICES.splitlines() if "---" not in line]
        lines = ["|" + "|".join(column) + "|" for column in zip(*cells, strict=True)]
        text = "\n".join([lines[0], "|---" * len(cells) + "|", *lines[1:]])
    found = verdicts_of(text + "\n")
    assert found[("B200", MEMORY)] == "possible"  # 180 of the 192 fitted may be used
    assert found[("B200", BANDWIDTH)] == "possible"  # 7.7 TB/s by another data sheet
    assert found[("H200", MEMORY)] == found[("H200", "tdp_watts")] == "contradicts"
    assert found[("A100", MEMORY)] == found[("A100", BANDWIDTH)] == "holds"  # that of 40 GB
    for name in ("B200", "H200", "A100"):
        assert found[(name, "peak_tflops_per_second")] == "holds"
    assert found[("B200", "sparse_peak_tflops_per_second")] == "holds"
    assert found[("H200", "sparse_peak_tflops_per_second")] == "contradicts"  # 3,958
    assert found[("B200", "tdp_watts")] == "holds"


def test_what_is_not_read_of_a_table_of_devices_is_said_and_a_small_unit_is_read() -> None:
    text = """| GPU | Memory | Bandwidth | BF16 |
|---|---|---|---|
| MI355X | 256 GB | 8 TB/s | 2.5 GFLOPS |
| MI300X | 192 GB | 5 TB/s | 1.3 PFLOPS |
"""
    result = audit(read_document(text, ".md", "a.md"))
    assert result.claims.unread == ("'Bandwidth' of 'Table'",)
    memory, _, peak, other = result.checks
    # 288 GB are fitted: 1.6 % less may be usable, and 288 GiB are 309 GB
    assert "or 283 to 309 (MI355X, as printed)" in memory.note
    assert (peak.verdict, peak.stated) == ("contradicts", "0.0025")
    assert (other.verdict, other.stated) == ("holds", "1.3 PFLOPS")  # 1,307 TFLOP/s


def test_the_form_of_a_device_that_a_name_leaves_open_is_that_of_its_numbers() -> None:
    text = """| GPU | VRAM | TDP |
|---|---|---|
| A100 80GB | 80 GB | 300 W |
| RTX 4090 | 24GB | 575 W |
| GH200 | 96 GB | 1000 W |
"""
    found = verdicts_of(text)
    assert found[("GH200", "tdp_watts")] == "possible"  # of the module with its processor
    assert found[("A100 80GB", "tdp_watts")] == "holds"  # PCIe
    assert found[("RTX 4090", "tdp_watts")] == "contradicts"  # that of another card


def test_memory_in_gb_and_in_gib_must_be_one_amount() -> None:
    text = """| run | GPU | tokens/s/GPU | peak memory (GB) | peak memory (GiB) |
|---|---|---|---|---|
| a | H100 | 9,000 | 68.7 | 64.0 |
| b | H100 | 9,000 | 64.0 | 64.0 |
"""
    found = verdicts_of(text)
    assert found[("a", "also_memory_gb")] == "holds"  # 64 GiB are 68.72 GB
    assert found[("b", "also_memory_gb")] == "contradicts"


def test_a_tpu_in_a_heading_and_the_length_of_a_cell_hold_for_a_row() -> None:
    text = """## Trillium (v6e)
| Model | Configuration | MFU | Approx tokens/sec/device |
|---|---|---|---|
| Llama 3.1 8B | 256 Chips, BF16, SL=8192 | 45.46% | 7,207 |
"""
    assert verdicts_of(text)[("Llama 3.1 8B", "mfu")] == "holds"  # 57.9 x 7,207 / 918


def test_vram_that_a_run_used_is_its_memory() -> None:
    text = """| GPU | GPUs | tokens/s | VRAM used (GB) |
|---|---|---|---|
| RTX 4090 | 1 | 2,900 | 17.5 |
| RTX 4090 | 1 | 3,200 | 31.5 |
"""
    found = audit(read_document(text, ".md", "a.md")).checks
    of_memory = [one.verdict for one in found if one.field == "memory_gb"]
    assert of_memory == ["possible", "impossible"]


def page(*rows: str, above: str = "") -> str:
    """A text and a table under it; cells are separated by semicolons, the first row is its head."""
    cells = ["| " + row.replace(";", " |") + " |" for row in rows]
    return "\n".join([above, "", cells[0], "|---" * (rows[0].count(";") + 1) + "|", *cells[1:], ""])


def verdicts(text: str, suffix: str = ".md") -> dict[tuple[str, str], set[str]]:
    """The verdicts on every field and text of a document."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in audit(read_document(text, suffix, "page")).checks:
        found.setdefault((one.field, one.stated), set()).add(one.verdict)
    return found


def test_a_table_of_a_quantity_a_row_has_a_run_a_column_and_its_ratios_are_checked() -> None:
    table = """\
| Metric | H100 (8 GPUs) | MI300X (8 GPUs) | Advantage |
|---|---|---|---|
| Tokens/s | 80,000 | 100,000 | 1.25x |
| Tokens/s/GPU | 10,000 | 12,000 | 1.20x |
| Step time (s) | 2.0 | 1.6 | 1.40x faster |
"""
    claims = read_document(table, ".md", "page")
    assert {row.words["accelerator"] for row in claims.rows[:2]} == {"h100", "mi300x"}
    # 100,000 / 8 = 12,500; 12,000 / 10,000 = 1.2; 2.0 / 1.6 = 1.25
    assert wrong(claims) == [("tokens_per_second_per_gpu", "12,000"), ("ratio", "1.40")]
    # where no ratio is that of its values, it is of something else
    other = read_document(table.replace("1.25x", "7x").replace("1.20x", "9x"), ".md", "page")
    assert ("ratio", "1.40") not in wrong(other)
    assert any("of which values?" in one for one in other.unread)


def test_the_one_device_of_a_document_is_that_of_its_tables() -> None:
    table = "\n## Rates\n\n| Run | TFLOPs/GPU | MFU |\n|---|---|---|\n| a | 450 | {mfu} |\n"
    for text, accused in (
        ("# Training on B300s", False),  # 450 / 2250 = 20 %
        ("# Training on B300s, 2.2x faster than H100s", False),
        ("# Training on B300s and H100s", None),
        ("# Training on B300s and on Gaudi 3", None),
    ):
        found = verdicts(text + "\n" + table.format(mfu="20.0%"))["mfu", "20.0%"]
        assert ("holds" in found) == (accused is False)
        found = verdicts(text + "\n" + table.format(mfu="30.0%"))["mfu", "30.0%"]
        assert ("contradicts" in found) == (accused is False)
    # a row's own device comes before it, and one that is not in the catalog leaves no other
    rows = "# On B300\n\n| Run | TFLOPs/GPU | MFU |\n|---|---|---|\n| H100 run | 450 | 45.5% |\n"
    assert "holds" in verdicts(rows)["mfu", "45.5%"]  # 450 / 989.4
    assert "holds" not in verdicts(rows.replace("H100 run", "TPU v4"))["mfu", "45.5%"]


def accused(text: str) -> list[tuple[str, str]]:
    return wrong(read_document(text, ".md", "page"))


def test_a_price_or_a_peak_of_the_text_is_that_of_its_table() -> None:
    rows = ("Model;GPU hours;Cost", "a;1,000;$2,000", "b;3.0M;$9.0M")
    assert accused(page(*rows, above="Rented at $2.00/H100-hour.")) == [("cost", "$9.0M")]
    rows = ("Run;TFLOPs/GPU;MFU", "a;200;50%", "b;200;60%")
    assert accused(page(*rows, above="The peak is 400 TFLOPS.")) == [("mfu", "60%")]


def test_energy_is_hours_of_gpus_times_their_power_and_what_else_the_building_takes() -> None:
    head = "Run;GPU hours;GPU power (W);Energy (MWh)"
    rows = ("a;10,000;700;7.00", "b;10,000;700;8.40", "c;10,000;700;0.70")
    found = verdicts(page(head, *rows))
    assert "holds" in found["energy_joules", "7.00"]  # 10,000 h x 0.7 kW = 7,000 kWh
    assert found["energy_joules", "8.40"] == {"possible"}  # a PUE of 1.2
    assert "contradicts" in found["energy_joules", "0.70"]
    stated = page(f"{head};PUE", "a;10,000;700;9.80;1.10")
    assert accused(stated) == [("energy_joules", "9.80")]  # 7.7


def test_a_row_that_says_1_is_the_base_where_another_row_confirms_it() -> None:
    head = ("Setup;Samples/s;Speedup", "one;150;1.0x")
    assert accused(page(*head, "two;280;1.87x", "four;510;4.4x")) == [("speedup", "4.4")]  # 3.4
    # of something else: no other row is the rate over the base's
    assert accused(page(*head, "two;280;3.1x", "four;510;7.7x")) == []
    times = page("Setup;Step time (s);Speedup", "one;2.0;1.0x", "two;1.0;2.0x", "x;0.5;3.0x")
    assert accused(times) == [("speedup", "3.0")]
    nodes = ("Nodes;Samples/s;Speedup;Efficiency", "1;1.46;1.00x;100%", "2;2.85;1.95x;98%")
    assert accused(page(*nodes, "4;5.50;3.77x;84%")) == [("scaling_efficiency", "84%")]  # 3.77 / 4


def test_an_efficiency_by_tokens_is_not_accused_by_rounded_mfus() -> None:
    head = ("GPUs;tok/s/GPU;MFU;eff", "16;14,369;21.3%;100%")
    # 10,956 / 14,369 = 76.2 %, and 16.4 / 21.3 = 77.0 %
    assert accused(page(*head, "512;10,956;16.4%;76.2%")) == []
    assert ("scaling_efficiency", "86.2%") in accused(page(*head, "512;10,956;16.4%;86.2%"))


def test_rows_of_their_own_layers_are_not_the_model_of_the_text() -> None:
    rows = ("Layers;tok/s/GPU;TFLOP/s/GPU", "40;2457;307", "48;2085;310")
    assert accused(page(*rows, above="Heads as Qwen 2.5-32B.")) == []


def test_bare_tflops_are_of_one_gpu_where_they_are_the_mfu() -> None:
    rows = ("Run;TFLOP/s;MFU", "a;450;45.5%", "b;300;40.0%")
    assert accused(page(*rows, above="# On H100")) == [("mfu", "40.0%")]  # 30.3 %


def test_the_number_of_gpus_in_a_text_is_of_a_table_that_any_identity_confirms() -> None:
    head, above = "GBS;Seq len;Step time (ms);Tokens/s/GPU", "The node has 8 GPUs."
    # 64 x 4096 / 8 GPUs / 2 s = 16,384; 32 give 8,192
    rows = ("64;4096;2000;16,384", "32;4096;2000;9,999")
    wanted = [("tokens_per_second_per_gpu", "9,999")]
    assert accused(page(head, *rows, above=above)) == wanted
    assert accused(page(head, "64;4096;2000;7,000", rows[1], above=above)) == []


def test_units_of_a_column_may_stand_in_the_heading_of_a_table_of_devices() -> None:
    rows = ("GPU;BF16 TFLOPs (dense);Memory (GB)", "H100 SXM;~989;80", "A100 80GB;624;80")
    assert accused(page(*rows)) == [("peak_tflops_per_second", "624")]


def test_a_document_of_too_many_columns_is_refused_before_it_is_read() -> None:
    with pytest.raises(ClaimError, match="more than 300 columns"):
        read_document("|" * 400 + "\n" + "|-" * 400 + "|\n" + "|" * 400, ".md", "page")
    line = "*" * 20_000  # a search for a peak that starts anywhere would take minutes
    assert accused(f"{line}\n\n{MARKDOWN}") == [("mfu", "58.2%")]


def test_the_text_above_a_table_of_a_page_says_what_holds_for_it() -> None:
    rows = "<table><tr><th>Run</th><th>TFLOPs/GPU</th><th>MFU</th></tr>{}</table>"
    cells = (
        "<tr><td>a</td><td>450</td><td>45.5%</td></tr><tr><td>b</td><td>450</td><td>30%</td></tr>"
    )
    html = "<script>var a100 = 1</script><h2>Rates</h2><p>Trained on <b>H100</b> GPUs.</p>{}"
    text = html.format(rows.format(cells))
    assert wrong(read_document(text, ".html", "page")) == [("mfu", "30%")]  # 450 / 989.4
    assert wrong(read_document(text.replace("H100", "other"), ".html", "page")) == []


def test_a_peak_may_be_printed_in_petaflops_of_one_decimal() -> None:
    head = "GPU;BF16 TFLOPs (dense)"
    assert accused(page(head, "MI355X;2500", "MI300X;1307")) == []  # 2,516.6
    assert accused(page(head, "MI355X;2400", "MI300X;1307")) == [("peak_tflops_per_second", "2400")]


@pytest.mark.parametrize(
    ("head", "row", "expected"),
    [
        # 4 x 2,048 tokens / 2 s = 4,096
        ("GBS|Seq len|s/step|Tokens/s", "4|2048|2.0|4,100", []),
        ("GBS|Seq len|s/step|Tokens/s", "4|2048|2.0|5,000", ["tokens_per_second"]),
        ("GBS|Seq len|ms/iter|Tokens/s", "4|2048|2000|5,000", ["tokens_per_second"]),
        ("GPUs|tok/step|step ms|Tokens/s", "8|8192|2000|5,000", ["tokens_per_second"]),
        # 445 / 989.4 = 45.0 %
        ("Device|TFLOPs/GPU|MFU%", "H100|445|45.0", []),
        ("Device|TFLOPs/GPU|MFU%", "H100|445|22.5", ["mfu"]),
        ("Device|TFLOPs/GPU|MFU%", "A100 PCIe|100|32.1", []),  # of 312
        ("Runs on|TFLOPs/GPU|MFU", "8xH100|445|22.5%", ["mfu"]),
        ("Runs on|TFLOPs/GPU|MFU", "8x RTX 4090|80|24.2%", ["mfu"]),  # 80 / 165.2 = 48.4 %
        ("Runs on|TFLOPs/GPU|MFU", "H100 PCIe|400|52.9%", []),  # of 756, not of 989
        # a mean of eight seeds
        ("GPUs|Tokens/s|Tokens/s/GPU", "8|800.0 ± 7.5|100.0", []),
        ("GPUs|Tokens/s|Tokens/s/GPU", "8|800.0 ± 7.5|110.0", ["tokens_per_second_per_gpu"]),
        ("GPU|Nodes|GPUs per node", "64|8|8", []),
        ("GPU|Nodes|GPUs per node", "48|8|8", ["gpus"]),
        ("GPUs|Layout|Model", "64|tp4pp2 dp8|X", []),
        ("GPUs|Layout|Model", "48|TP=4, PP=2, FSDP=4|X", ["gpus"]),
        ("Model|A|B", "X|18 s (10+2 GPUs, FSDP-10, TP=2)|15 s (FSDP-6, TP=2)", []),
        ("GPUs|Layout|Model", "12|FSDP-5, TP=2|X", ["gpus"]),
        ("GPUs|Layout|Model", "12|FSDP-10 or FSDP-6, TP=2|X", []),
        ("Case|TFLOPs/GPU|MFU", "H100 in FP8|495|25.0%", []),  # of 1,979
        ("Case|TFLOPs/GPU|MFU", "H100 in FP8|495|50.0%", []),  # of 989.4, as many count
        ("Case|TFLOPs/GPU|MFU", "H100 in FP8|495|12.5%", ["mfu"]),  # of 3,958, the sparse one
        ("Model|Device|GPUs|Tokens/s|MFU", "7B Dense|H100|8|280K|41.7%", ["mfu"]),
    ],
)
def test_what_a_heading_or_a_cell_says_in_short_is_read(head: str, row: str, expected: list[str]):
    text = f"|{head}|\n|{'-|' * (head.count('|') + 1)}\n|{row}|\n"
    assert {field for field, _ in wrong(read_document(text, ".md", "a.md"))} == set(expected)


def test_a_step_of_more_samples_is_not_accused_by_its_time():
    """50.53 / 18.92 samples/s are 2.67; a step of one run is 19 times the work of the other's."""
    head = "|Loader|Samples/s|Speedup|Runtime|Steps|\n|-|-|-|-|-|\n"
    rows = "|A|18.92|1.00x|10367.6s|24525|\n|B|50.53|2.67x|3882.7s|1278|\n"
    rows += "|C|37.84|2.00x|5183.8s|3270|\n"
    assert wrong(read_document(head + rows, ".md", "a.md")) == []
    less = rows.replace("2.67", "2.17")
    assert {name for name, _ in wrong(read_document(head + less, ".md", "a.md"))} == {"speedup"}


def test_one_node_may_run_with_one_gpu_and_with_more():
    text = "Nodes,GPUs,Samples/s,Speedup\n1,1,107.3,1\n1,4,397.7,3.71\n2,16,1404,13.08\n"
    assert wrong(read_document(text, ".csv", "a.csv")) == []


def test_the_model_and_the_length_of_a_heading_further_up_count_if_no_other_is_named():
    """1,024 x 4,096 tokens x 48.25 GFLOP / 256 GPUs / 1.9 s = 416 TFLOP/s."""
    page = (
        "# Llama 3.1 8B on H100\n\nWith SeqLen=4096.{more}\n\n## Results of 256 GPUs\n\n"
        "|GBS|TFLOP/s/GPU|Step time (s)|\n|-|-|-|\n|1024|{rate}|1.9|\n"
    )
    assert wrong(read_document(page.format(more="", rate=416), ".md", "a.md")) == []
    found = read_document(page.format(more="", rate=346), ".md", "a.md")
    assert wrong(found) == [("model_tflops_per_second_per_gpu", "346")]
    other = read_document(page.format(more=" Mistral 7B is next.", rate=346), ".md", "a.md")
    assert wrong(other) == []


def test_what_makers_print_of_a_device_is_possible_and_bare_bandwidth_is_of_memory():
    """NVIDIA gives a B300 1,100 or 1,400 W; 3.35 and 4.8 TB/s are those of memory."""
    text = (
        "| Spec | H100 SXM | H200 | B300 |\n|---|---|---|---|\n"
        "| Memory | 80 GB | 141 GB | 288 GB |\n"
        "| Bandwidth | 3.35 TB/s | {} TB/s | 8 TB/s |\n| TDP | 700 W | 700 W | {} W |\n"
    )
    assert wrong(read_document(text.format(4.8, "1,400"), ".md", "a.md")) == []
    assert wrong(read_document(text.format(5.8, "1,600"), ".md", "a.md")) == [
        ("memory_bandwidth_tb_per_second", "5.8"), ("tdp_watts", "1600"),
    ]  # fmt: skip
    links = text.replace("3.35 TB", "900 GB").replace("8 TB", "1800 GB").format(900, 1100)
    assert wrong(read_document(links, ".md", "a.md")) == []


def test_ratios_of_two_devices_are_checked_where_both_have_one_unit():
    text = (
        "| metric | H20 | H200 | ratio |\n|---|---|---|---|\n| BF16 compute | 148 TFLOPS | "
        "989 TFLOPS | {}× |\n| NVLink | 900 GB/s | 1.8 TB/s | 2.0× |\n"
        "| TDP | 400 W | 700 W | 1.75× |\n"
    )
    assert wrong(read_document(text.format(6.7), ".md", "a.md")) == []
    assert wrong(read_document(text.format(7.7), ".md", "a.md")) == [("ratio", "7.7")]
    two = text + "| FP4 / NVFP4 | 9000 / 10000 | 12600 / 15000 | ~1.4–1.5× |\n"
    assert wrong(read_document(two.format(6.7), ".md", "a.md")) == []


def test_a_row_that_says_100_percent_is_the_base_where_another_row_confirms_it():
    """29,860 / 110,373 x 32 / 8 = 108 %, of the second row."""
    head = "|GPUs|tok/s|scaling eff %|\n|-|-|-|\n"
    rows = "|8|29,860|108|\n|32|110,373|100|\n|64|216,507|{}|\n"
    assert wrong(read_document(head + rows.format(98), ".md", "a.md")) == []
    found = read_document(head + rows.format(88), ".md", "a.md")
    assert wrong(found) == [("scaling_efficiency", "88%")]


def test_the_last_row_that_begins_with_total_adds_up_the_others():
    head = "|Block|GPU-hours|USD/GPU-h|USD|\n|-|-|-|-|\n|A|100|2.00|200|\n|B|50|2.00|100|\n"
    assert wrong(read_document(head + "|Total bought|150||300|\n", ".md", "a.md")) == []
    assert wrong(read_document(head + "|Total bought|150||400|\n", ".md", "a.md")) == [
        ("cost", "400")
    ]


def test_nodes_by_gpus_of_a_text_are_those_of_a_table_that_confirms_them():
    page = "On 8 nodes x 8 H100 GPUs.\n\n|tok/s|tok/s/GPU|\n|-|-|\n|59,217|925.3|\n|54,227|{}|\n"
    assert wrong(read_document(page.format(847.3), ".md", "a.md")) == []
    found = read_document(page.format(947.3), ".md", "a.md")
    assert wrong(found) == [("tokens_per_second_per_gpu", "947.3")]


def test_the_one_list_of_settings_holds_for_the_tables_of_a_document():
    """96 samples are 48 replicas of 2; 97 are none."""
    page = (
        "## Configuration\n\n| Field | Value |\n|-|-|\n| Local Batch Size | 2 |\n| TP | 1 |\n\n"
        "## Results\n\n| GPUs | GBS |\n|-|-|\n| 48 | {} |\n"
    )
    assert wrong(read_document(page.format(96), ".md", "a.md")) == []
    assert wrong(read_document(page.format(97), ".md", "a.md")) == [("global_batch_size", "97")]


def test_links_of_devices_are_checked_where_most_are_the_catalogs():
    """NVLink has 600, 900 and 1,800 GB/s of an A100, H100 and B200, both ways."""
    text = "| Spec | A100 | H100 | B200 |\n|-|-|-|-|\n| TDP | 400 W | 700 W | 1,000 W |\n"
    links = (
        "| NVLink | 600 GB/s | {} GB/s | 1.8 TB/s |\n"
        "| Peak FP16 TC (dense) | {} TFLOPS | 989 TFLOPS | 2.25 PFLOPS |\n"
    )
    assert wrong(read_document(text + links.format(900, 312), ".md", "a.md")) == []
    assert wrong(read_document(text + links.format(450, 624), ".md", "a.md")) == [
        ("interconnect_gb_per_second", "450"), ("peak_tflops_per_second", "624"),
    ]  # fmt: skip
    half = text + links.format(450, 312).replace("600", "300").replace("1.8", "0.9")
    assert wrong(read_document(half, ".md", "a.md")) == []  # of one direction


EFFICIENCY = (
    "| GPUs | tok/s/GPU | TFLOPS/GPU | MFU | Scaling efficiency |\n|-|-|-|-|-|\n"
    "| 8 | 1,003 | 80.0 | 25.6% | 100% |\n| 16 | {} | 76.0 | 24.4% | 95% |\n"
    "| 32 | {} | 72.0 | 23.1% | {} |\n"
)


def test_an_efficiency_may_be_of_tflops_where_no_row_fits_the_tokens():
    """76 / 80 = 95 % and 72 / 80 = 90 %; of 1,003 tokens/s, 973 are 97 % and 933 are 93 %."""
    assert wrong(read_document(EFFICIENCY.format(973, 933, "90%"), ".md", "a.md")) == []
    assert wrong(read_document(EFFICIENCY.format(973, 933, "80%"), ".md", "a.md")) != []
    # the second row's 953 tokens/s are 95 %, so the third's 703 are no 90 %
    found = wrong(read_document(EFFICIENCY.format(953, 703, "90%"), ".md", "a.md"))
    assert found == [("scaling_efficiency", "90%")]


def test_a_share_of_the_peak_is_no_rate_of_other_samples():
    """Twice as long samples: 0.6 times the samples are 1.2 times the tokens, at 45 of 40 % MFU."""
    page = (
        "| Setup | GPUs | Seq len | Speedup | MFU |\n|-|-|-|-|-|\n"
        "| base | 8 | 4096 | 1.00x | 40.0% |\n| long | 8 | 8192 | 0.60x | 45.0% |\n"
    )
    assert wrong(read_document(page, ".md", "a.md")) == []


def test_a_dense_model_of_the_text_is_not_that_of_a_table_on_experts():
    """8 experts of Llama 3.1 8B are another model, which the catalog lacks."""
    text = "Runs of Llama 3.1 8B:\n\n# {}\n\n| Run | EP | GPUs |\n|-|-|-|\n| a | {} | 8 |\n"
    title, plain = "Upcycled Llama 3.1 8B with a capacity for each expert", "Llama 3.1 8B"
    assert wrong(read_document(text.format(title, 8), ".md", "a.md")) == []
    known = read_document(text.format(title, 1), ".md", "a.md")
    assert known.rows[0].words["model"] == "llama3.1-8b"
    spread = read_document(text.format(plain, 8), ".md", "a.md")
    assert wrong(spread) == [("expert_parallel_size", "8")]


@pytest.mark.parametrize(("last", "found"), [("$60", []), ("$80", [("cost", "$80")])])
def test_a_total_is_not_a_part_of_the_next_total(last: str, found: list[tuple[str, str]]):
    """20 + 10 + 30 = 60; with the first total of 30 it would be 90."""
    rows = "| Data | $20 |\n| Small run | $10 |\n| Total (small) | $30 |\n| Large run | $30 |\n"
    page = f"| Phase | Cost |\n|-|-|\n{rows}| Total | {last} |\n"
    assert wrong(read_document(page, ".md", "a.md")) == found


def test_a_count_that_rates_give_only_nearly_breaks_no_limit():
    """11,121 / 1,391 = 7.995 devices, which are eight; TP2 and DP8 need 16."""
    page = "| Layout | Total tok/s | tok/s/GPU |\n|-|-|-|\n| TP2-DP{} | 11,121 | 1,391 |\n"
    assert wrong(read_document(page.format(4), ".md", "a.md")) == []
    even = page.replace("11,121", "11,128")
    assert wrong(read_document(even.format(8), ".md", "a.md")) == [("data_parallel_size", "8")]


@pytest.mark.parametrize(
    ("head", "cell", "values"),
    [
        ("Derived MFU", "40%", {"mfu": 0.4}),
        ("Clean tokens/s/GPU", "5,822", {"tokens_per_second_per_gpu": 5822}),
        ("Pre-train cost", "$40", {"cost": 40}),
        ("Steady tok/s", "900", {"tokens_per_second": 900}),
        ("Aggregate tokens/s", "900", {"tokens_per_second": 900}),
        ("Step time, mean (ms)", "250", {"step_milliseconds": 0.25}),
        ("× baseline", "1.25", {"speedup": 1.25}),
        ("Speedup vs baseline", "1.25", {"speedup": 1.25}),
        ("B200-h ↓", "300", {"gpu_hours": 300}),
        ("Tok/s/GPU (k) ↑", "45.6", {"tokens_per_second_per_gpu": 45600}),
    ],
)
def test_a_heading_may_say_how_a_number_was_found(head: str, cell: str, values: dict[str, float]):
    page = f"| Run | GPUs | {head} |\n|-|-|-|\n| a | 8 | {cell} |\n"
    (row,) = read_document(page, ".md", "a.md").rows
    found = {name: one.value for name, one in row.values.items() if name != "gpus"}
    assert found == pytest.approx(values)


def test_of_two_columns_that_differ_in_how_a_number_was_found_none_is_guessed():
    page = "| Run | GPUs | Final MFU | Derived MFU |\n|-|-|-|-|\n| a | 8 | 40% | 41% |\n"
    claims = read_document(page, ".md", "a.md")
    assert "mfu" not in claims.rows[0].values
    assert claims.unread == ("'Final MFU' of 'Table'", "'Derived MFU' of 'Table'")
    both = "| Run | GPUs | MFU | Derived MFU |\n|-|-|-|-|\n| a | 8 | 40% | 41% |\n"
    assert read_document(both, ".md", "a.md").rows[0].values["mfu"].text == "40%"


@pytest.mark.parametrize(("mean", "found"), [("750", []), ("50", ["tokens_per_second"])])
def test_a_bare_mean_beside_the_total_is_of_one_gpu_if_another_row_confirms_it(
    mean: str, found: list[str]
):
    """8 x 900 = 7,200, 8 x 800 = 6,400 and 8 x 750 = 6,000."""
    rows = f"| a | 900 | 7,200 |\n| b | 800 | 6,400 |\n| c | {mean} | 6,000 |\n"
    page = f"On 8 H100 GPUs.\n\n| Run | Clean mean | tokens/s |\n|-|-|-|\n{rows}"
    assert sorted({name for name, _ in wrong(read_document(page, ".md", "a.md"))}) == [
        name.replace("second", "second_per_gpu") for name in found
    ]
    late = read_document(page.replace("Clean mean", "Mean (ms)"), ".md", "a.md")
    assert late.unread == ("'Mean (ms)' of 'Table'",)


def test_the_batch_of_a_heading_holds_where_a_row_confirms_it():
    """512 x 8,192 / 64 / 9.328 s = 7,026 tokens/s; 8,105 s give 8,086."""
    page = (
        "# Ladder (64 GPUs, GBS 512)\n\nSequence length 8192.\n\n"
        "| Run | Step time (s) | tok/s/GPU |\n|-|-|-|\n| a | 9.328 | 7,026 |\n| b | 8.105 | {} |\n"
    )
    assert wrong(read_document(page.format("8,086"), ".md", "a.md")) == []
    assert ("tokens_per_second_per_gpu", "9,086") in wrong(
        read_document(page.format("9,086"), ".md", "a.md")
    )


def test_a_claim_of_a_table_by_column_has_the_line_of_its_row():
    page = (
        "| metric | H20 | H200 |\n|-|-|-|\n| BF16 compute | 148 TFLOPS | 1,989 TFLOPS |\n"
        "| HBM bandwidth | 4.0 TB/s | 7.8 TB/s |\n| TDP | 400 W | 700 W |\n"
    )
    checks = audit(read_document(page, ".md", "a.md")).checks
    accused = {(one.line, one.field) for one in checks if one.verdict == "contradicts"}
    assert accused == {(3, "peak_tflops_per_second"), (4, "memory_bandwidth_tb_per_second")}
    rows = "| GPUs | 8 | 8 |\n| tok/s | 800 | 800 |\n| tok/s/GPU | 100 | 90 |\n"
    runs = f"| Metric | A | B |\n|-|-|-|\n{rows}"
    checks = audit(read_document(runs, ".md", "a.md")).checks
    assert [one.line for one in checks if one.verdict == "contradicts"] == [5]


def test_devices_of_other_makers_are_counted():
    page = "| Device | Total tok/s | tok/s/GPU |\n|-|-|-|\n| 8x {} | 9,400 | 1,175 |\n"
    for name in ("Ascend 910B", "Gaudi 3", "TPU v5", "H100"):
        assert read_document(page.format(name), ".md", "a.md").rows[0].values["gpus"].value == 8
