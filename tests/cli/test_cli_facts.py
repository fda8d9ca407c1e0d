"""The commands that answer from the catalog and the FLOPs formulas."""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
from importlib import import_module

import pytest

from scalebook.cli import COMMANDS, GROUPS, build_commands, facts, main
from scalebook.cli.terminal import Subparsers, print_data, print_table
from scalebook.facts.flops import CONVENTIONS, flops_per_token


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Return a function that runs a command and returns its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEBOOK_CATALOG", "")

    def call(*arguments):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def answer(run):
    """Return a function that runs a command with --json and returns what it printed."""

    def call(*arguments):
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return call


FLOPS = ("flops", "--model", "llama3.1-8b", "--sequence-length", 8192)


def test_flops_prints_every_convention_as_json(answer):
    found = answer(*FLOPS)
    assert found["megatron_causal"] == 51470401536
    assert found["full_attention"] == 57912852480
    assert found["palm_6n"] == 61066469376
    assert found["six_n"] == 48181567488
    assert "narayanan_2021" in found
    assert set(found) == set(CONVENTIONS)


def test_flops_prints_a_table_for_people(run):
    code, out, _ = run(*FLOPS)
    assert code == 0
    assert "megatron_causal" in out
    assert "51.4704" in out


def test_flops_counts_hardware_flops_with_recomputation(answer):
    model = answer(*FLOPS)["full_attention"]
    full = answer(*FLOPS, "--recompute", "full")["full_attention"]
    some = answer(*FLOPS, "--recompute", "full", "--recompute-num-layers", 8)["full_attention"]
    selective = answer(*FLOPS, "--recompute", "selective")["full_attention"]
    assert model < selective < full
    assert some - model == pytest.approx((full - model) / 4)


def test_flops_takes_packed_lengths_mtp_and_padding(answer):
    packed = answer("flops", "--model", "llama3.1-8b", "--packed-lengths", 4096, 4096)
    whole = answer("flops", "--model", "llama3.1-8b", "--sequence-length", 4096)
    assert packed == whole
    v3 = ("flops", "--model", "deepseek-v3", "--sequence-length", 4096)
    assert answer(*v3, "--mtp-layers", 1)["megatron_causal"] == 259992950784
    padded = answer(*FLOPS, "--tensor-parallel-size", 8)["megatron_causal"]
    assert padded - answer(*FLOPS)["megatron_causal"] == 6 * 4096 * (129024 - 128256)


def test_convert_names_the_convention_that_a_published_pair_fits(answer):
    pair = ("--tokens-per-second-per-gpu", 12273, "--tflops", 711)
    found = answer("convert", "--model", "llama3.1-8b", "--sequence-length", 8192, *pair)
    assert found["fits"][0]["convention"] == "full_attention"
    assert abs(found["fits"][0]["relative_difference"]) < 0.001
    assert found["tflops_per_second_per_gpu"]["megatron_causal"] == pytest.approx(631.7, abs=0.01)


def test_convert_says_which_convention_of_the_frameworks_is_the_likeliest(run):
    pair = ("--tokens-per-second-per-gpu", "7,771", "--tflops", "400")
    code, out, _ = run("convert", "--model", "llama3.1-8b", "--sequence-length", 8192, *pair)
    assert code == 0
    assert "Likeliest: megatron_causal" in out
    assert "Within the printed digits too: sliding_window, exact_causal." in out
    assert "--packed-lengths" in out


def test_convert_says_that_no_convention_fits_and_which_is_nearest(run):
    pair = ("--tokens-per-second-per-gpu", 10982, "--tflops", 123)
    code, out, _ = run("convert", "--model", "llama3.1-8b", "--sequence-length", 8192, *pair)
    assert code == 0
    assert "Likeliest" not in out
    assert "None fits the printed digits. Nearest: hf_total_flos, off by -75.13% (" in out


@pytest.mark.parametrize(
    ("rate", "tflops", "said"),
    [  # 10,982 x 51.47 GFLOP are 565.2 TFLOP/s; the least of the conventions says 494.5
        (10982, "0.565", "875 times less"), (10982000, "565", "875 times less"),
        (87856, "565", "7 times less"), (10982, "836000", "999 times more"),
    ],
)  # fmt: skip
def test_convert_says_that_units_do_not_fit(run, rate, tflops, said):
    pair = ("--tokens-per-second-per-gpu", rate, "--tflops", tflops)
    _, out, _ = run("convert", "--model", "llama3.1-8b", "--sequence-length", 8192, *pair)
    assert "These units do not fit" in out
    assert said in out
    assert "%" not in out


def test_convert_between_conventions_needs_no_token_rate(answer):
    options = ("--tflops", 711, "--convention", "full_attention")
    found = answer("convert", "--model", "llama3.1-8b", "--sequence-length", 8192, *options)
    assert found["tflops_per_second_per_gpu"]["full_attention"] == pytest.approx(711)
    assert found["tflops_per_second_per_gpu"]["megatron_causal"] == pytest.approx(631.9, abs=0.01)


def test_catalog_lists_are_whole_as_json(answer):
    accelerators = {item["name"]: item for item in answer("accelerators")}
    assert accelerators["MI300X"]["peak_tflops"]["bf16"] == 1307.4
    assert accelerators["H100-SXM5-80GB"]["sparse_peak_tflops"]["bf16"] == 1978.9
    models = {item["name"]: item for item in answer("models")}
    assert models["qwen2.5-7b"]["parameters"] == 7615616512
    assert models["mixtral-8x7b"]["active_parameters"] == 12879925248
    platforms = {item["name"]: item for item in answer("platforms")}
    assert platforms["cpu"]["accelerator"] is None
    assert platforms["mi300x"]["gpus_per_node"] == 8
    assert len(answer("strategies")) >= 10
    chosen = answer("strategies", "--platform", "mi300x", "--model", "llama3.1-8b")
    sizes = {item["name"]: item["tensor_parallel_size"] for item in chosen}
    assert sizes["maximum_performance"] == 1
    assert sizes["identical_config"] == 4


def test_a_driver_string_names_one_accelerator_exactly(run, answer):
    (found,) = answer("accelerators", "--device", "AMD Instinct MI300X OAM")
    assert found["name"] == "MI300X"
    code, _, err = run("accelerators", "--device", "AMD Instinct MI300")
    assert code == 2
    assert "[[accelerators]]" in err
    assert run("accelerators", "--device", "")[0] == 2
    named = [one["name"] for one in answer("accelerators", "--device", "h200")]
    assert named == ["H200-SXM-141GB", "H200-NVL-141GB"]


@pytest.mark.parametrize("name", ["accelerators", "models", "platforms", "strategies"])
def test_catalog_lists_have_a_row_each_for_people(run, answer, name):
    code, out, _ = run(name)
    assert code == 0
    assert len(out.splitlines()) >= len(answer(name)) + 1


ASKED = ("recommend", "--model", "tiny-llama", "--platform", "cpu")
CONVERT = ("convert", "--model", "llama3.1-8b", "--sequence-length", 8)
BAD = {
    "unknown model": (("flops", "--model", "lama3.1-8b", "--sequence-length", 1), "'llama3.1-8b'"),
    "no model": (("flops", "--sequence-length", 8), "--model"),
    "no length": (("flops", "--model", "llama3.1-8b"), "--sequence-length"),
    "negative length": ((*FLOPS[:-1], -8), "'-8' is not a whole number of at least 1"),
    "no number": ((*FLOPS[:-1], "nan"), "'nan' is not a whole number"),
    "huge": ((*FLOPS[:-1], "9" * 5000), "is not a whole number"),
    "large": ((*FLOPS[:-1], 10**15 + 1), "is above 1,000,000,000,000,000, the largest allowed"),
    "convert huge": ((*CONVERT, "--tflops", "1e308", "--convention", "six_n"), "'1e308' is above"),
    "fraction": ((*FLOPS[:-1], "8.5"), "'8.5' is not a whole number"),
    "layers": ((*FLOPS, "--recompute", "full", "--recompute-num-layers", 33), "between 0 and 32"),
    "recompute": ((*FLOPS, "--recompute", "some"), "'some'"),
    "convert nothing": (
        CONVERT,
        "Nothing to convert",
    ),
    "convert nan": (
        (*CONVERT, "--tflops", "nan"),
        "'nan' is not a number above zero",
    ),
    "convention": (
        (*CONVERT, "--tflops", 1, "--convention", "megatron"),
        "Unknown convention 'megatron'",
    ),
    "catalog": ((*FLOPS, "--catalog", "none.toml"), "none.toml cannot be read"),
    "catalog without a file": ((*FLOPS, "--catalog"), "expected one argument"),
    "recover": (("recover", "--runs", "none"), "No folder of runs at none."),
    "status": (("status", "--runs", "none"), "No folder of runs at none."),
    "status that watches": (("status", "--watch", "--runs", "none"), "No folder of runs at none."),
    "serve": (("serve", "--runs", "none"), "No folder of runs at none."),
    "recommend": ((*ASKED, "--runs", "none"), "No folder of runs at none."),
    "tune": (("tune", *ASKED[1:], "--runs", "none", "--dry-run"), "No folder of runs at none."),
    "port": (
        ("serve", "--port", 65536),
        "Port 65536 cannot be used: ports are at most 65535. Name",
    ),
    "port below": (("serve", "--port", -1), "'-1' is not a whole number of at least 0"),
    "command": (("flop",), "Unknown command 'flop'"),
    "nearest": (("recomend",), "Did you mean 'recommend'? See scalebook --help."),
    "mistyped command": (("reprot",), "Did you mean 'report'?"),
    "unknown platform": (("strategies", "--platform", "mi30x"), "'mi300x'"),
    "unknown strategies' model": (("strategies", "--model", "llama"), "Unknown model 'llama'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_2(run, name):
    arguments, message = BAD[name]
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert err.startswith("scalebook")


def test_a_command_that_is_interrupted_says_so_in_one_line(run, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(facts, "models", interrupted)
    assert run("models") == (130, "", "scalebook: Interrupted.\n")


def test_a_catalog_file_may_be_named_before_or_after_the_command(run, answer, tmp_path):
    row = '[[platforms]]\nname = "h100"\ngpus_per_node = 3\nsource = "own"\n'
    (tmp_path / "own.toml").write_text(row)
    for arguments in (("--catalog", "own.toml", "platforms"), ("platforms", "--catalog=own.toml")):
        code, out, _ = run(*arguments, "--json")
        assert code == 0
        assert {item["name"]: item["gpus_per_node"] for item in json.loads(out)}["h100"] == 3


def test_a_broken_catalog_file_is_one_line_with_its_place(run, tmp_path):
    (tmp_path / "own.toml").write_text('[[models]]\nname = "x"\nlayers = 3\nsource = "y"\n')
    code, _, err = run("models", "--catalog", "own.toml")
    assert code == 2
    assert "own.toml line 1: models 'x': num_layers is missing" in err
    assert len(err.splitlines()) == 1


def test_the_command_answers_without_the_heavy_packages():
    code = (
        "import sys\n"
        "from scalebook.cli import main\n"
        "main(['flops', '--model', 'llama3.1-8b', '--sequence-length', '8192', '--json'])\n"
        "heavy = ('torch', 'numpy', 'polars', 'scipy', 'pandas', 'papermill', 'altair')\n"
        "sys.exit(repr([name for name in heavy if name in sys.modules] or None))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "None"
    found = json.loads(done.stdout)
    from scalebook.facts import catalog

    assert found["six_n"] == flops_per_token(catalog.model("llama3.1-8b"), 8192, "six_n")


def options_of(parser):
    """Yield the command and the name of every argument with its help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options_of(command)
        else:
            yield parser.prog, action.option_strings or action.dest, action.help


def test_every_argument_of_every_command_says_what_it_is():
    assert [found[:2] for found in options_of(build_commands()[0]) if not found[2]] == []


def test_published_results_can_be_listed_for_a_device_and_a_model(capsys):
    for device in ("h100-sxm5-80gb", "h100"):  # a platform names its accelerator
        assert main(["published", "--model", "llama3.1-8b", "--accelerator", device]) == 0
    assert "as their sources state them" in capsys.readouterr().out
    arguments = ["published", "--model", "llama3.1-8b", "--json"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["model"] for row in rows} == {"llama3.1-8b"}
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize("module", sorted({*COMMANDS.values()}))
def test_a_module_registers_the_commands_that_it_is_listed_with(module: str):
    commands = Subparsers(argparse.ArgumentParser())
    import_module(f"scalebook.cli.{module}").register(commands)
    assert set(commands.help) == {name for name, owner in COMMANDS.items() if owner == module}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["accelerators"],
        ["flops", "--model", "llama3.1-8b", "--sequence-length", "8"],
    ],
)
def test_commands_of_facts_alone_load_no_heavy_package(arguments: list[str]):
    heavy = ("pydantic", "polars", "torch", "numpy", "scalebook.config", "scalebook.running.launch")
    code = (
        "import sys\nfrom scalebook.cli import main\n"
        f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
        f"sys.exit(','.join(name for name in {heavy!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_shows_every_command_in_its_group(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    blocks = capsys.readouterr().out.split("\n\n")
    shown = {block.split(":\n")[0]: block.split(":\n")[1] for block in blocks if ":\n" in block}
    for group, names in GROUPS.items():
        assert [line.split()[0] for line in shown[group].splitlines()] == list(names)


def test_csv_has_the_fields_of_json(capsys):
    assert main(["platforms", "--csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["platforms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found] == [row["name"] for row in rows]
    assert set(found[0]) == set(rows[0])


def test_csv_holds_no_formula_and_keeps_nested_values_as_json(capsys):
    print_data(
        [{"name": "=1+1", "sizes": {"tp": 2}, "on": True, "rate": -1.5, "none": None}], "csv"
    )
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["name"] == "'=1+1"
    assert json.loads(row["sizes"]) == {"tp": 2}
    assert (row["on"], row["rate"], row["none"]) == ("true", "-1.5", "")


def test_a_name_that_others_begin_with_is_taken_for_one_of_them(capsys):
    for typed, meant in (("llama3", "llama3.1-8b"), ("deepseek-v4", "deepseek-v4-pro")):
        assert main(["flops", "--model", typed, "--sequence-length", "8192"]) == 2
        assert capsys.readouterr().err.endswith(f"Did you mean '{meant}'?\n")


def test_flops_count_named_modules_again_and_refuse_options_without_effect(capsys):
    asked = ["flops", "--model", "llama3.1-8b", "--sequence-length", "8192", "--json"]
    selective = [*asked, "--recompute", "selective", "--recompute-modules", "mlp layernorm"]
    assert main(selective) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["megatron_causal"] == 51_470_401_536 + 2 * 32 * 3 * 4096 * 14336
    for more, told in (
        (["--recompute-modules", "mlp"], "needs --recompute selective, not none"),
        (["--recompute-num-layers", "4"], "needs --recompute full, not none"),
        (["--recompute", "selective", "--recompute-modules", "mpl"], "Did you mean 'mlp'?"),
    ):
        assert main([*asked, *more]) == 2
        assert told in capsys.readouterr().err


def test_an_unknown_model_names_the_nearest(capsys):
    assert main(["flops", "--model", "llama31-8b", "--sequence-length", "8"]) == 2
    assert capsys.readouterr().err.endswith("Did you mean 'llama3.1-8b'?\n")


def test_wide_and_combining_characters_keep_columns_in_line(capsys):
    print_table(("name", "rate"), [("训练一", "12"), ("e\u0301a", "100")])
    assert capsys.readouterr().out.splitlines() == [
        "name    rate",
        "训练一    12",
        "e\u0301a       100",
    ]


def test_a_negative_percentage_is_a_value_and_not_an_option(capsys):
    with pytest.raises(SystemExit):
        main(["gate", "--tolerance", "-1%"])
    assert "'-1%' is not a fraction like 0.02 or 2%" in capsys.readouterr().err


def test_a_negative_number_with_a_unit_is_refused_with_its_value(capsys):
    assert main(["project", "--tokens", "-2T", "--gpus", "8", "--tokens-per-second", "5"]) == 2
    assert "tokens=-2e+12 must be a number, above 0." in capsys.readouterr().err


def test_a_published_rate_of_lora_is_not_shown_as_one_of_pretraining(capsys):
    assert main(["published", "--model", "llama3.1-70b", "--json"]) == 0
    tasks = {row["id"]: row["task"] for row in json.loads(capsys.readouterr().out)}
    assert {*tasks.values()} == {"pretrain", "LoRA", "SFT"}
    assert main(["published", "--model", "llama3.1-70b"]) == 0
    for line in capsys.readouterr().out.splitlines()[1:-1]:
        cells = re.split(r" {2,}", line.strip())
        assert cells[4] == tasks[cells[0]]
