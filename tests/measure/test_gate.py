"""``scalebook gate``: both directions, exit codes, and what a CI reads."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from simulated import H100, config, write_run

from scalebook.cli import main
from scalebook.errors import RecordError
from scalebook.measure.metrics import measure
from scalebook.measure.metrics.repeats import between, estimate, start_spread
from scalebook.measure.verdicts import Verdict, compare
from scalebook.measure.verdicts.differences import Difference
from scalebook.measure.verdicts.gate import GateCheck, check, junit, markdown
from scalebook.store import read_run, read_runs

BIG = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 8192,
    "world_size": 8, "global_batch_size": 16,
}  # fmt: skip


@pytest.fixture
def folders(tmp_path):
    """Return a baseline of two configurations, and where new runs go."""
    for name, split in (("dp", {}), ("tp", {"tensor_parallel_size": 2})):
        write_run(tmp_path / "base", name, config(**BIG, **split), seconds=2.0, device=H100,
                  steps=80)  # fmt: skip
    return tmp_path / "base", tmp_path / "new"


def add(folder, name, seconds=2.0, steps=80, **changes):
    status = {key: changes.pop(key) for key in ("status", "reason") if key in changes}
    write_run(folder, name, config(**BIG | changes), seconds=seconds, device=H100, steps=steps,
              **status)  # fmt: skip


def gate(base, new, *arguments):
    return main(["gate", "--baseline", str(base), "--runs", str(new), *map(str, arguments)])


def outcomes(capsys):
    return {check["outcome"] for check in json.loads(capsys.readouterr().out)}


def test_the_same_again_passes(folders, capsys):
    base, new = folders
    add(new, "dp2")
    add(new, "tp2", tensor_parallel_size=2)
    assert gate(base, new, "--json") == 0
    assert outcomes(capsys) == {"pass"}


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(2.1, "regression"), (1.9, "unexplained speed-up")]
)
def test_five_percent_in_either_direction_fails(folders, capsys, seconds, outcome):
    base, new = folders
    add(new, "dp2", seconds)
    add(new, "tp2", tensor_parallel_size=2)
    assert gate(base, new, "--json") == 1
    assert outcomes(capsys) == {outcome, "pass"}
    assert gate(base, new, "--tolerance", "10%") == 0
    assert "Within the tolerance" in capsys.readouterr().out


def test_the_level_is_shared_out_over_the_comparisons(folders):
    """By hand: 5 % over two configurations are 2.5 % each; over one, all of it."""
    base, new = folders

    def compared() -> dict[str, Verdict]:
        found = check(read_runs(base)[0], read_runs(new)[0])
        return {one.current_runs[0]: one.verdict for one in found if one.verdict}

    def by_hand(level: float) -> Verdict:
        sides = [[estimate(measure(read_run(at / "dp")))] for at in (new, base)]
        return compare(*sides, start_spread=start_spread("h100"), level=level)

    add(new, "dp")
    assert compared()["dp"].low == by_hand(0.95).low
    add(new, "tp", tensor_parallel_size=2)
    assert len(compared()) == 2
    assert compared()["dp"].low == pytest.approx(by_hand(0.975).low)
    shutil.rmtree(new / "tp")
    add(new, "tp", tensor_parallel_size=2, steps=0, status="failed", reason="x")
    assert compared()["dp"].low == by_hand(0.95).low  # what has no rate is not compared


@pytest.mark.parametrize(("platform", "percent"), [("h100", 0.5), ("cpu", 2)])
def test_the_spread_of_starts_is_that_of_the_platform_unless_it_is_stated(
    tmp_path, platform, percent
):
    for folder in ("base", "new"):
        made = config(platform=platform, model="llama3.1-8b", precision="bf16")
        write_run(tmp_path / folder, folder, made, seconds=2.0, steps=80, device="any")
    sides = [read_runs(tmp_path / folder)[0] for folder in ("base", "new")]
    (found,) = check(*sides)
    assert found.verdict.start_spread == percent / 100
    (stated,) = check(*sides, starts=0.01)
    assert stated.verdict.start_spread == 0.01


def test_a_baseline_of_other_devices_has_their_spread_in_its_interval(tmp_path):
    """By hand: sqrt(0.5^2 + 1.2^2) = 1.3 % where no device ran both."""
    made = config(platform="h100", model="llama3.1-8b", precision="bf16")
    for folder, ids in (("base", "1a"), ("new", "2a"), ("again", "1a")):
        path = (
            write_run(tmp_path / folder, folder, made, seconds=2.0, steps=80, device="any")
            / "record.json"
        )
        known = json.loads(path.read_text())
        known["environment"]["device_ids"] = ids
        path.write_text(json.dumps(known))
    base, new, again = (read_runs(tmp_path / name)[0] for name in ("base", "new", "again"))
    assert check(base, new)[0].verdict.start_spread == pytest.approx(0.013)
    assert check(base, again)[0].verdict.start_spread == 0.005
    # measured as 2 %: devices may be in it, those of one node are not
    assert math.hypot(*between(0.02, 0.005, other_devices=True)) == pytest.approx(0.02)
    assert between(0.02, 0.005, other_devices=False) == (0.005, 0.012)
    assert between(0.004, 0.005, other_devices=False) == (0.004, 0.012)
    assert between(0.02, 0.005, other_devices=None) == (0.02, 0)


def test_a_change_that_must_be_seen_is_above_the_tolerance(folders):
    runs = read_runs(folders[0])[0]
    for tolerance in (0.05, 0.06):
        with pytest.raises(RecordError, match=r"--must-see 0\.05 is not above --tolerance"):
            check(runs, runs, tolerance=tolerance, must_see=0.05)
    assert len(check(runs, runs, tolerance=0.049, must_see=0.05)) == 2


def test_a_baseline_of_repeats_is_pooled(folders, capsys):
    base, new = folders
    for repeat, seconds in enumerate((1.8, 2.0, 2.2)):
        add(new, f"r{repeat}", seconds, repeat=repeat)
    assert gate(base, new) == 0  # runs that scatter so much show no change of this size
    assert "A change of 5 % would not be seen" in capsys.readouterr().out
    # 2: a change that must be seen would not be
    assert gate(base, new, "--must-see", "5%", "--json") == 2
    assert outcomes(capsys) == {"cannot tell", "missing"}
    assert gate(base, new, "--must-see", "90%") == 0
    assert "No change that the noise lets one see" in capsys.readouterr().out


def test_a_run_that_now_fails_is_a_regression(folders, capsys):
    base, new = folders
    add(new, "dp2", steps=0, status="out_of_memory", reason="GPU 3 ran out of memory.")
    assert gate(base, new, "--json") == 1
    assert outcomes(capsys) == {"regression", "missing"}


def test_a_run_that_no_longer_learns_is_a_regression(folders, capsys):
    base, new = folders
    add(new, "dp2")
    path = new / "dp2" / "steps.jsonl"
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    for number, step in enumerate(steps):
        step["loss"] = 12 + number / 8
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    assert gate(base, new) == 1
    assert "The loss did not fall (12 to " in capsys.readouterr().out


def test_what_cannot_be_read_is_no_pass(folders, capsys):
    base, new = folders
    add(new, "dp2")
    add(new, "tp2", tensor_parallel_size=2)
    record = new / "tp2" / "record.json"
    record.write_text(record.read_text()[:200])
    assert gate(base, new) == 2
    assert "tp2" in capsys.readouterr().err
    record.unlink()
    steps = new / "dp2" / "steps.jsonl"
    steps.write_text(steps.read_text() + "{\n")
    gate(base, new)
    assert "dp2: " in capsys.readouterr().out


def test_missing_and_new_configurations_are_said_and_fail_nothing(folders, capsys):
    base, new = folders
    add(new, "dp2")
    add(new, "pp2", pipeline_parallel_size=2)
    assert gate(base, new) == 0
    said = capsys.readouterr().out
    assert "missing: llama3.1-8b on 8 x h100 TP2" in said
    assert "new: llama3.1-8b on 8 x h100 PP2" in said
    assert said.splitlines()[-1].startswith("3 configurations: ")


def test_what_a_ci_reads_says_the_same(folders, tmp_path):
    base, new = folders
    add(new, "dp2", 2.2)
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    assert gate(base, new, "--junit", junit, "--markdown", markdown) == 1
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "regression"
    assert "Slower" in failure.get("message")
    text = markdown.read_text()
    assert text.startswith("**Failed.**")
    assert text.splitlines()[4].split("|")[2].strip() == "regression"


def test_names_from_records_cannot_break_out_of_a_table_or_a_tag(folders, tmp_path):
    base, _ = folders
    for path in base.glob("*/record.json"):
        record = json.loads(path.read_text())
        record["requested"]["model"] = 'x|y\n# <script>"\u0007&'
        path.write_text(json.dumps(record))
    junit, markdown = tmp_path / "gate.xml", tmp_path / "gate.md"
    assert gate(base, base, "--junit", junit, "--markdown", markdown) == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    text = markdown.read_text()
    assert "<script>" not in text
    rows = [line for line in text.splitlines() if line.startswith("| x")]
    assert len(rows) == 2
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows)


@pytest.mark.parametrize("what", ["no folder", "empty", "nothing shared", "unwritable"])
def test_input_that_cannot_be_compared_is_an_error_and_no_pass(folders, tmp_path, capsys, what):
    base, new = folders
    arguments = []
    if what == "empty":
        new.mkdir()
    if what == "nothing shared":
        add(new, "other", micro_batch_size=4)
    if what == "unwritable":
        add(new, "dp2")
        arguments = ["--junit", tmp_path / "no" / "gate.xml"]
    assert gate(base, new, *arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def checks():
    names = ("pass", "regression", "unexplained speed-up", "missing", "new", "no baseline")
    verdict = Verdict("slower", 0.9, 0.85, 0.95)
    return [
        GateCheck(f"case {at}", name, f"detail {at}", ("b",), ("c",),
              verdict if at == 1 else None, (Difference("tp", "1", "2"),) if at in (0, 1) else ())
        for at, name in enumerate(names)
    ]  # fmt: skip


def test_junit_counts_what_failed_and_skips_what_could_not_be_compared():
    suite = ElementTree.fromstring(junit(checks()))
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6", "failures": "2", "errors": "0", "skipped": "3",
    }  # fmt: skip
    found = {case.get("name"): case[0] for case in suite}
    assert [one.tag for one in found.values()] == [
        "system-out", "failure", "failure", "skipped", "skipped", "skipped",
    ]  # fmt: skip
    assert found["case 1"].get("type") == "regression"
    assert found["case 1"].get("message") == "detail 1"
    assert found["case 1"].text == "tp: 1 against 2"
    assert found["case 3"].get("message") == "missing: detail 3"


def test_junit_is_an_xml_document_without_a_character_that_xml_forbids():
    text = junit([GateCheck("a\x00b", "pass", "c\ud800\td\ue000", (), ())])
    assert text.splitlines()[0].startswith("<?xml version='1.0' encoding=")
    assert text.endswith("</testsuite>\n")
    (case,) = ElementTree.fromstring(text.partition("\n")[2])
    assert (case.get("name"), case[0].text) == ("a?b", "c?\td\ue000")


def test_the_table_has_what_failed_first_and_what_differs_there_alone():
    text = markdown(checks())
    assert text.startswith("**Failed.** 6 configurations: 1 pass, 1 regression, ")
    rows = [line for line in text.splitlines() if line.startswith("| case")]
    assert [row.split(" | ")[1] for row in rows] == [
        "regression", "unexplained speed-up", "pass", "missing", "new", "no baseline",
    ]  # fmt: skip
    assert rows[0] == "| case 1 | regression | 0.9000 | 0.8500 to 0.9500 | detail 1 |"
    assert rows[2] == "| case 0 | pass |  |  | detail 0 |"
    assert text.count("What else differs in") == 1
    assert markdown(checks()[:1]).startswith("**Passed.** 1 configuration: 1 pass.")


# Losses against a reference curve: records that the trainer wrote on an H100 and on an H200

EXAMPLES = Path(__file__).parents[2] / "runs/examples"
ON_H100 = "20261128-061802-llama3.1-8b-8-w1-ec87b7d204e7"
ON_H200, IN_FP8 = "f5c8ae66f90a", "a7dd73f54e31"  # the same work, in BF16 and in FP8


def losses_in(directory):
    lines = (directory / "steps.jsonl").read_text().splitlines()
    return {step["step"]: step["loss"] for step in map(json.loads, lines)}


def example(new, ending):
    directory = next(EXAMPLES.glob(f"*{ending}"))
    shutil.copytree(directory, new / directory.name, symlinks=True)
    return new / directory.name


def against(new, reference, *arguments):
    words = ("--runs", new, "--loss-reference", reference, *arguments)
    return main(["gate", *map(str, words)])


def changed(run, step, loss):
    path = run / "steps.jsonl"
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    steps[step - 1]["loss"] = loss
    path.chmod(0o644)
    path.write_text("".join(json.dumps(one) + "\n" for one in steps))


def test_the_same_training_on_another_device_follows_the_reference(tmp_path, capsys):
    run = example(tmp_path / "new", ON_H200)
    ours, there = losses_in(run), losses_in(EXAMPLES / ON_H100)
    far = max(abs(ours[step] / there[step] - 1) for step in there)
    assert against(tmp_path / "new", EXAMPLES / ON_H100, "--loss-tolerance", far * 1.01) == 0
    said = capsys.readouterr().out
    assert f"of {ON_H100} at 24 of its 24 steps; {100 * far:.2g} % at most." in said
    assert against(tmp_path / "new", EXAMPLES / ON_H100, "--loss-tolerance", far * 0.99) == 1


def test_the_first_step_outside_the_band_is_named_with_what_else_differs(tmp_path, capsys):
    run = example(tmp_path / "new", IN_FP8)
    ours, there = losses_in(run), losses_in(EXAMPLES / ON_H100)
    outside = [step for step in sorted(there) if abs(ours[step] / there[step] - 1) > 0.02]
    assert outside[0] > 1
    assert against(tmp_path / "new", EXAMPLES / ON_H100) == 1
    said = capsys.readouterr().out
    assert f"Step {outside[0]} is the first outside 2 % of {ON_H100}" in said
    assert f"{len(outside)} of 24 common steps are outside." in said
    assert "differs: precision" in said
    assert "differs: accelerator: " in said
    assert "differs: power_cap_watts" not in said  # changes no loss


@pytest.mark.parametrize(("loss", "words"), [(9.0, "its loss is 9,"), (None, "is not finite,")])
def test_one_step_outside_fails_even_if_its_loss_is_not_finite(tmp_path, capsys, loss, words):
    there = losses_in(example(tmp_path / "new", ON_H200))
    golden = tmp_path / "golden.csv"
    golden.write_text("".join(f"{step},{value}\n" for step, value in there.items()))
    changed(next((tmp_path / "new").iterdir()), 20, loss)
    report = tmp_path / "junit.xml"
    assert against(tmp_path / "new", golden, "--junit", report) == 1
    said = capsys.readouterr().out
    assert said.startswith("loss left the band: ")
    assert "Step 20 is the first outside 2 % of golden.csv" in said
    assert words in said
    if loss is not None:  # in percent of the reference, with two digits that count
        assert f"{there[20]:.5g}, {(loss - there[20]) / there[20] * 100:+.2g} %. " in said
    assert "1 of 24 common steps are outside" in said
    assert ElementTree.parse(report).getroot().get("failures") == "1"


def test_a_file_of_steps_and_losses_is_a_reference(tmp_path, capsys):
    run = example(tmp_path / "new", ON_H200)
    rows = [f"{step},{loss}" for step, loss in losses_in(run).items() if step % 5 == 0]
    file = tmp_path / "golden.csv"
    file.write_text("\n".join(["step,loss", "# every fifth step", *rows, ""]))
    assert against(tmp_path / "new", file, "--loss-tolerance", "0") == 0
    assert f"at {len(rows)} of its {len(rows)} steps" in capsys.readouterr().out
    (tmp_path / "link").symlink_to(file)  # the user named it
    assert against(tmp_path / "new", tmp_path / "link", "--loss-tolerance", "0") == 0
    file.write_text("10 999.5\n")
    assert against(tmp_path / "new", file) == 1
    file.write_text("900 2.5\n")
    assert against(tmp_path / "new", file) == 2  # nothing can be compared
    assert "no step in common" in capsys.readouterr().out
    assert against(tmp_path / "new", run / "steps.jsonl", "--loss-tolerance", "0") == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("1,2.5\nten,2.4\n", "line 2: 'ten,2.4' is not a step and a loss"),
     ("step,loss\n", "no step of it has a loss"),
     ("1,2.5,3.5\n", "line 1: '1,2.5,3.5' is not a step and a loss")],
)  # fmt: skip
def test_a_reference_that_cannot_be_read_is_refused(tmp_path, capsys, content, message):
    example(tmp_path / "new", ON_H200)
    (tmp_path / "golden.csv").write_text(content)
    assert against(tmp_path / "new", tmp_path / "golden.csv") == 2
    assert message in capsys.readouterr().err


def test_runs_of_other_work_are_not_held_against_a_run(tmp_path, capsys):
    example(tmp_path / "new", "24f22c14c363")  # the whole model
    assert against(tmp_path / "new", EXAMPLES / ON_H100) == 2
    assert "trained (model=llama3.1-8b@8, global_batch_size=16" in capsys.readouterr().err
    example(tmp_path / "new", ON_H200)
    assert against(tmp_path / "new", EXAMPLES / ON_H100) == 0
    assert capsys.readouterr().out.count("loss of ") == 1


def test_losses_and_rates_are_gated_together(tmp_path, capsys):
    run = example(tmp_path / "new", ON_H200)
    base = example(tmp_path / "base", ON_H200)
    words = ("--baseline", tmp_path / "base", "--json")
    assert against(tmp_path / "new", base.name, *words) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    changed(run, 20, 9.0)
    assert against(tmp_path / "new", base.name, *words) == 1
    assert outcomes(capsys) >= {"loss left the band"}
    assert main(["gate", "--runs", str(tmp_path / "new")]) == 2
    assert "--baseline, or a run or file with --loss-reference" in capsys.readouterr().err
    quoted = GateCheck("n", "pass", 'it\'s "5" <b>\n*', (), ())
    assert markdown([quoted]).splitlines()[4].endswith('|  |  | it\'s "5" &lt;b&gt; \\* |')


def ingested(folder, *more):
    for name in ("megatron_2024.log", *more):
        log = Path(__file__).parents[1] / "logs" / name
        given = ["--platform", "h100"]
        assert main(["ingest", str(log), "--runs", str(folder), *given]) == 0
    return next(folder.iterdir())


def test_logs_are_no_baseline_and_the_message_says_why(folders, tmp_path, capsys):
    base, logs = folders[0], tmp_path / "logs"
    ingested(logs)
    assert gate(logs, base) == 2
    said = capsys.readouterr().err
    assert "1 of 3 runs are ingested: a log does not state its whole configuration" in said
    assert "Run the same configuration again" not in said
    add(tmp_path / "other", "a", micro_batch_size=2)
    assert gate(tmp_path / "other", base) == 2
    assert "Run the same configuration again" in capsys.readouterr().err


def test_what_a_log_does_not_state_is_no_difference(folders, tmp_path, capsys):
    log, run = ingested(tmp_path / "logs"), next(folders[0].iterdir())
    capsys.readouterr()
    for sides in ((log, run), (run, log)):
        assert main(["compare", *map(str, sides), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["differences"]
        silent = [one for one in found if one["ab"[sides.index(log)]] is None]
        assert len(silent) > 20
        assert main(["compare", *map(str, sides)]) == 0
        said = capsys.readouterr().out
        assert f"Not known to differ: {len(silent)} settings that a log does not state" in said
        assert said.count(" against ") >= len(found) - len(silent) > 0
        assert not any(f"  {one['name']}: " in said for one in silent)
    tp = sorted(folders[0].iterdir())[1]
    assert main(["compare", str(run), str(tp)]) == 0
    assert "Not known to differ" not in capsys.readouterr().out
