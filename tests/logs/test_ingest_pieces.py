"""Parts of ingesting by hand: names of files, recounted FLOPs, remarks, what a record keeps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebook import logs
from scalebook.errors import IngestError
from scalebook.facts import catalog, flops
from scalebook.logs.causes import Ending
from scalebook.logs.dialects import deepspeed, hf_trainer
from scalebook.logs.dialects.dialect import LineDialect
from scalebook.logs.ingest import group, ingestion, job_summary, log_config, rates, steps
from scalebook.logs.ingest import write as ingest_write
from scalebook.logs.job import Job
from scalebook.logs.pairs import cell, pairs_of
from scalebook.logs.setting_lines import peak_gib, stated
from scalebook.logs.source import Unwrapped, clean

# Dialects whose records come in several lines, or wait for a later line or the end of the file.
KEPT_BACK = {
    *("deepspeed", "hf-trainer", "megatron-bridge", "megatron-deepspeed", "megatron-lm"),
    *("litgpt", "primus-megatron", "slime", "swissarmytransformer"),
}


def job_of(*rows, dialect="made-up", **fields):
    made = Job(dialect, **fields)
    for row in rows:
        made.table.append(row)
    return made


def known_of(**values):
    made = log_config.LogConfig()
    for name, value in values.items():
        made.put(name, value, "told")
    return made


def content_of(*jobs, name="a.log", kind="training", folder="x", tail=()):
    dialect = SimpleNamespace(kind=kind, name=kind, mapping={})
    path = Path(folder) / name
    return SimpleNamespace(jobs=list(jobs), digest=name * 9, dialect=dialect, path=path, tail=tail)


# Which files belong together


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("run/rank0.log", "run/rank1.log", True),
        ("run/rank_0.log", "run/rank_17.err", True),
        ("run/node-3.out", "run/node-4.out.gz", True),
        ("run/a.stdout", "run/a.stderr", True),
        ("run/local_rank0.txt", "run/local_rank1.txt", True),
        ("run/gpu0.log.zst", "run/gpu1.log", True),
        ("run/attempt_0/0/stdout", "run/attempt_1/7/stderr", True),
        ("run/step1.log", "run/step2.log", False),
        ("run/rank0.log", "other/rank0.log", False),
        ("run/a1.log", "run/a2.log", False),
        ("run/attempt_0/0/other", "run/attempt_1/7/other", False),
    ],
)
def test_files_of_one_job_share_what_is_no_rank_and_no_ending(first, second, same):
    assert (group.group_key(Path(first)) == group.group_key(Path(second))) is same


def test_a_folder_gives_the_files_that_may_hold_a_run_in_their_order(tmp_path):
    for name in ("b.log", "a.JSON", "c.py", ".hidden.log", "d", "run/record.json", "run/a.log",
                 ".git/a.log", "sub/e.csv.gz", "sub/f.bin"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "g.log").symlink_to(tmp_path / "b.log")
    found = list(group.files_under(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path, _ in found] == [
        "a.JSON", "b.log", "d", "sub/e.csv.gz",
    ]  # fmt: skip
    assert not any(named for _, named in found)
    assert list(group.files_under(tmp_path / "c.py")) == [(tmp_path / "c.py", True)]
    with pytest.raises(IngestError, match="does not exist"):
        list(group.files_under(tmp_path / "z.log"))

    def opens(path):
        return (lambda: ()) if path.name in ("sub", "f.bin", "c.py") else None

    stored = [(path.name, named) for path, named in group.files_under(tmp_path, opens)]
    assert stored == [("a.JSON", False), ("b.log", False), ("c.py", False), ("d", False),
                      ("sub", False)]  # fmt: skip
    assert list(group.files_under(tmp_path / "sub", opens)) == [(tmp_path / "sub", True)]


def test_telemetry_goes_to_the_one_run_beside_it_else_to_the_one_run_of_all():
    one, two = (group.Group([content_of(job_of(), folder=f)], [job_of()]) for f in "pq")
    beside = content_of(name="smi.csv", kind="telemetry", folder="p")
    far = content_of(name="far.csv", kind="telemetry", folder="r")
    notes = group._attach([one, two], [beside, far])
    assert (one.attached, two.attached) == ([beside], [])
    assert notes == ["r/far.csv: telemetry next to several runs, attached to none."]
    alone = group.Group([content_of(job_of(), folder="p")], [job_of()])
    assert group._attach([alone], [far]) == [] and alone.attached == [far]
    assert "next to no run, attached to none" in group._attach([], [far])[0]
    several = group.Group([content_of(job_of(), folder="p")], [job_of(), job_of()])
    assert len(group._attach([several], [beside])) == 1 and several.attached == []


def test_telemetry_goes_to_the_run_of_a_store_beside_it():
    one = content_of(job_of(), folder="p")
    one.empty = False
    beside = content_of(name="smi.csv", kind="telemetry", folder="p")
    found = group.SortedFiles({}, [beside], [], [(Path("s"), False, lambda: [one])])
    assert [(whole.files, whole.attached) for whole in found.groups(None)] == [([one], [beside])]
    assert found.notes == []


@pytest.mark.parametrize("named", [True, False])
def test_runs_of_a_store_are_groups_until_one_cannot_be_read(named):
    broken = IngestError("the store is damaged")

    def contents(*kinds):
        for kind in kinds:
            if kind == "broken":
                raise broken
            one = content_of(job_of(), name=kind)
            one.empty, one.unrecognised = kind == "empty", lambda: IngestError("unrecognised")
            yield one

    def stored(*kinds):
        found = group.SortedFiles({}, [], [], [(Path("s"), named, lambda: contents(*kinds))])
        return [one.files[0].path.name for one in found.groups(None)], found.notes

    assert stored("a", "b") == (["a", "b"], [])
    # what follows a run that was read costs only itself
    assert stored("a", "b", "broken") == (["a", "b"], ["the store is damaged"])
    if named:
        for kinds in (("broken",), ("a", "broken"), ("empty",)):
            with pytest.raises(IngestError):
                stored(*kinds)
    else:
        assert stored("broken") == ([], ["the store is damaged"])
        assert stored("empty", "a") == (["a"], ["s: nothing in it was recognised."])


# Sizes


@pytest.mark.parametrize(
    ("quotient", "world"),
    [(8.0, 8), (8.1, 8), (8.13, None), (7.9, 8), (7.85, None), (33.2, 33), (33.5, None),
     (40.3, None),
     (512.0, 512), (512.02, None)],
)  # fmt: skip
def test_rates_of_two_timers_give_a_world_below_34_within_one_and_a_half_percent(quotient, world):
    """1.5 % of 33 is half a GPU; beyond, only what the digits say counts."""
    each = 1234.56789
    row = {"tokens_per_second": quotient * each, "tokens_per_second_per_gpu": each}
    known = known_of()
    log_config.complete(job_of(row), known)
    assert known.size("world_size") == world


@pytest.mark.parametrize(
    ("rate", "seconds", "length"), [(787.7, 2.6, 512), (853.3, 2.4, None), (204_803.0, 10.0, None)]
)
def test_a_length_is_the_multiple_of_128_near_figures_known_within_two_percent(
    rate, seconds, length
):
    """By hand: 2.6 s are known to 1.92 %, 2.4 s to 2.08 %, 10 s to a half; a batch of 4."""
    known = known_of(global_batch_size=4)
    log_config.complete(job_of({"tokens_per_second": rate, "seconds": seconds}), known)
    assert known.size("sequence_length") == length


def test_a_size_that_changes_on_the_way_is_the_most_common_with_a_note():
    rows = [{"global_batch_size": value} for value in (8.0, 16.0, 16.0, 32.0, 0.0)]
    known = log_config.observe(job_of(*rows))
    assert (known.size("global_batch_size"), known.provenance["global_batch_size"]) == (16, "told")
    assert known.notes == ["The global batch size changes from 8 to 32; most are 16."]
    assert log_config.observe(job_of(*rows[1:3])).notes == []
    assert log_config.observe(job_of({"global_batch_size": 0.5})).values == {}
    assert log_config.observe(job_of({"global_batch_size": 1.0})).size("global_batch_size") == 1


def test_what_is_told_counts_before_what_follows_and_steps_are_told():
    job = job_of(settings={"world_size": 4, "nodes": 2}, derived={"nodes": "names of hosts"},
                 total_steps=70)  # fmt: skip
    known = log_config.observe(job)
    assert known.provenance == {"world_size": "told", "nodes": "derived", "steps": "told"}
    assert (known.origin, known.size("steps")) == ({"nodes": "names of hosts"}, 70)
    assert known_of(world_size=True).size("world_size") is None


@pytest.mark.parametrize(
    ("name", "said"), [("world_size", "--gpus"), ("sequence_length", "--sequence-length")]
)
def test_what_contradicts_a_file_is_refused_by_its_option(name, said):
    job = job_of(settings={name: 8})
    assert log_config.observe_with(job, {name: 8}, "a.log").size(name) == 8
    with pytest.raises(IngestError, match=rf"{said} 9 contradicts a.log, which states 8\."):
        log_config.observe_with(job, {name: 9}, "a.log")
    implied = job_of(settings={name: 8}, derived={name: "rates"})
    with pytest.raises(IngestError, match="which implies 8"):
        log_config.observe_with(implied, {name: 9}, "a.log")


@pytest.mark.parametrize(
    ("dialect", "told", "supplied", "trained", "how"),
    [
        ("torchtune", {}, {}, "unknown", "derived"),
        ("hf-trainer", {}, {"trained": "all"}, "all", "supplied"),
        ("torchtune", {"trained": "lora"}, {"trained": "part"}, "lora", "told"),
        ("megatron", {}, {}, None, None),
        ("megatron", {}, {"nodes": 2}, None, None),
    ],
)
def test_what_was_trained_is_unknown_where_a_trainer_makes_adapters_too(
    dialect, told, supplied, trained, how
):
    known = log_config.observe_with(job_of(dialect=dialect, settings=told), supplied, "a.log")
    assert (known.values.get("trained"), known.provenance.get("trained")) == (trained, how)


def test_a_named_model_must_have_the_sizes_of_the_file():
    for name, value in (("num_layers", 32), ("hidden_size", 4096), ("num_query_groups", 8)):
        supplied = {"model": "llama3.1-8b"}
        job = job_of(settings={name: value})
        assert log_config.observe_with(job, supplied, "a").values["model"] == "llama3.1-8b"
        other = job_of(settings={name: value + 1})
        with pytest.raises(IngestError, match=rf"has {name}={value}, but a states {value + 1}\."):
            log_config.observe_with(other, supplied, "a")


# FLOPs


MODEL = {"model": "llama3.1-8b", "global_batch_size": 8, "sequence_length": 4096, "world_size": 4}


def recounted(factor, name="model_flops", **told):
    """Recount a log of 8 x 4,096 tokens in 2 s on 4 GPUs whose printed rate is a convention's."""
    count = flops.flops_per_token(catalog.model("llama3.1-8b"), 4096, name)
    printed = factor * count * 4096 / 1e12
    rows = [{"seconds": seconds, "tflops_per_gpu": printed} for seconds in (9.0, 2.0, 2.0, 2.0)]
    rows += [{"seconds": 2.0, "tflops_per_gpu": 0.0}] * 4  # not printed yet
    return job_summary.recount(job_of(*rows), known_of(**MODEL | told)), printed


@pytest.mark.parametrize("name", flops.CONVENTIONS)
def test_printed_flops_are_those_of_the_nearest_convention_within_two_percent(name):
    found, printed = recounted(1.0, name)
    shape = catalog.model("llama3.1-8b")
    ours = flops.flops_per_token(shape, 4096, flops.DEFAULT_CONVENTION)
    theirs = flops.flops_per_token(shape, 4096, name)
    assert found["logged"] == pytest.approx(printed)
    assert found["recounted"][name] == pytest.approx(printed)  # behind the first
    assert found["logged_over_recounted"] == pytest.approx(theirs / ours)
    fits = found["convention_that_fits"]
    assert flops.flops_per_token(shape, 4096, fits) == pytest.approx(theirs, rel=1e-9)
    assert found["reason"] is None


@pytest.mark.parametrize(("factor", "fits"), [(1.4, False), (0.6, False), (1.019, True),
                                               (1.021, False)])  # fmt: skip
def test_no_convention_fits_what_is_further_than_two_percent_from_all(factor, fits):
    shape = catalog.model("llama3.1-8b")
    largest = max(flops.CONVENTIONS, key=lambda one: flops.flops_per_token(shape, 4096, one))
    found, _ = recounted(factor, largest)
    assert (found["convention_that_fits"] == largest) is fits


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"trained": "lora"}, "Not all weights were trained, or it is unknown which (lora)."),
        ({"world_size": None}, "cannot be computed: world size not known."),
        ({"sequence_length": None, "world_size": None},
         "cannot be computed: sequence length, world size not known."),
        ({"model": None}, "The log names no model"),
    ],
)  # fmt: skip
def test_what_keeps_flops_from_being_counted_is_the_reason(told, reason):
    left = {name: value for name, value in (MODEL | told).items() if value is not None}
    rows = [{"seconds": 2.0, "tflops_per_gpu": 400.0}] * 2
    found = job_summary.recount(job_of(*rows), known_of(**left))
    assert reason in found["reason"]
    assert (found["logged"], found["recounted"], found["convention_that_fits"]) == (400, None, None)


def test_the_only_record_is_recounted_and_of_several_the_first_is_left_out():
    rows = [{"seconds": 2.0, "tflops_per_gpu": 300.0}, {"seconds": 4.0, "tflops_per_gpu": 150.0}]
    for count, tokens, printed in ((1, 4096, 300), (2, 2048, 150)):
        found = job_summary.recount(job_of(*rows[:count]), known_of(**MODEL))
        per_token = flops.flops_per_token(catalog.model("llama3.1-8b"), 4096, "six_n")
        assert found["recounted"]["six_n"] == pytest.approx(per_token * tokens / 1e12)
        assert found["logged"] == printed


def test_packed_documents_and_further_modules_are_counted_as_such():
    shape = catalog.model("llama3.1-8b")
    rows = [{"seconds": 2.0}] * 2
    packed = job_summary.recount(job_of(*rows), known_of(**MODEL, packed_documents=4))
    for name, found in packed["recounted"].items():
        expected = flops.flops_per_token(shape, 1024, name) * 4096 / 1e12
        assert found == pytest.approx(expected)
    assert packed["logged_over_recounted"] is None


def test_a_rate_of_a_gpu_that_is_printed_serves_where_batch_and_time_do_not():
    rows = [{"tokens_per_second_per_gpu": rate} for rate in (1.0, 0.0, 4096.0)]
    found = job_summary.recount(job_of(*rows), known_of(model="llama3.1-8b", sequence_length=4096))
    count = flops.flops_per_token(catalog.model("llama3.1-8b"), 4096, flops.DEFAULT_CONVENTION)
    assert found["recounted"][flops.DEFAULT_CONVENTION] == pytest.approx(count * 4096 / 1e12)


# Remarks


@pytest.mark.parametrize(("printed", "said"), [(104.0, False), (106.0, True), (50.0, True)])
def test_a_summary_that_its_steps_contradict_is_said_with_both(printed, said):
    numbers = SimpleNamespace(tokens_per_second=100.0, tokens_per_second_per_gpu=25.0)
    job = job_of(rates={"tokens_per_second": printed, "tokens_per_second_per_gpu": 25.0})
    found = rates._summary_rates(job, numbers)
    assert found == (
        [f"The file's own summary says {printed:.0f} tokens per second, {printed / 100:.3g} times "
         "what its steps give (100): the steps count."] if said else []
    )  # fmt: skip
    assert rates._summary_rates(job, None) == []


@pytest.mark.parametrize(
    ("rows", "factor"),
    [
        # 100 tokens a batch of its usual size in 2 s: 50 tokens/s
        ([(200.0, 2.0), (200.0, 2.0), (100.0, 1.0)], 4),
        ([(50.0, 2.0), (50.0, 2.0), (25.0, 1.0)], 1),
        ([(200.0, 1.0), (200.0, 1.0), (800.0, 4.0), (400.0, 2.0)], 4),
        ([(200.0, 8.0), (200.0, 8.0)], 4),  # a size that never changes is the usual one
        ([(200.0, 8.0), (200.0, 8.0), (200.0, 0.0)], 4),  # one that is not printed is, too
        ([(50.9, 8.0)], 1), ([(55.0, 8.0)], 1.1), ([(0.0, 8.0)], 1),
    ],
)  # fmt: skip
def test_a_printed_rate_is_held_against_the_size_of_its_own_batch(rows, factor):
    job = job_of(*({"x": rate, "seconds": 2.0, "global_batch_size": size} for rate, size in rows))
    found = rates._median_factor(job, "x", 100.0)
    assert found == (None if factor == 1 else pytest.approx(factor))


@pytest.mark.parametrize(
    ("counts", "said"),
    [((0, 0), []), ((1, 0), ["Restarts: 1. Records"]), ((0, 3), ["Restarts: 0. Records"])],
)
def test_restarts_or_repeated_records_are_remarked_on_by_themselves(counts, said):
    job = job_of({"step": 5.0}, {"step": 6.0})
    job.counts.restarts, job.counts.repeated_steps = counts
    found = rates.warnings_of(job, known_of(), None)
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


def test_every_number_that_a_file_cannot_hold_is_none_to_any_depth():
    half = "a\udc80"
    found = rates.finite({half: [math.inf, 1.5, (math.nan, half)], "n": 3, "t": True, "o": None})
    assert found == {"a\\udc80": [None, 1.5, [None, "a\\udc80"]], "n": 3, "t": True, "o": None}


def test_restarts_and_printed_rates_are_remarked_on_behind_the_notes_of_the_dialect():
    job = job_of({"step": 5.0, "seconds": 2.0, "samples_per_second": 16.0},
                 {"step": 6.0, "seconds": 2.0, "samples_per_second": 16.0})  # fmt: skip
    job.note("a")
    job.counts.restarts, job.counts.repeated_steps = 2, 30
    known = known_of(global_batch_size=8, world_size=4)
    known.notes.append("b")
    assert rates.warnings_of(job, known, None) == [
        "a", "b",
        "Printed samples per second is 4 times what batch, sequence length and step time give"
        "; this is the number of GPUs: a figure of one GPU against one of the job.",
        "Restarts: 2. Records that were repeated, of which the last attempt is kept: 30.",
    ]  # fmt: skip


def numbers(**fields):
    base = {"status": "completed", "reason": None, "loss_fell": True, "loss_first": 4.0,
            "loss_last": 2.0, "stalled_steps": 0, "tokens_per_second_with_stalls": None,
            }  # fmt: skip
    return SimpleNamespace(**(base | fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, []),
        ({"status": "void", "reason": "Too fast."}, ["Too fast."]),
        ({"status": "failed", "reason": "It broke."}, []),
        ({"status": "void"}, []),
        ({"loss_fell": None}, []),
        ({"loss_fell": False}, ["The loss did not fall (4 to 2): the run did not learn, so its "
                                "speed means nothing."]),
    ],
)  # fmt: skip
def test_what_makes_a_rate_worthless_is_said_first(fields, said):
    assert job_summary._of_numbers(numbers(**fields)) == said
    assert job_summary._of_numbers(None) == []


def test_packing_is_noted_with_its_most_only_where_both_model_and_length_are_known():
    told = {"packed_sequences": True, "model": "llama3.1-8b", "sequence_length": 8192}
    (found,) = job_summary.packing(known_of(**told))
    shape = catalog.model("llama3.1-8b")
    whole, least = (flops.flops_per_token(shape, one, "megatron_causal") for one in (8192, 1))
    most = f"at most {100 * (whole / least - 1):.2g} %, for documents far shorter than 8,192 tokens"
    assert most in found
    assert job_summary.packing(known_of(**told | {"packed_sequences": False})) == []
    del told["sequence_length"]
    (found,) = job_summary.packing(known_of(**told))
    assert "how much is not known: the sequence length is missing" in found


# Records


def test_memory_of_a_step_is_its_own_or_the_peak_of_the_job():
    job = job_of({"step": 1.0, "allocated_gib": 3.0}, {"step": 2.0},
                 details={"peak_allocated_gib": 5.0, "peak_reserved_gib": "many"})  # fmt: skip
    first, second = steps.steps_of(job, known_of())
    assert (first.allocated_gib, second.allocated_gib) == (3.0, 5.0)
    assert first.reserved_gib is None


@pytest.mark.parametrize(
    ("rows", "every"),
    [
        ([(0, 1), (1, 1)], True), ([(0, 0.5), (1, 1)], False), ([(10, 10), (20, 10)], True),
        ([(10, 9), (20, 10)], False), ([(10, 10), (20, 9)], False), ([(5, 5)], True),
        ([(1000, 10), (1010, 10)], True), ([(5, 0)], False),
    ],
)  # fmt: skip
def test_every_iteration_was_skipped_where_each_record_counts_as_many(rows, every):
    """A record counts those since the one before; the first, which began at 1 or later, as many."""
    job = job_of(*({"step": float(step), "skipped": float(count)} for step, count in rows))
    assert steps._all_skipped(job) is every


def test_a_log_beyond_its_limit_is_not_said_to_end():
    job = job_of({"step": 7.0, "loss": 1.0}, total_steps=9)
    job.counts.records_beyond_limit = 1234
    assert steps._where(job) == (
        "Only the first 1 records are kept, up to step 7 (1,234 more were not), so the log "
        "continues"
    )
    assert steps._where(job_of({"step": 7.0})) == "The log ends at step 7"


@pytest.mark.parametrize(
    ("rows", "ending", "cause"),
    [
        ([{"skipped": 1.0, "step": 1.0}], None, "skipped_steps"),
        ([{"not_finite": 1.0}], None, "not_finite"),
        ([{"loss": 1.0}], Ending("failed", "x", cause="signal"), "signal"),
        ([{"loss": 1.0}], None, None),
    ],
)
def test_the_cause_of_an_ending_is_what_the_log_shows(rows, ending, cause):
    job = job_of(*rows, ending=ending)
    status, _ = steps.status_of(job)
    assert steps.cause_of(job, status) == cause


def summary_of(**fields):
    names = ("family", "provenance", "derived_from", "not_used", "warnings", "tflops",
             "tflops_per_second_per_gpu_logged_median", "tokens_per_second_per_gpu_median",
             "skipped_iterations", "nan_iterations")  # fmt: skip
    return {**dict.fromkeys(names), "notes": ["a note"], **fields}


@pytest.mark.parametrize("finished", [True, False])
def test_a_record_keeps_the_end_of_a_log_only_where_the_run_did_not_complete(finished):
    job = job_of({"step": 1.0, "loss": 1.0}, finished=finished, first_number=0)
    files = [content_of(job, name="a", tail=("first",)), content_of(job, name="b", tail=("last",))]
    whole = group.Group(files, [job], [content_of(name="c", kind="telemetry")])
    known = known_of(world_size=8, platform="h100")
    known.put("nodes", 2, "supplied")
    known.window = (3, 9)
    record = ingest_write.record_of(whole, 0, known, summary_of(family="f"))
    assert (record.status, record.log_tail) == (
        ("completed", ()) if finished else ("interrupted", ("last",))
    )
    assert record.notes == ("a note",) and record.window == (3, 9)
    assert record.observed == {"platform": "h100", "world_size": 8, "nodes": 2}
    of = record.environment["ingest"]
    assert [one["name"] for one in of["files"]] == ["a", "b", "c"]
    assert (of["family"], of["first_number"], of["log_interval"]) == ("f", 0, None)
    supplied = {"nodes": 2, "window": "3:9"}
    assert record.run_id == ingest_write.run_name(whole, 0, supplied)


def test_a_trace_without_an_anatomy_is_noted_with_its_reason():
    jobs = [job_of(details={"breakdown": one}) for one in ({"reason": "No step."}, {"rank": 0}, 3)]
    found = ingestion._no_breakdown(content_of(*jobs, name="t.json"))
    assert found == ["t.json: no step anatomy. No step."]


def test_a_script_that_counts_from_zero_has_the_times_of_the_timer_that_counts_from_one(tmp_path):
    text = '  "train_batch_size": 16,\n'
    for own, rate in ((0, 8.0), (1, 4.0), (2, 2.0)):
        text += f"[timer.py] epoch=0/micro_step={own + 1}/global_step={own + 1}, "
        text += f"RunningAvgSamplesPerSec=8.5, CurrSamplesPerSec={rate}\n"
        text += f"step {own} loss {5 - own}\n"
    (tmp_path / "a.log").write_text(text)
    (job,) = logs.read(tmp_path / "a.log").jobs
    found = [list(job.table.column(name)) for name in ("step", "seconds", "loss")]
    assert found == [[0, 1, 2], [2.0, 4.0, 8.0], [5, 4, 3]]  # 16 samples at 8, 4 and 2 a second


def test_the_step_that_a_record_states_wins_over_that_of_a_bar(tmp_path):
    bar = " {n}%|###   | {n}/100 [00:{n}<01:00,  1.00s/it]\n"
    record = "{{'loss': 2.5, 'learning_rate': 1e-05, 'current_steps': {n}, 'total_steps': 100}}\n"
    text = "".join(bar.format(n=n - 2) + record.format(n=n) for n in (20, 40, 60))
    (tmp_path / "a.log").write_text(text)
    (job,) = logs.read(tmp_path / "a.log", "hf-trainer").jobs
    assert list(job.table.column("step")) == [20, 40, 60]


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("peak memory allocated: 2,048 MiB", 2.0),
        ("Peak GPU memory: 12.5 GiB", 12.5),
        ("Max CUDA memory allocated was 30 GB", 30.0),  # it divides by 2^30
        ("peak mem: 7 parsecs", None),
    ],
)
def test_a_peak_of_memory_is_read_in_its_unit(line: str, gib: float | None):
    assert peak_gib(line) == gib


@pytest.mark.parametrize("text", ["a \x1b[31mred\x1b[0m b", "a [31mred[0m b", "a red[0m b"])
def test_colours_are_no_text_even_where_their_escapes_were_lost(text: str):
    assert clean(text.encode(), "utf-8") == "a red b"


def records_in_lines() -> list[tuple[Path, type[LineDialect]]]:
    """The logs of which each record is one line, read when that line is."""
    paths = sorted(Path(__file__).parent.glob("*.log"))
    kinds = ((path, logs.read(path).dialect) for path in paths)
    return [
        (path, kind)
        for path, kind in kinds
        if issubclass(kind, LineDialect) and kind.name not in KEPT_BACK
    ]


@pytest.mark.parametrize(("path", "kind"), records_in_lines(), ids=lambda one: Path(str(one)).stem)
def test_a_line_that_gives_a_record_is_taken_by_its_dialect(path, kind, monkeypatch):
    """Else it is read once more, for settings and for how the run ended."""
    plain, given = kind.line, list[str]()

    def watched(self: LineDialect, line: str) -> bool:
        job, before = self.out.job, len(self.out.job.table)
        taken = plain(self, line)
        if len(self.out.job.table) > (before if self.out.job is job else 0):
            given.append(line)
            assert taken is True
        return taken

    monkeypatch.setattr(kind, "line", watched)
    jobs = logs.read(path, kind).jobs
    assert given or not any(len(job.table) for job in jobs)


@pytest.mark.parametrize(
    ("line", "length", "batch"),
    [
        ("train_seq_len:1024 train_batch_tokens:65536", 1024, 64),
        ("SEQLEN=512 BS=48", 512, 48),
        ("the train_seq_len:8 of a sweep", None, None),
        ("SEQLEN=auto", None, None),
    ],
)
def test_sizes_of_speedruns_are_read_where_a_line_gives_them_whole(tmp_path, line, length, batch):
    record = "step:{n}/9 train_loss:4.5 train_time:{n}000ms step_avg:1000ms\n"
    (tmp_path / "a.log").write_text(line + "\n" + "".join(record.format(n=n) for n in (1, 2, 3)))
    (found,) = ingestion.summaries(tmp_path / "a.log", {}, "nanogpt")
    assert (found["sequence_length"], found["global_batch_size"]) == (length, batch)


@pytest.mark.parametrize(
    ("rates", "kept"),
    [
        ("RunningAvgSamplesPerSec=8.5, CurrSamplesPerSec=8.0", [8.0, 8.0]),  # of these steps
        ("SamplesPerSec=8.4", []),  # since the start
    ],
)
def test_a_rate_of_deepspeeds_timer_counts_if_it_is_of_the_steps(tmp_path, rates, kept):
    line = "[2031-08-02 00:0{n}:00,500] [timer.py] epoch=0/micro_step={n}/global_step={n}, "
    (tmp_path / "a.log").write_text("".join(line.format(n=n) + rates + "\n" for n in (1, 2)))
    (job,) = logs.read(tmp_path / "a.log", "deepspeed").jobs
    found = job.table.column("samples_per_second") if job.table.has("samples_per_second") else ()
    assert [one for one in found if not math.isnan(one)] == kept


def test_a_dict_that_goes_on_in_the_next_line_is_one_record(tmp_path):
    text = "".join(
        f"{{'loss': {loss}, 'learning_rate': 1e-05,\n 'epoch': {loss / 8}, 'step': {step}}}\n"
        for step, loss in ((10, 4.0), (20, 2.0))
    )
    (tmp_path / "a.log").write_text(text)
    (job,) = logs.read(tmp_path / "a.log", "hf-trainer").jobs
    assert list(job.table.column("loss")) == [4.0, 2.0]


@pytest.mark.parametrize(("end", "count"), [(" - timing_s/step:6.5", 2), ("", 1)])
def test_a_last_record_that_was_cut_off_before_its_time_is_none(tmp_path, end, count):
    record = "step:{n} - actor/pg_loss:0.5 - perf/throughput:640.0"
    whole = record.format(n=1) + " - timing_s/step:6.5\n"
    (tmp_path / "a.log").write_text(whole + record.format(n=2) + end)
    (job,) = logs.read(tmp_path / "a.log", "verl").jobs
    assert len(job.table) == count


def test_of_several_peaks_of_memory_the_highest_counts(tmp_path):
    record = "step: {n} | loss: 2.5 | step_time: 2.0\n"
    text = "".join(record.format(n=n) for n in (1, 2))
    for peaks, highest in (((0.25,), 0.25), ((0.5, 0.75, 0.25), 0.75)):
        said = "".join(f"Peak memory: {peak} GiB\n" for peak in peaks)
        (tmp_path / "a.log").write_text(text + said)
        (job,) = logs.read(tmp_path / "a.log").jobs
        assert job.details["peak_allocated_gib"] == highest


def test_a_line_of_a_script_is_a_line_of_the_log():
    dialect = deepspeed.DeepSpeed()
    assert dialect.line("step 1 loss 2.0")
    assert not dialect.line("loss of a friend: 2.0")


def test_a_record_has_at_most_so_many_characters():
    record = "step 7 loss 2.5 "
    longest = record + "x" * (4000 - len(record))
    assert pairs_of(longest)[0] == {"step": 7.0, "loss": 2.5}
    assert pairs_of(longest + "x")[0] == {}


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        ("bf16", "bf16"), ("bfloat16", "bf16"), ("torch.float32", "fp32"), ("fp32", "fp32"),
        ("float16", "fp16"), ("16-mixed", "fp16"),
    ],
)  # fmt: skip
def test_a_number_format_is_read_in_every_spelling(word: str, precision: str):
    assert ("precision", precision) in stated(f"precision: {word}")


@pytest.mark.parametrize(("tokens", "length"), [({}, 4096), ({"global_valid_toks": 9.0}, None)])
def test_a_limit_of_rollouts_is_no_length_and_any_other_is_one(tmp_path, tokens, length):
    events = [("global_batch_size", 64, {}), ("max_sequence_length", 4096, {})]
    events += [
        ("tracked_stats", {"reduced_train_loss": 2.0, **tokens}, {"samples_count": 64 * n})
        for n in (1, 2)
    ]
    lines = [
        f':::MLLOG {{"namespace": "", "time_ms": {1000 * n}, "event_type": "POINT_IN_TIME", '
        f'"key": "{key}", "value": {json.dumps(value)}, "metadata": {json.dumps(more)}}}\n'
        for n, (key, value, more) in enumerate(events)
    ]
    (tmp_path / "a.log").write_text("".join(lines))
    (found,) = ingestion.summaries(tmp_path / "a.log", {})
    assert found["sequence_length"] == length


def test_a_figure_is_read_by_its_unit():
    assert cell("tflops_per_gpu", 4.5e14, "") == ("tflops_per_gpu", 450.0)  # in FLOP/s
    assert cell("tflops_per_gpu", 450.0, "") == ("tflops_per_gpu", 450.0)
    assert cell("tokens_per_second", 4.5e14, "") == ("tokens_per_second", 4.5e14)
    assert cell("iterations_per_second", 4.0, "") == ("seconds", 0.25)
    assert cell("seconds", 250.0, "ms") == ("seconds", 0.25)
    assert cell("mfu", 45.0, "") == cell("mfu", 45.0, "%") == ("mfu", 0.45)
    assert cell("mfu", 0.45, "") == ("mfu", 0.45)
    assert cell("by_unit", 3.0, "")[0] == ""
    assert math.isnan(cell("iterations_per_second", 0.0, "")[1])


def test_a_peak_of_memory_is_found_in_a_line_that_says_nothing_else(tmp_path):
    record = "step: {n} | loss: 2.5 | step_time: 2.0\n"
    text = record.format(n=1) + "Peak memory: 12.5 GiB\n" + record.format(n=2)
    (tmp_path / "a.log").write_text(text)
    (job,) = logs.read(tmp_path / "a.log").jobs
    assert job.details["peak_allocated_gib"] == 12.5


def test_a_few_steps_or_one_without_a_number_are_left_as_they_are():
    assert hf_trainer._even([9.0, 21.0], 1.5) == [9.0, 21.0]
    assert str(hf_trainer._even([9.0, math.nan, 30.0], 1.5)) == "[9.0, nan, 30.0]"


def test_steps_of_imprecise_epochs_are_multiples_of_the_roundest_interval():
    assert hf_trainer._even([9.0, 21.0, 30.0], 1.5) == [10.0, 20.0, 30.0]
    assert hf_trainer._even([19.0, 41.0, 60.0], 1.5) == [20.0, 40.0, 60.0]
    assert hf_trainer._even([9.0, 21.0, 33.0], 1.5) == [9.0, 21.0, 33.0]  # 33 is no ten
    assert hf_trainer._even([9.0, 21.0, 30.0], 0.5) == [9.0, 21.0, 30.0]  # precise: as they are


def test_one_line_that_is_longer_than_the_others_was_not_wrapped(tmp_path):
    def unwrapped(*lines: str) -> str:
        path = tmp_path / "a.log"
        path.write_text("\n".join(lines))
        return "".join(Unwrapped(path).texts())

    assert unwrapped("a" * 60, "b", "c") == "\n".join(["a" * 60, "b", "c"])
    assert unwrapped("a" * 60, "b" * 60, "c") == "a" * 60 + "b" * 60 + "c"
    assert unwrapped("a" * 59, "b" * 59, "c") == "\n".join(["a" * 59, "b" * 59, "c"])
