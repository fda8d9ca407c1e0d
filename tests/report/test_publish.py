"""A publication: whole, checked by sha256sum, free of hosts, homes and secrets."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from simulated import config, write_run

from scalebook.cli import main
from scalebook.report import cleaned
from scalebook.report.cleaned import clean_file, clean_text, clean_value, hosts_in
from scalebook.report.publish import plain
from scalebook.store import read_record

LOG = (
    "[W socket.cpp:697] connect to [gpu-node-17]:29500\n  host      : gpu-node-17.cluster.example\n"
    "from /home/alice/project/train.py and /scratch/team/data/tokens.bin at 10.1.2.3:29500\n"
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    folder = tmp_path_factory.mktemp("publish")
    runs = folder / "runs"
    shown = sorted((root / "runs/examples").iterdir())[0]
    shutil.copytree(shown, runs / shown.name)
    evil = write_run(runs, "evil", config(), reason="<b>|x|</b>", status="failed", log_tail=(LOG,))
    (evil / "train.log").write_text(LOG + "gpu-node-17 is slow\n")
    (evil / "link.log").symlink_to("/etc/hostname")
    (evil / "weights.pt").write_bytes(b"0" * 10)
    (evil / "large.log").write_bytes(b"0" * (2 << 20))
    target = folder / "public"
    arguments = ["publish", str(target), "--runs", str(runs), "--submitter", "A <b>|", "--contact"]
    assert main([*arguments, "lab@example.org"]) == 0
    assert main([*arguments, "lab@example.org"]) == 0  # replaces the older one
    return target


def test_sha256sum_checks_every_file(published: Path) -> None:
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=published, check=False)
    files = [path for path in published.rglob("*") if path.is_file()]
    assert done.returncode == 0
    assert len((published / "SHA256SUMS").read_text().splitlines()) == len(files) - 1
    assert not [path for path in published.parent.iterdir() if path.name.startswith(".")]


def test_the_index_has_a_row_per_run_whose_files_exist(published: Path) -> None:
    index = json.loads((published / "index.json").read_text())
    assert (index["format"], index["format_version"]) == ("scalebook-publication", 1)
    assert index["files_left_out"] == 3
    assert len(index["runs"]) == 2
    measured = next(row for row in index["runs"] if row["status"] == "completed")
    assert measured["rate_low"] < measured["rate"] < measured["rate_high"]
    assert measured["layout"]["tensor_parallel_size"] == 1
    for row in index["runs"]:
        assert all((published / name).is_file() for name in row["files"])
        assert f"runs/{Path(row['files'][0]).parent.name}/record.json" in row["files"]
    for study in index["studies"]:
        assert study["question"] and study["sentence"] and "<" not in study["sentence"]


def test_no_copy_names_a_host_a_home_or_a_folder(published: Path) -> None:
    for path in published.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for word in (
                b"gpu-node-17",
                b"/home/alice",
                b"/scratch",
                b"10.1.2.3",
                b"cluster.example",
            ):
                assert word not in content, (path, word)
    read_record(published / "runs" / "evil")


def test_the_sheet_escapes_what_records_and_options_say(published: Path) -> None:
    sheet = (published / "SUBMISSION.md").read_text()
    assert "<b>" not in sheet
    assert "A &lt;b&gt;\\|" in sheet
    assert "H100" in sheet and "scalebook reproduce" in sheet and "093b25831413" in sheet
    assert plain("a|b\n# c") == "a\\|b \\# c"


def test_a_secret_stops_the_publication_with_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs", "one", config())
    (run / "train.log").write_text("fine\nHF_TOKEN=abcdef0123456789\n")
    assert main(["publish", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]) == 1
    assert "one/train.log:2: assignment" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_foreign_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs", "one", config())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert main(["publish", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]) == 2
    assert main(["publish", str(tmp_path / "runs/out"), "--runs", str(tmp_path / "runs")]) == 2
    assert "not a publication" in capsys.readouterr().err
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("host      : trainbox (local_rank: 0)", "host      : host (local_rank: 0)"),
        ("node17:314:402 [0] NCCL INFO Bootstrap", "host:314:402 [0] NCCL INFO Bootstrap"),
        ("--rdzv-endpoint node17:29500", "--rdzv-endpoint host:29500"),
        ("--rdzv-endpoint=localhost:0", "--rdzv-endpoint=localhost:0"),
        ("open /home/bob/x/y.py, /data/set/a.bin", "open ~/x/y.py, …/a.bin"),
        ("/root/x at https://a.example/b/c", "~/x at https://a.example/b/c"),
        ("tokens/s/GPU", "tokens/s/GPU"),
        ("cudnn 9.10.2.21 driver 580.159.04", "cudnn 9.10.2.21 driver 580.159.04"),
        ("at 54.3.2.1:80, 192.168.0.4, 127.0.0.1", "at host:80, host, 127.0.0.1"),
    ],
)  # fmt: skip
def test_cleaning_removes_hosts_and_places_only(text: str, clean: str) -> None:
    assert clean_text(text) == clean


@pytest.mark.parametrize(
    "text", ["host v1.2.3", "host torch.distributed.elastic", "host lib2.so.1", "node list of 4.x"]
)
def test_a_word_behind_host_is_no_name_of_one(text: str) -> None:
    assert clean_text(text) == text and not hosts_in([text]) & set(text.split())


def test_a_full_name_of_a_host_in_a_sentence_is_removed_from_all() -> None:
    hosts = hosts_in(["rank 3 on host gpu-node-17.corp.example.com died"])
    assert clean_text("lost gpu-node-17.corp.example.com", hosts) == "lost host"


def test_a_host_that_one_file_labels_is_removed_from_all() -> None:
    hosts = hosts_in(["SLURM_NODELIST=gpu[01-04] host: node17.a"])
    assert clean_text("lost node17.a", hosts) == "lost host"
    assert clean_value({"hostname": "trainbox", "host": {"cpu_cores": 4}}) == {
        "hostname": "host",
        "host": {"cpu_cores": 4},
    }


def test_json_without_such_names_stays_as_it_is() -> None:
    text = '{"a":  1,\n"b": "tokens/s per GPU"}'
    assert clean_file("x.json", text, ()) == text
    assert cleaned.is_plain("a-b.json") and not cleaned.is_plain("-a\n")
