"""Claims about the commands ``audit`` and ``project``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from scalebook.cli import main

SERIES = [
    "--point", "1:34086:1:11", "--point", "4:122599:1:44", "--point", "8:205908:2:88",
    "--point", "16:374571:4:176", "--point", "32:700972:8:352",
]  # fmt: skip


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_sample_can_be_audited(capsys, tmp_path):
    code, text, _ = run(capsys, "audit", "--sample")
    assert code == 0
    path = tmp_path / "claims.toml"
    path.write_text(text)
    code, out, _ = run(capsys, "audit", str(path))
    assert code == 1
    assert "contradicts    line 11" in out
    assert "should be 46.796 %" in out
    assert "in this order: impossible 1, contradicts 2, holds 10, possible 0" in out
    assert out.count("\n  possible ") == 2
    assert "   2.11  BF16, sequence 8,192, 8 GPUs; NVIDIA DGX Cloud" in out


def test_a_wrong_claim_is_exit_code_1(capsys):
    assert run(capsys, "audit", "example")[0] == 1
    assert run(capsys, "audit", "scaling-analysis")[0] == 0


def test_json_has_the_right_value_and_the_arithmetic(capsys):
    code, out, _ = run(capsys, "audit", "platform-benchmark", "--json", "--problems")
    assert code == 1
    document = json.loads(out)
    hours = next(
        check
        for check in document["checks"]
        if check["stated"] == "5.7" and check["verdict"] == "contradicts"
    )
    assert hours["line"] == 65
    assert hours["field"] == "elapsed_hours"
    assert hours["expected"] == pytest.approx(191.2188, abs=1e-3)
    assert "145,267" in hours["arithmetic"]
    assert document["counts"]["impossible"] >= 6
    assert {check["verdict"] for check in document["checks"]} == {"contradicts", "impossible"}


def test_result_rows_are_audited(capsys, tmp_path):
    path = tmp_path / "rows.json"
    path.write_text('[{"run_id": "r", "world_size": 8, "tokens_per_second": 800.0, '
                    '"tokens_per_second_per_gpu": 90.0, "mfu": null}]')  # fmt: skip
    code, out, _ = run(capsys, "audit", str(path))
    assert code == 1
    assert "tokens_per_second_per_gpu = 90, should be 100" in out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "[[claims]]\nmfu = 'x'", "a.toml line 2"),
        ("a.toml", "\udcff", "not UTF-8"),
        ("a.json", "{}", "contains no result rows"),
        ("a.json", "[" * 100000, "not valid JSON"),
        ("a.json", "[1]", "contains no result rows"),
        ("a.json", '[{"world_size": "8"}]', "must be a number"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(capsys, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode(errors="surrogateescape"))
    code, out, error = run(capsys, "audit", str(path))
    assert code == 2
    assert out == ""
    assert message in error
    assert error.count("\n") == 1


def test_a_missing_file_names_what_is_shipped(capsys):
    code, _, error = run(capsys, "audit", "no-such-file")
    assert code == 2
    assert "peak-summary" in error
    code, _, error = run(capsys, "audit")
    assert code == 2
    assert "--sample" in error


def test_fields_and_samples_are_listed(capsys):
    assert "tokens_per_second_per_gpu" in run(capsys, "audit", "--fields")[1]
    names = json.loads(run(capsys, "audit", "--samples", "--json")[1])
    assert "scaling-analysis" in {item["name"] for item in names}


def test_projection_prints_its_interval_and_refuses_beyond_the_limit(capsys):
    code, out, _ = run(capsys, "project", *SERIES, "--to", "64", "--to", "256", "--json")
    assert code == 0
    document = json.loads(out)
    near, far = document["projections"]
    assert near["low"] < near["tokens_per_second"] < near["high"] < 64 * 34086
    assert far["tokens_per_second"] is None
    assert "the limit is 4 times" in far["reason"]
    assert document["scaling"]["kind"] == "weak"
    assert document["economics"] == {}


UNKNOWN = ("--point", "8:88000", "--point", "32:340000", "--point", "64:640000", "--kind", "weak")


def test_points_without_nodes_have_unknown_nodes_and_say_nothing_about_the_network(capsys):
    code, out, _ = run(capsys, "project", *UNKNOWN, "--to", "128")
    assert code == 0
    assert "Base: 8 GPUs on unknown nodes at 88,000 tokens/s" in out
    assert [line.split()[1] for line in out.splitlines()[2:5]] == ["unknown"] * 3
    assert "128 GPUs: no projection. No run is known to span two nodes" in out
    assert "State the nodes of each run" in out


@pytest.mark.parametrize("how", [("--platform", "h100"), ("--gpus-per-node", "8")])
def test_the_size_of_a_node_gives_the_nodes_of_points_without_them(capsys, how):
    code, out, _ = run(capsys, "project", *UNKNOWN, *how, "--point", "16:170000:4", "--to", "128")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[2:6]] == [
        ["8", "1"], ["16", "4"], ["32", "4"], ["64", "8"],
    ]  # fmt: skip
    assert "128 GPUs: no projection" not in out


def test_nodes_that_result_rows_lack_are_unknown(capsys, tmp_path):
    path = tmp_path / "rows.json"
    rows = [{"run_id": "a", "world_size": 1, "tokens_per_second": 10.0, "nodes": None},
            {"run_id": "b", "world_size": 16, "tokens_per_second": 150.0}]  # fmt: skip
    path.write_text(json.dumps(rows))
    _, out, _ = run(capsys, "project", "--results", str(path), "--json")
    found = [row["point"]["nodes"] for row in json.loads(out)["scaling"]["rows"]]
    assert found == [1, None]  # one GPU is on one node


def test_projection_reads_well(capsys):
    _, out, _ = run(capsys, "project", *SERIES, "--to", "64", "--to", "256")
    assert "Base: 1 GPU on 1 node at 34,086 tokens/s. Scaling: weak" in out
    assert "64.3%" in out
    assert "256 GPUs: no projection." in out


def test_economics_of_a_projection_use_its_interval(capsys):
    arguments = ("--tokens", "1T", "--price-per-gpu-hour", "2..3", "--json")
    _, out, _ = run(capsys, "project", *SERIES, "--to", "64", *arguments)
    document = json.loads(out)
    near = document["projections"][0]
    cost = document["economics"]["cost"]
    assert cost["low"] == pytest.approx(1e12 / near["high"] / 3600 * 64 * 2)
    assert cost["high"] == pytest.approx(1e12 / near["low"] / 3600 * 64 * 3)
    assert document["economics"]["energy"]["reason"] == "needs watts_per_gpu, pue"


def test_a_rate_of_other_gpus_than_those_stated_is_refused(capsys):
    asked = ("project", *SERIES, "--to", "64", "--tokens", "1T", "--price-per-gpu-hour", "2")
    code, out, error = run(capsys, *asked, "--gpus", "8")
    assert (code, out) == (2, "")
    assert "--gpus 8 is not the size of --to 64" in error
    assert run(capsys, *asked, "--gpus", "64") == run(capsys, *asked)
    assert run(capsys, *asked, "--gpus", "8", "--tokens-per-second", "200K")[0] == 0


def test_runs_of_other_splits_are_no_series_and_those_that_name_none_are(capsys, tmp_path):
    path = tmp_path / "rows.json"
    row = {"run_id": "r", "status": "completed", "model": "a", "tokens_per_second": 90.0}
    names = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size",
             "expert_parallel_size", "micro_batch_size")  # fmt: skip
    for name in names:
        for second, expected in ((2, 2), (1, 0), (None, 0)):
            rows = [row | {"world_size": 1, name: 1}, row | {"world_size": 2, name: second}]
            path.write_text(json.dumps(rows))
            code, _, error = run(capsys, "project", "--results", str(path))
            assert code == expected, (name, second)
            assert (f"differ in {name} (1, 2)" in error) == (expected == 2)


def test_a_refused_projection_gives_economics_nothing(capsys):
    _, out, _ = run(capsys, "project", *SERIES, "--to", "256", "--tokens", "1T", "--json")
    economics = json.loads(out)["economics"]
    assert economics["training_days"]["low"] is None
    assert economics["training_days"]["reason"] == "needs tokens_per_second"


def test_results_must_be_one_series(capsys, tmp_path):
    path = tmp_path / "rows.json"
    rows = [
        {"run_id": f"r{n}", "status": "completed", "model": "a", "platform": "cpu",
         "world_size": n, "nodes": 1, "global_batch_size": 8 * n, "tokens_per_second": 90.0 * n}
        for n in (1, 2, 4)
    ]  # fmt: skip
    rows.append({"run_id": "failed", "status": "failed", "tokens_per_second": None})
    path.write_text(json.dumps(rows))
    code, out, _ = run(capsys, "project", "--results", str(path), "--json")
    assert code == 0
    assert len(json.loads(out)["scaling"]["rows"]) == 3
    rows.append({**rows[0], "model": "b"})
    path.write_text(json.dumps(rows))
    code, _, error = run(capsys, "project", "--results", str(path))
    assert code == 2
    assert "differ in model (a, b)" in error
    assert run(capsys, "project", "--results", str(path), "--model", "a")[0] == 0
    rows = [row | {"precision": name} for row in rows[:3] for name in ("bf16", "fp8")]
    path.write_text(json.dumps(rows))
    assert "differ in precision (bf16, fp8)" in run(capsys, "project", "--results", str(path))[2]
    one = ("project", "--results", str(path), "--precision", "fp8", "--json")
    assert len(json.loads(run(capsys, *one)[1])["scaling"]["rows"]) == 3
    path.write_text(
        json.dumps([row | {"packed_documents": row["world_size"]} for row in rows[::2]])
    )
    assert "differ in packed_documents (1, 2, 4)" in run(capsys, *one[:3])[2]


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("--to", "8"), ("--point", "8"), ("--point", "8:nan"), ("--point", "8:1:9"),
        ("--point", "a:b:c:d:e"), ("--point", "8:100:1:8:9"), ("--tokens", "abc"),
        ("--tokens", "2..1"), ("--pue", "0.5"), ("--point", "4:100:2", "--base", "node"),
        ("--point", "8:100", "--to", "0"), ("--results", "no-such.json"),
    ],
)  # fmt: skip
def test_bad_arguments_are_one_line_and_exit_code_2(capsys, arguments):
    code, out, error = run(capsys, "project", *arguments)
    assert code == 2
    assert out == ""
    assert error.count("\n") == 1


def test_the_pure_modules_load_no_heavy_stack():
    code = (
        "import sys, scalebook.audit, scalebook.measure.economics;"
        "early = set(sys.modules); import scalebook.measure.scaling;"
        "print(sorted({'torch', 'polars', 'scipy'} & set(sys.modules) | {'numpy'} & early))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
