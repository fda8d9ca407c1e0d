"""The page of predicted and measured step times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scalebook import store
from scalebook.measure.probes.files import read_probes
from scalebook.predict import predictor
from scalebook.predict.known import configuration, known_rate, known_rates
from scalebook.report.base import frames
from scalebook.report.pages import predicted_page as page

EXAMPLES = Path(__file__).parents[2] / "runs" / "examples"
MOST_CONFIGURATIONS = page.MOST_CONFIGURATIONS  # before the fixtures of these tests


@pytest.fixture(scope="module")
def ones():
    return page.compare(frames.load(EXAMPLES))


def test_no_run_predicts_itself(ones) -> None:
    rates, _ = known_rates([EXAMPLES])
    one = next(one for one in ones if len(one.run_ids) == 1)
    rate = known_rate(store.read_run(EXAMPLES / one.run_ids[0]))
    assert not isinstance(rate, str)
    own = configuration(rate.config, rate.ran)
    probes, _ = read_probes(EXAMPLES)
    apart = [other for other in rates if configuration(other.config, other.ran) != own]
    parts, _ = predictor(rate.config.platform, apart, probes).step(
        rate.config, rate.shape, rate.ran
    )
    tokens = rate.config.tokens_per_step / rate.config.world_size
    assert one.predicted == pytest.approx(tokens / sum(parts.values()))
    assert one.measured == pytest.approx(tokens / rate.seconds)


def test_no_run_of_a_question_predicts_another_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_CONFIGURATIONS", MOST_CONFIGURATIONS)
    data = frames.load(EXAMPLES)
    rates, _ = known_rates([EXAMPLES])
    asked = {rate.run_id for rate in rates if rate.config.model.startswith("llama3.1-8b")}
    found = page.compare(data, asked)
    assert {run_id for one in found for run_id in one.run_ids} == asked
    own = {configuration(rate.config, rate.ran) for rate in rates if rate.run_id in asked}
    apart = [rate for rate in rates if configuration(rate.config, rate.ran) not in own]
    assert len(apart) < len(rates) - len(found)
    rate = next(rate for rate in rates if rate.run_id == found[0].run_ids[0])
    probes, _ = read_probes(EXAMPLES)
    made = predictor(rate.config.platform, apart, probes)
    parts, _ = made.step(rate.config, rate.shape, rate.ran)
    tokens = rate.config.tokens_per_step / rate.config.world_size
    assert found[0].predicted == pytest.approx(tokens / sum(parts.values()))


def test_repeats_are_one_configuration_and_none_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted = SimpleNamespace(fitted=SimpleNamespace(samples=(1,)))
    monkeypatch.setattr(page, "MOST_CONFIGURATIONS", 10 * MOST_CONFIGURATIONS)
    monkeypatch.setattr(page, "predictor", lambda *_, **__: fitted)
    monkeypatch.setattr(page, "_compared", lambda *of: SimpleNamespace(error=0.0, same=of[2]))
    rates, _ = known_rates([EXAMPLES])
    found = page.compare(frames.load(EXAMPLES))
    assert len(found) < len(rates)
    together = sorted(sorted(rate.run_id for rate in one.same) for one in found)
    own: dict[tuple[str, str], list[str]] = {}
    for rate in rates:
        key = (rate.config.platform, configuration(rate.config, rate.ran))
        own.setdefault(key, []).append(rate.run_id)
    assert together == sorted(map(sorted, own.values()))


def test_of_many_configurations_the_newest_are_predicted(ones) -> None:
    assert len(ones) == page.MOST_CONFIGURATIONS < MOST_CONFIGURATIONS
    rates, _ = known_rates([EXAMPLES])
    newest = {rate.run_id for rate in rates[-2 * len(ones) :]}
    assert newest & {run_id for one in ones for run_id in one.run_ids}
    oldest = {rate.run_id for rate in rates[: len(ones)]}
    assert not oldest & {one.run_ids[0] for one in ones}


def test_the_parts_add_up_to_the_predicted_step(ones) -> None:
    for one in ones:
        assert sum(one.parts.values()) == pytest.approx(1 + one.error)


def test_the_largest_misses_come_first_and_their_marks_are_hollow(ones) -> None:
    drawn = page.rates(ones)
    assert drawn is not None
    spec = drawn.spec()
    marks = [layer["mark"] for layer in spec["layer"]]
    assert [mark.get("filled") for mark in marks] == [None, False, True]
    assert [abs(one.error) for one in ones] == sorted(
        (abs(one.error) for one in ones), reverse=True
    )


def test_findings_count_what_lies_in_the_interval(ones) -> None:
    inside = sum(one.low <= one.measured <= one.high for one in ones)
    said = page.findings(ones)._repr_markdown_().replace("\N{NO-BREAK SPACE}", " ")
    assert f"{inside} of {len(ones)} lie in their 90 % interval" in said
    slow = replace(ones[0], measured=ones[0].predicted / 2)
    assert "ran 50.0\xa0% slower than predicted" in page.findings([slow])._repr_markdown_()


def test_a_folder_of_one_run_has_no_prediction_and_says_so(tmp_path: Path) -> None:
    name = "20261128-085506-llama3.1-8b-8-w1-172ad1564998"
    (tmp_path / name).symlink_to(EXAMPLES / name)
    alone = page.compare(frames.load(tmp_path))
    assert alone == ()
    assert "two configurations at least" in page.findings(alone)._repr_markdown_()
    assert page.errors(alone) is page.rates(alone) is page.parts(alone) is None
    assert page.families(alone) == ""


def test_only_the_newest_measured_runs_with_a_rate_are_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = frames.load(root / "runs" / "examples")
    known = data.completed.filter(source="measured")["run_id"].sort().to_list()
    monkeypatch.setattr(page, "MOST_RUNS", 3)
    assert page._newest(data) == set(known[-6:])
    teaching = known_rates([data.folder], set(known[-6:]))[0]
    assert {one.run_id for one in teaching} <= set(known[-6:])
    assert teaching
