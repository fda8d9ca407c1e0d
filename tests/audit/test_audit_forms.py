"""Claims about rows in many printed forms: no right one is accused, most wrong ones are."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

from scalebook.audit import audit, read_document
from scalebook.errors import ClaimError

PEAKS = {"A100 80GB": 312.0, "H100 SXM": 989.4, "B200": 2250.0, "MI300X": 1307.4}
NAMES = {"llama3.1-8b": "Llama 3.1 8B", "llama2-70b": "Llama 2 70B", "mixtral-8x7b": "Mixtral 8x7B"}
FORMS = (
    "markdown", "html", "spanned", "turned", "csv", "two rows", "two rows of a page", "continued",
    "sections", "open cells",
)  # fmt: skip
FIELDS = {  # by quantity: heading, what its values are divided by, format
    "rate": (("Tokens/s/GPU", 1, "{:,.0f}"), ("TGS", 1, "{:.1f}"),
              ("Throughput (ktok/s/GPU)", 1e3, "{:.3f}")),
    "total": (("Tokens/s", 1, "{:,.0f}"), ("Tokens/s (K)", 1e3, "{:.2f}"),
              ("Total tokens/s", 1e6, "{:.3f}M")),
    "tflops": (("TFLOP/s/GPU", 1, "{:.1f}"), ("TFLOPS per GPU", 1, "{:.0f}<sup>1</sup>"),
              ("TFLOPs", 1, "{:.1f}")),
    "mfu": (("MFU", 0.01, "{:.1f}%"), ("MFU (%)", 0.01, "{:.2f}"), ("MFU", 1, "{:.3f}")),
    "step": (("Step time (s)", 1, "{:.3f}"), ("Step time (ms)", 1e-3, "{:,.0f}"),
              ("Mean step", 1, "{:.3f} s")),
    "batch": (("Global batch size", 1, "{:,.0f}"), ("GBS", 1, "{:.0f}")),
    "gpus": (("GPUs", 1, "{:.0f}"), ("# GPUs", 1, "{:.0f}")),
    "length": (("Seq len", 1, "{:.0f}"), ("Sequence length", 1, "{:,.0f}"),
              ("Context", 1024, "{:.0f}K")),
    "tokens": (("Tokens", 1e9, "{:.4f}B"), ("Tokens (B)", 1e9, "{:.4f}")),
    "hours": (("Training time (hours)", 1, "{:.2f}"), ("Duration", 1, "{:.3f} h")),
    "gpu_hours": (("GPU hours", 1, "{:,.1f}"), ("GPU-hours (K)", 1e3, "{:.5f}")),
    "cost": (("Cost", 1, "${:,.2f}"), ("Cost ($K)", 1e3, "{:.5f}")),
    "price": (("$/GPU-hour", 1, "${:.2f}"), ("Price per GPU hour", 1, "${:.2f}")),
    "node": (("Tokens/s/node", 0.125, "{:,.0f}"), ("Inference tokens/s", 3, "{:,.0f}")),
}  # fmt: skip


@pytest.fixture(scope="module")
def counts(root: Path) -> dict[tuple[str, int], float]:
    """FLOPs per token by model and length, from the golden file."""
    with (root / "tests/golden/flops.csv").open(newline="") as stream:
        return {
            (row["model"], int(row["sequence_length"])): float(row["flops_per_token"])
            for row in csv.DictReader(stream)
            if row["convention"] == "megatron_causal" and row["model"] in NAMES
        }


def numbers(draw: random.Random, flops: float, length: int, peak: float) -> dict[str, float]:
    """A run from first principles: its fraction of the peak is drawn, the rest follows."""
    gpus, share = draw.choice((1, 8, 64, 1024)), draw.uniform(0.15, 0.6)
    rate = share * peak * 1e12 / flops
    batch, price = gpus * draw.choice((1, 4, 16)), draw.choice((1.5, 2.0, 4.1))
    step = batch * length / rate / gpus
    hours = 20_000 * step / 3600
    return {
        "gpus": gpus, "rate": rate, "total": rate * gpus, "tflops": share * peak, "mfu": share,
        "batch": batch, "length": length, "step": step, "tokens": 20_000.0 * batch * length,
        "hours": hours, "gpu_hours": hours * gpus, "price": price, "cost": hours * gpus * price,
        "node": rate,
    }  # fmt: skip


def shown(form: str, above: str, table: list[list[str]]) -> str:
    if form == "csv":
        return "\n".join(",".join(f'"{cell}"' for cell in row) for row in table)
    if form == "open cells":  # HTML may leave out what ends a cell and a row
        body = "".join(f"<tr>{''.join(f'<td>{cell}' for cell in row)}\n" for row in table)
        return f"<h2>Results</h2><p>{above}<table>{body}</table>"
    if form == "two rows of a page":
        over = '<tr><th colspan="3">Setup</th>' + f'<th colspan="{len(table[0]) - 3}">Performance'
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>\n" for row in table)
        return f"<p>{above}</p><table>{over}</th></tr>{body}</table>"
    if form == "two rows":
        table = [["Hardware", "", "", "Performance", *[""] * (len(table[0]) - 4)], *table]
    if form == "continued":
        table[2:] = [["", *row[1:]] for row in table[2:]]
    if form == "sections":
        first = [f"**{' '.join(table[1][:3])}**", *[""] * (len(table[0]) - 3)]
        table = [["Run", *table[0][3:]], first, *(["a", *row[3:]] for row in table[1:])]
    if form in ("html", "spanned"):
        head, *rows = ["".join(f"<td>{cell}</td>" for cell in row) for row in table]
        if form == "spanned":  # the first column holds one model
            first = f"<td>{table[1][0]}</td>"
            rows = [row.removeprefix(first) for row in rows]
            rows[0] = f'<td rowspan="{len(rows)}">{table[1][0]}</td>{rows[0]}'
        body = "".join(f"<tr>{row}</tr>\n" for row in (head, *rows))
        return f"<h2>Results</h2><p>{above}</p><table>{body}</table>"
    if form == "turned":
        table = [list(row) for row in zip(*table, strict=True)]
        table[0] = ["Metric", *(f"Run {at}" for at in range(1, len(table[0])))]
    rows = [f"|{'|'.join(row)}|" for row in table]
    return f"## Results\n\n{above}\n\n{rows[0]}\n{'|'.join('-' * len(table[0]))}\n" + "\n".join(
        rows[1:]
    )


def page(seed: int, counts: dict[tuple[str, int], float], planted: bool) -> tuple[str, str]:
    """A page of one to four right rows, or with one number of the last row wrong."""
    draw = random.Random(seed)
    (model, length), flops = draw.choice(sorted(counts.items()))
    form, device = FORMS[seed % len(FORMS)], draw.choice(sorted(PEAKS))
    rows = [numbers(draw, flops, length, PEAKS[device]) for _ in range(draw.randint(1, 4))]
    fields = draw.sample(sorted(FIELDS), draw.randint(3, 8))
    if planted:
        fields = list(dict.fromkeys((*fields, "rate", "tflops", "mfu", "gpus", "total")))
        rows[-1][draw.choice(("rate", "tflops", "mfu", "total"))] *= draw.choice((0.5, 2, 1.3, 8))
    ways = [draw.choice(FIELDS[name]) for name in fields]
    table = [["Model", "GPU", "Precision", *(way[0] for way in ways)]]
    for row in rows:
        cells = (way[2].format(row[name] / way[1]) for name, way in zip(fields, ways, strict=True))
        table.append([NAMES[model], device, "BF16", *cells])
    above = draw.choice(
        ("", f"Sequences of {length} tokens.", "Others reached 47% MFU on 3072 GPUs.")
    )
    pages = dict.fromkeys(("html", "spanned", "open cells", "two rows of a page"), ".html")
    suffix = (pages | {"csv": ".csv"}).get(form, ".md")
    return shown(form, above, table), suffix


def accused(seed: int, counts: dict[tuple[str, int], float], planted: bool = False) -> list[str]:
    text, suffix = page(seed, counts, planted)
    checks = audit(read_document(text, suffix, f"a{suffix}")).checks
    bad = [one for one in checks if one.verdict in ("contradicts", "impossible")]
    return [f"{one.field}={one.stated}: {one.rule}\n{text}" for one in bad]


def test_no_right_row_is_accused_in_any_form(counts: dict[tuple[str, int], float]):
    assert [found for seed in range(180) for found in accused(seed, counts)] == []


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_most_planted_faults_are_found_in_each_form(
    form: int, counts: dict[tuple[str, int], float]
):
    seeds = range(form, 15 * len(FORMS), len(FORMS))
    assert sum(bool(accused(seed, counts, planted=True)) for seed in seeds) >= 0.8 * len(seeds)


def test_a_scale_or_an_average_settles_nothing(counts: dict[tuple[str, int], float]):
    """8 GPUs at 1,000 tokens/s each; a number in an unknown scale, and means of two runs."""
    head = "GPUs|Tokens/s/GPU|{}\n-|-|-\n"
    for unit in ("Tokens/s (x1000)", "Tokens/s (10^3)"):
        text = f"{head.format(unit)}8|1,000|8.0\n"
        assert all(
            one.verdict != "contradicts" for one in audit(read_document(text, ".md", "a")).checks
        )
    rows = "1|100|100\n3|100|300\n{}|2|150|200\n"
    text = (
        f"Run|{head.format('Tokens/s')}".replace("\n-|", "\n-|-|")
        + "a|"
        + rows.replace("\n3", "\nb|3")
    )
    for label, verdict in (("Mean", False), ("c", True)):
        checks = audit(read_document(text.format(label), ".md", "a")).checks
        assert any(one.verdict == "contradicts" for one in checks) == verdict


def verdicts(text: str, suffix: str = ".md") -> dict[str, set[str]]:
    """What is said of each stated text."""
    found: dict[str, set[str]] = {}
    for one in audit(read_document(text, suffix, f"a{suffix}")).checks:
        found.setdefault(one.stated, set()).add(one.verdict)
    return found


def test_headings_name_cases_and_a_ratio_may_follow_any_two_columns():
    """120 / 197 = 60.9 %, 110 / 197 = 55.8 %; 105.31 / 96.66 = 1.09; 110 / 100 - 1 = 10 %."""
    head = "Hardware|16B TFLOP/s/chip|16B MFU|64B TFLOP/s/chip|64B MFU\n-|-|-|-|-\n"
    found = verdicts(f"{head}2x v5e-256|120|60.9%|110|55.8%\n4x v5e-256|120|60.9%|110|65.8%\n")
    assert "holds" in found["60.9%"] and "holds" in found["55.8%"]
    assert "contradicts" in found["65.8%"]
    ratio = "Run|Scale|Here|Eos|Ratio (Here/Eos)\n-|-|-|-|-\na|1 N|105.31|96.66|1.09×\n"
    assert "holds" in verdicts(ratio)["1.09"]
    more = "Metric|Old|New|Δ\n-|-|-|-\nTokens/s|100|110|+10%\nMFU|30%|33%|+3 pp\n"
    found = verdicts(f"{more}Tokens/s/GPU|50|60|+30%\n")
    assert (found["+10%"], found["+30%"]) == ({"holds"}, {"contradicts"})
    assert "+3" not in found


def test_a_remark_below_a_table_counts_where_a_row_confirms_it():
    rows = "Phase|GPU hours|Cost\n-|-|-\na|200|$600\nb|200|$900\n\nCosts at $3/GPU-hour.\n"
    assert "contradicts" in verdicts(rows)["$900"]
    assert "contradicts" not in verdicts(rows.replace("$600", "$1,000"))["$900"]


def test_a_total_leaves_out_the_parts_of_its_rows_and_those_accused():
    rows = "Phase|GPU hours\n-|-\nOne|200\n- first|50\n- second|150\nTwo|{}\nTotal|600\n"
    assert "holds" in verdicts(rows.format(400))["600"]
    assert "contradicts" in verdicts(rows.format(300))["600"]
    priced = (
        "Phase|GPU hours|Price per GPU hour|Cost\n-|-|-|-\na|10.0|$3.00|$30.00\nb|20.0|$3.00|${}\n"
    )
    priced += "Total|30.0||$90.00\n"
    assert "holds" in verdicts(priced.format("60.00"))["$90.00"]
    found = verdicts(priced.format("80.00"))
    assert "contradicts" in found["$80.00"] and "contradicts" not in found.get("$90.00", ())


def test_a_size_may_be_that_of_a_mixture_and_a_fast_rate_one_of_fp8():
    """6 x 299e9 x 1,099.6 = 1,972 TFLOP/s if all of it works; 757 / 1,979 = 38.3 %."""
    rows = "{}|TFLOP/s/chip|tok/s/chip\n-|-|-\n298.8B|168.6|1,099.6\n"
    assert "contradicts" not in verdicts(rows.format("Parameters"))["168.6"]
    assert "contradicts" in verdicts(f"# A dense model\n\n{rows.format('Parameters')}")["168.6"]
    for rate, mfu, accused in ((757, "38.3%", False), (450, "22.7%", True)):
        text = f"# On H100\n\nRun|TFLOPS/GPU|MFU\n-|-|-\na|{rate}|{mfu}\n"
        assert ("contradicts" in verdicts(text)[mfu]) == accused


def test_no_time_is_accused_by_the_time_of_another_row():
    """57,289 / 29,600 = 1.94; 1,017.61 / 522.01 = 1.95 of work that need not be the same."""
    rows = "GPUs|Tokens/s|Training time (s)|Speedup\n-|-|-|-\n1|29600|1017.61|1.00\n2|57289|{}|{}\n"
    assert "contradicts" not in set().union(*verdicts(rows.format("522.01", "1.94")).values())
    assert "contradicts" in verdicts(rows.format("522.01", "2.94"))["2.94"]
    rows = rows.replace("Speedup", "Scaling efficiency").replace("1.00\n", "100%\n")
    assert "contradicts" not in set().union(*verdicts(rows.format("522.01", "97%")).values())


def test_carbon_may_come_from_energy_before_the_pue():
    """104 MWh x 1.1 x 0.610 kg = 69.8 t."""
    head = "Run|Energy (MWh)|PUE|kg CO2 (grid 0.610 kg/kWh)\n-|-|-|-\na|104|1.1|{}\n"
    assert verdicts(head.format("63,440"))["63,440"] == {"holds"}
    assert verdicts(head.format("69,784"))["69,784"] == {"possible"}
    assert verdicts(head.format("90,000"))["90,000"] == {"contradicts"}


def read(text: str, suffix: str = ".md") -> list[dict[str, str]]:
    """Values and words of each row as they are written."""
    return [
        {key: one.text for key, one in row.values.items()} | dict(row.words)
        for row in read_document(text, suffix, f"a{suffix}").rows
    ]


def test_headings_in_two_rows_are_cases_or_one_name():
    """7,690 x 51.473e9 / 989.4e12 = 40.0 %; 3,031 of an A100 are 50.0 %."""
    text = (
        "||H100||A100 80G||\n-|-|-|-|-\nModel|MFU|tok/s/GPU|MFU|tok/s/GPU\n"
        "Llama 3.1 8B|40.0%|7690|50.0%|3031\n"
    )
    first, second = read(text)
    assert (first["mfu"], first["accelerator"]) == ("40.0%", "H100")
    assert (second["tokens_per_second_per_gpu"], second["accelerator"]) == ("3031", "A100 80G")
    above = "||Throughput||Inference|\nGPUs|tok/s/GPU|MFU|Tokens/s\n-|-|-|-\n8|7690|40%|9999\n"
    (row,) = read(above)
    assert row["tokens_per_second_per_gpu"] == "7690" and "tokens_per_second" not in row
    page = (
        "<table><tr><th rowspan=2>Model<th colspan=2>8x H100<th colspan=2>16x H100"
        "<tr><th>MFU<th>Tokens/s<th>MFU<th>Tokens/s<tr><td>Llama 3.1 8B<td>40%<td>61520"
        "<td>41%<td>123040</table>"
    )
    assert [(row["gpus"], row["mfu"]) for row in read(page, ".html")] == [
        ("8", "40%"),
        ("16", "41%"),
    ]
    (row,) = read("# Llama 3.1 8B on H100\n,Throughput,\nGPUs,tok/s/GPU,MFU\n8,7690,40%\n", ".csv")
    assert (row["model"], row["accelerator"]) == ("llama3.1-8b", "h100")


def test_a_row_has_the_cells_that_it_continues_and_what_its_section_names():
    text = 'Model|GPUs|tok/s/GPU\n-|-|-\nLlama 3.1 8B|8|7690\n||16|7600|\n"|32|7500\n'
    assert [row["model"] for row in read(text)] == ["llama3.1-8b"] * 3
    text = (
        "Name|GPUs|tok/s/GPU\n-|-|-\n**Llama 3.1 8B, H100, BF16**||\na|8|7690\n"
        "**Llama 3.1 8B, A100**||\na|8|2424\n"
    )
    assert [row["accelerator"] for row in read(text)] == ["h100", "a100"]


def test_what_stands_below_a_table_counts_where_a_row_confirms_it():
    """396 / 7,690 = 51.5 GFLOP a token at 8,192 tokens; 300 of 989.4 is not 40 %."""
    rows = "GPUs|tok/s/GPU|TFLOP/s/GPU\n-|-|-\n8|7690|396\n8|7690|{}\n\n"
    caption = "Table 2: Llama 3.1 8B on H100, sequence length 8192.\n"
    assert "holds" in verdicts(rows.format(395) + caption)["396"]
    assert "contradicts" in verdicts(rows.format(300) + caption)["300"]
    alone = rows.replace("8|7690|396\n", "").format(300) + caption
    assert "contradicts" not in verdicts(alone)["300"]


def test_a_column_of_shares_is_of_the_two_columns_that_nearly_all_rows_say():
    """418.7 / 432 = 96.9 %, and so on; 200 / 312 = 64.1 %."""
    head = "Chip,Found,Theory,Efficiency\n"
    rows = "a,418.7,432,96.9%\nb,271.2,312,86.9%\nc,792.1,989,80.1%\nd,310.0,989,31.3%\n"
    assert verdicts(head + rows, ".csv")["96.9%"] == {"holds"}
    found = verdicts(f"{head}{rows}e,200.0,312,84.1%\n", ".csv")
    assert found["84.1%"] == {"contradicts"}
    few = "".join(rows.splitlines(keepends=True)[:3])
    with pytest.raises(ClaimError):  # three rows settle nothing
        verdicts(f"{head}{few}", ".csv")


@pytest.mark.parametrize("mark", ["<sup>1</sup>", "¹"])
def test_a_footnote_behind_a_number_that_ends_with_10_is_no_power(mark: str):
    text = f"<table><tr><td>Run<td>TFLOP/s/GPU<tr><td>a<td>1210{mark}</table>"
    assert [row["model_tflops_per_second_per_gpu"] for row in read(text, ".html")] == ["1210"]
    text = f"Run|TFLOP/s/GPU\n-|-\na|1210{mark}\n"
    assert [row["model_tflops_per_second_per_gpu"] for row in read(text)] == ["1210"]


def test_each_row_of_1x_is_the_base_of_the_rows_below_it():
    """17,068 / 15,735 = 1.085, 19,715 / 17,646 = 1.117, 21,795 / 19,173 = 1.137."""
    text = (
        "Batch|Step (ms)|tok/s/GPU|BF16-relative\n-|-|-|-\n1|260|15735|1.000x\n1|240|17068|1.085x\n"
        "2|464|17646|1.000x\n2|415|19715|{}\n4|854|19173|1.000x\n4|752|21795|1.137x\n"
    )
    assert "contradicts" not in set().union(*verdicts(text.format("1.117x")).values())
    assert "contradicts" in verdicts(text.format("1.171x"))["1.171"]


def test_the_form_of_a_device_and_whether_a_rate_is_of_one_gpu_are_left_open():
    """378 of an H100-PCIe's 756 are 50 %; 61,520 tokens/s of 8 GPUs are 7,690 of one."""
    row = "GPU|GPUs|TFLOP/s/GPU|MFU\n-|-|-|-\n{}|{}|378|50%\n"
    for device, gpus, accused in (("H100", 8, False), ("H100", 1024, True), ("H100 SXM", 8, True)):
        assert ("contradicts" in verdicts(row.format(device, gpus))["50%"]) == accused
    head = "# Llama 3.1 8B on H100, sequence length 8192\n\nGPUs|Tokens/s|TFLOP/s/GPU\n-|-|-\n"
    one = "8|7690|396\n"
    assert "contradicts" not in set().union(*verdicts(head + one).values())
    assert "contradicts" in set().union(*verdicts(f"{head}8|61520|396\n{one}").values())


def test_texts_name_gpus_of_a_node_a_share_of_a_memory_and_models_by_size():
    """3 x 4 = 12 GPUs; 93.2 / 140 = 66.6 %; Qwen3 235B at 4,096 tokens is 148.3 GFLOP a token."""
    text = (
        "# Runs\n\n8 nodes, 4x NVIDIA H200 (141 GB) per node.\n\n## Results\n\n"
        "GPUs|Nodes|Mem/GPU|% of 140 GB\n-|-|-|-\n12|3|93.2 GB|66.6%\n{}|2|70.0 GB|{}\n"
    )
    assert "contradicts" not in set().union(*verdicts(text.format(8, "50.0%")).values())
    found = verdicts(text.format(16, "60.0%"))
    assert "contradicts" in found["16"] and "contradicts" in found["60.0%"]
    text = (
        "# Qwen3-235B-A22B\n\n## H100\n\nModel|Seq len|tok/s/GPU|Per GPU TF\n-|-|-|-\n"
        "235B|4096|1862|276\n235B|4096|1663|{}\n"
    )
    assert "holds" in verdicts(text.format(247))["276"]
    assert "contradicts" in verdicts(text.format(494))["494"]


def accused_in(text: str, suffix: str = ".md") -> set[str]:
    """What is accused of a text, as it is stated."""
    found = verdicts(text, suffix).items()
    return {stated for stated, said in found if said & {"contradicts", "impossible"}}


@pytest.mark.parametrize("cell", ["1,2,4,8", "64,1024", "8,", "1,01M", "-%", "0." + "3" * 20])
def test_a_list_of_numbers_keeps_no_document_from_being_read(cell: str):
    assert accused_in(f"GPUs|Tokens/s|Note\n-|-|-\n8|800|{cell}\n16|1600|{cell}\n") == set()


def test_a_change_may_be_of_the_row_above_or_over_the_row_that_says_nothing():
    """60.0 / 25.5 - 1 = 135 %, 51.0 / 60.0 - 1 = -15 %; 6,422 / 4,969 - 1 = 29.2 %."""
    head = (
        "Run|Memory (GiB)|% change vs previous\n-|-|-\na|25.5|-\nb|60.0|+135.29%\nc|51.0|-15.00%\n"
    )
    rows = "d|44.0|-13.73%\ne|40.0|-9.09%\nf|30.0|{}\n"
    assert accused_in(head + rows.format("-25.00%")) == set()
    assert accused_in(head + rows.format("-2.50%")) == {"-2.50%"}
    text = (
        "System|PP|Tokens/s/GPU|vs GB200\n-|-|-|-\nGB300|4|6338|+27.6%\nGB300|4|6422|{}\n"
        "GB200|8|4969|baseline\nB300|8|3541|—\n"
    )
    assert verdicts(text.format("+29.2%"))["+29.2%"] == {"holds"}
    assert accused_in(text.format("+32.3%")) == set()  # one of two rows is too little
    two = "GB200|8|4969|baseline\n"
    assert accused_in(text.format("+29.2%") + two) == set()  # of which of the two?


def test_what_differs_by_points_or_is_the_same_is_no_increase():
    text = "Metric|Before|After|Improvement\n-|-|-|-\nGPU use|70%|92%|+22%\n"
    assert accused_in(text) == set()
    assert accused_in(text.replace("+22%", "+13%")) == {"+13%"}
    turned = "Metric|Old|New|Change\n-|-|-|-\nMFU|60%|92%|+53%\nUse|70%|92%|+22%\n"
    assert accused_in(turned) == set()
    same = "Part|Old|New|Change\n-|-|-|-\nLayers|18|30|+67%\nHeads|16|16|Same\nTokens|102|62|-39%\n"
    assert accused_in(same) == set()


def test_gpus_of_a_node_or_of_an_expert_are_not_all_gpus():
    assert accused_in("# Nodes\n\n- Nodes: 4\n- GPUs per node: 1x NVIDIA A10\n- Fast: 1\n") == set()
    text = "# Mixtral 8x22B\n\n- Tensor parallel: 4 GPUs share each expert\n- Data parallel: 2\n"
    assert accused_in(text) == set()
    chips = "Run|tok/s|tok/s/chip\n-|-|-\n64-chip BF16|267,284|{}\n"
    assert accused_in(chips.format("4,176")) == set()
    assert accused_in(chips.format("2,088")) == {"2,088"}
    ranks = "Run|GPUs|tok/s\n-|-|-\n{}-{}, DP128|64|205,313\n"  # a chip may be two devices
    assert accused_in(ranks.format(64, "chip")) == set()
    assert accused_in(ranks.format(64, "node")) == {"64"}


def test_a_space_may_part_thousands_and_a_unit_may_stand_in_one_cell_only():
    """8 x 16,384 / 2.25 s / 8 = 7,282; 178.4 / 47.5 = 3.76, 50.0 / 22.4 = 2.23 and so on."""
    text = "GPUs|GBS|Seq len|Step time (s)|tok/s/GPU\n-|-|-|-|-\n8|8|16384|2.25|{}\n"
    assert accused_in(text.format("7 282")) == set()
    assert accused_in(text.format("58 254")) == {"58254"}
    rows = (
        "Len|Causal|SWA|SWA speedup\n-|-|-|-\n4096|14.5 ms|10.4|1.39x\n8192|50.0|22.4|2.23x\n"
        "16384|178.4|47.5|{}\n32768|688.7|96.8|7.11x\n65536|2669.8|194.0|13.76x\n"
    )
    assert accused_in(rows.format("3.76x")) == set()
    assert accused_in(rows.format("1.50x")) == {"1.50"}


def test_rows_that_state_shapes_or_a_tokenizer_are_not_the_model_of_the_text():
    text = "# Mistral 7B\n\nVariant|Query heads|KV heads\n-|-|-\nMQA|32|1\nGQA|32|8\n"
    assert accused_in(text) == set()
    text = (
        "# Runs of agpt-2b\n\nIt takes the `Llama-3.2-1B` tokenizer: --tokenizer_name "
        "meta-llama/Llama-3.2-1B, seq len 8192, on A100.\n\n"
        "Run|tok/s/GPU|TFLOP/s/GPU\n-|-|-\na|10351|99.5\n"
    )
    assert accused_in(text) == set()


def test_tokens_per_gpu_are_no_rate_and_a_sparse_mode_is_no_dense_peak():
    """6 x 7e9 x 750,000 would be 31,500 TFLOP/s."""
    text = "# A 7B model on H100\n\nSeq len|Samples|{}\n-|-|-\n512|1465|750K\n"
    assert accused_in(text.format("Tokens per GPU")) == set()
    assert accused_in(text.format("Tokens/s per GPU")) == {"750K"}
    peaks = "GPU|Mode|BF16 peak\n-|-|-\nB200|Dense|2,250 TFLOPS\nB200|{}|4,500 TFLOPS\n"
    assert accused_in(peaks.format("Sparse (2:4)")) == set()
    assert accused_in(peaks.format("Dense")) == {"4500"}
    sheet = "GPU|BF16 dense TFLOPS\n-|-\nL40S|{}\n"
    assert accused_in(sheet.format("362.05")) == set()
    assert accused_in(sheet.format("366")) == {"366"}


def test_figures_of_a_superchip_a_rack_or_a_card_are_those_of_its_devices():
    """GB200: 186 GB, 8 TB/s, 2,500 dense BF16; an MI250X card is two of 191.5 TFLOP/s and 64 GB."""
    sheet = "GPU|Memory (GB)|Memory bandwidth (TB/s)|BF16 dense TFLOPS\n-|-|-|-\n{}\n"
    assert accused_in(sheet.format("GB200 (superchip)|384|16|5000")) == set()
    assert accused_in(sheet.format("GB200 NVL72 (rack)|13800|576|180000")) == set()
    assert accused_in(sheet.format("GB200|384|16|5000")) == {"384", "16", "5000"}
    assert accused_in(sheet.format("MI250X|128|3.2|383")) == set()
    assert accused_in(sheet.format("MI250X|128|3.2|766")) == {"766"}


def test_a_share_of_memory_may_be_of_a_form_of_the_device_with_more():
    """30.99 GiB are 32.6 % of 95 GiB, which some clouds' H100 has, and 38.7 % of 80."""
    table = "# 8B on {}\n\nGPU|tps/GPU|memory|memory %\n-|-|-|-\n{}|7034|30.99GiB|{}\n"
    assert accused_in(table.format("H100", "H100", "32.62%")) == set()
    assert accused_in(table.format("H100", "H100", "16.3%")) == {"16.3%"}
    assert accused_in(table.format("H100 80GB", "H100 80GB", "32.62%")) == {"32.62%"}


def test_a_carbon_intensity_is_read_with_its_unit_only():
    """461.16 kWh at 350 g for a kWh are 161.406 kg; a bare 350 may be of any unit."""
    card = "## Card\n\n- Carbon intensity: {}\n- Total energy: 461.16 kWh\n- Carbon emitted: {}\n"
    for said in ("350 gCO2eq/kWh", "350 g/kWh", "0.35 kg/kWh"):
        assert verdicts(card.format(said, "161.406 kg"), ".md")["161.406"] == {"holds"}
        assert accused_in(card.format(said, "161,406 kg")) == {"161,406"}
    assert accused_in(card.format("350", "161.406 kg")) == set()


def test_tflops_that_are_the_peak_in_every_row_are_no_rates_and_a_comma_may_be_decimal():
    """312 of 312 would be an MFU of 1; 0,552 is not 552."""
    sheet = "Scenario|GPUs|TFLOPs per GPU|MFU (0-1)\n-|-|-|-\nA100 · 90d|{}|{}|0,552\n"
    sheet += "A100 · 150d|210|312|0,552\n"
    assert accused_in(sheet.format(349, 312)) == set()
    assert accused_in(sheet.format(349, 172)) == {"0,552"}
