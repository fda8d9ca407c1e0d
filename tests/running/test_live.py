"""The live view: right numbers by hand, nothing of a file obeyed, and a table that fits."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path

import pytest

from scalebook import ownership, store
from scalebook.cli import serve
from scalebook.measure import metrics
from scalebook.running import finish_run, live
from scalebook.running.console import Console, cut, width

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "runs/examples/20261128-083934-llama3.1-8b-w4-f7a529f1dcbc"
FILES = ("config.json", "observed.json", "steps.jsonl", "telemetry.jsonl", "train.log")
HOSTILE = "<script>alert(1)</script>\x1b[2J\x1b]0;owned\x07"


def begun(runs: Path, steps: int, name: str = EXAMPLE.name) -> Path:
    """Return the partial directory of the example as it stood after so many steps."""
    partial = runs / f".partial-{name}"
    partial.mkdir(parents=True)
    for file in FILES:
        shutil.copy(EXAMPLE / file, partial / file)
    lines = (EXAMPLE / "steps.jsonl").read_text().splitlines(keepends=True)
    (partial / "steps.jsonl").write_text("".join(lines[:steps]) + lines[-1][:40])  # cut off
    return partial


def example_steps() -> list[dict[str, float]]:
    return [json.loads(line) for line in (EXAMPLE / "steps.jsonl").read_text().splitlines()]


def test_a_partial_run_has_the_rate_and_mfu_of_its_steps_so_far(tmp_path: Path):
    begun(tmp_path, 8)
    (run,) = live.Monitor(tmp_path).snapshot().running
    counted = [step for step in example_steps()[:8] if step["phase"] == "measured"]
    assert 1 < len(counted) < 10  # too few for an interval
    rate = sum(s["tokens"] for s in counted) / sum(s["step_seconds"] for s in counted) / 4
    assert run.tokens_per_second_per_gpu == pytest.approx(rate)
    # Llama 3.1 8B: 32 layers and the output layer, causal attention over 8,192 tokens.
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    flops = 6 * (32 * layer + 4096 * 128256) + 6 * 32 * 8192 * 4096
    assert run.mfu == pytest.approx(rate * flops / 1e12 / 989.4, rel=1e-3)
    assert (run.step, run.steps_asked) == (8, 14)
    every = sorted(step["step_seconds"] for step in example_steps()[1:8])
    assert run.seconds_left == pytest.approx(6 * every[3])
    assert run.tokens_per_second_per_gpu_low is None
    assert run.interval_reason
    assert run.memory_gib == max(step["allocated_gib"] for step in example_steps()[:8])


def test_all_steps_give_the_numbers_of_the_record(tmp_path: Path):
    begun(tmp_path, 14)
    (run,) = live.Monitor(tmp_path).snapshot().running
    ended = metrics.measure(store.read_run(EXAMPLE))
    assert run.tokens_per_second_per_gpu == ended.tokens_per_second_per_gpu
    assert run.tokens_per_second_per_gpu_low == pytest.approx(ended.tokens_per_second_low / 4)
    assert (run.mfu, run.mfu_low, run.mfu_high) == (ended.mfu, ended.mfu_low, ended.mfu_high)
    rows = [json.loads(line) for line in (EXAMPLE / "telemetry.jsonl").read_text().splitlines()]
    newest = {row["gpu"]: row["power_watts"] for row in rows if "gpu" in row}
    assert len(newest) == 4
    assert run.power_watts == pytest.approx(sum(newest.values()) / 4)


def test_the_plan_says_what_is_done_and_how_long_the_rest_takes(tmp_path: Path):
    partial = begun(tmp_path, 8)
    live.write_plan(partial, live.PlanState("mine", 12, 3, 1, 7, 60.0))
    now = live.Monitor(tmp_path).snapshot()
    assert now.plan_seconds_left == pytest.approx(now.running[0].seconds_left + 7 * 60)
    line = live.table(now)[0]
    assert line.startswith("Plan 'mine': 3 done, 1 running, 7 to do, 1 failed, of 12; about 7:")


def test_a_run_without_a_step_takes_as_long_as_those_before(tmp_path: Path):
    partial = begun(tmp_path, 0)
    (partial / "steps.jsonl").unlink()
    live.write_plan(partial, live.PlanState("mine", 12, 3, 1, 7, 60.0))
    assert live.Monitor(tmp_path).snapshot().plan_seconds_left == 8 * 60
    live.write_plan(partial, live.PlanState("mine", 12, 3, 1, 7))
    assert live.Monitor(tmp_path).snapshot().plan_seconds_left is None


@pytest.mark.parametrize("text", ["[]", '{"name": 1}', '{"seconds_each": Infinity}', "{" * 9999])
def test_a_plan_that_cannot_be_read_is_none(tmp_path: Path, text: str):
    partial = begun(tmp_path, 8)
    (partial / finish_run.PLAN_FILE).write_text(text)
    assert live.Monitor(tmp_path).snapshot().plan is None


def test_a_hostile_log_name_and_model_reach_neither_terminal_nor_markup(tmp_path: Path):
    partial = begun(tmp_path, 8, "x<img src=x>\x1b[2J")
    config = json.loads((partial / "config.json").read_text())
    (partial / "config.json").write_text(json.dumps(config | {"model": HOSTILE}))
    secret = "hf_" + "a" * 30
    (partial / "train.log").write_text(f"fine\n{HOSTILE}\nloaded with {secret}\n")
    live.write_plan(partial, live.PlanState(HOSTILE, 1, 0, 0, 0))
    now = live.Monitor(tmp_path, curves=True).snapshot()
    assert now.running[0].log[0] == "fine"
    assert secret not in repr(now)
    texts = [*now.running[0].log, now.running[0].run_id, *live.table(now)]
    assert all(text.isprintable() for text in texts)


def test_a_log_that_is_a_link_is_not_read(tmp_path: Path):
    partial = begun(tmp_path / "runs", 8)
    (tmp_path / "outside").write_text("outside\n")
    (partial / "train.log").unlink()
    (partial / "train.log").symlink_to(tmp_path / "outside")
    assert live.Monitor(tmp_path / "runs", curves=True).snapshot().running[0].log == ()


def test_a_curve_has_few_points_and_the_last_step(tmp_path: Path):
    partial = begun(tmp_path, 0)
    one = example_steps()[-1]
    lines = (json.dumps(one | {"step": number}) for number in range(1, 2002))
    (partial / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (run,) = live.Monitor(tmp_path, curves=True).snapshot().running
    assert len(run.curve) <= live.POINTS
    assert run.curve[-1] == (2001, one["loss"], one["step_seconds"])


def test_a_text_is_cut_by_the_columns_it_takes():
    assert cut("模型 model", 6) == "模型 m"
    assert width("模型 m") == 6
    assert cut("a\x1b[2Jb", 80) == "a\ufffd[2Jb"


# On a terminal ------------------------------------------------------------------------------------


@contextmanager
def terminal(command: list[str], columns: int, **variables: str) -> Iterator[tuple[int, int]]:
    """Yield process and terminal of a command that runs on a terminal of this width."""
    process, descriptor = pty.fork()
    if process == 0:
        os.environ.update({"TERM": "xterm", **variables})
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execv(sys.executable, [sys.executable, "-m", "scalebook", *command])
    try:
        yield process, descriptor
    finally:
        os.close(descriptor)


def read_until(descriptor: int, sign: str, seconds: float = 60.0) -> str:
    """Return what a terminal shows until it shows the sign, or its program has ended."""
    text, deadline = "", time.monotonic() + seconds
    while (not sign or sign not in text) and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.2)[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:
                break
            if not piece:
                break
            text += piece.decode(errors="replace")
    return text


def end_run(partial: Path) -> None:
    shutil.copy(EXAMPLE / "record.json", partial / "record.json")
    store.publish(partial)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_watch_fits_the_terminal_and_ends_when_the_runs_end(tmp_path: Path, columns: int):
    partial = begun(tmp_path, 14)
    live.write_plan(partial, live.PlanState("mine", 1, 0, 0, 0))
    command = ["status", "--watch", "1", "--runs", str(tmp_path)]
    with terminal(command, columns, NO_COLOR="1") as (process, descriptor):
        text = read_until(descriptor, "14/14")
        assert "Plan 'mine': 0 done, 1 running, 0 to do" in text or columns == 40
        end_run(partial)
        text += read_until(descriptor, "")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.rpartition("completed")[0])
    lines = [line for part in frames.split("\n") for line in part.split("\r")]
    assert max(map(width, lines[:-1])) < columns
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") > 0  # each frame shows the cursor
    assert "\x1b[1m" not in text
    assert "completed" in text
    assert "All 1 runs have ended." in text


def test_watch_ends_with_0_on_ctrl_c_and_leaves_the_cursor(tmp_path: Path):
    begun(tmp_path, 14)
    with terminal(["status", "--watch", "--runs", str(tmp_path)], 80) as (process, descriptor):
        read_until(descriptor, "14/14")
        os.write(descriptor, b"\x03")
        rest = read_until(descriptor, "")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert rest.rfind("\x1b[?25h") >= rest.rfind("\x1b[?25l")


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path):
    begun(tmp_path, 14)
    command = ["status", "--watch", "1", "--runs", str(tmp_path)]
    with terminal(command, 80, TERM="dumb") as (process, descriptor):
        text = read_until(descriptor, "14/14")
        os.kill(process, signal.SIGINT)
        read_until(descriptor, "")
        os.waitpid(process, 0)
    assert "\x1b" not in text
    assert "14/14" in text


def test_a_pipe_gets_the_line_and_never_asks_for_the_table():
    stream = StringIO()
    Console(stream).live("step 1", lambda: pytest.fail("asked for"))
    assert stream.getvalue() == "step 1\n"


def test_what_was_left_behind_is_not_watched(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    partial = begun(tmp_path, 14)
    os.utime(partial, (0, 0))
    assert not ownership.is_live(partial)
    assert live.watch(live.Monitor(tmp_path), Console(), 0.01) == 0


# In a browser -------------------------------------------------------------------------------------


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of a server over a folder with one run that trains and one that ended."""
    partial = begun(tmp_path, 14)
    live.write_plan(partial, live.PlanState(HOSTILE, 12, 3, 1, 7, 60.0))
    with (partial / "train.log").open("a") as log:
        log.write(f"{HOSTILE}\n")
    shutil.copytree(EXAMPLE, tmp_path / EXAMPLE.name)
    server = serve.make_server(live.Monitor(tmp_path, curves=True))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    policy = answer.getheader("Content-Security-Policy") or ""
    return answer.status, answer.read().decode(), policy


def test_the_data_has_the_numbers_of_the_table(port: int):
    code, text, policy = ask(port, "/data")
    data = json.loads(text)
    assert code == 200
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert data["plan"]["done"] == 3
    (run,), (ended,) = data["running"], data["ended"]
    measured = metrics.measure(store.read_run(EXAMPLE))
    assert run["tokens_per_second_per_gpu"] == measured.tokens_per_second_per_gpu
    assert run["curve"][-1][:2] == [14, example_steps()[-1]["loss"]]
    assert ended["mfu"] == measured.mfu
    assert ended["status"] == "completed"


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/x", "/data/", "/page.html", "/serve.py", "/../serve.py"]
)
def test_no_other_path_leads_anywhere(port: int, path: str):
    assert ask(port, path)[0] == 404
    assert ask(port, "/../")[1] == ask(port, "/")[1]  # the folder has nothing above it


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_only_get_is_answered(port: int, method: str):
    assert ask(port, "/data", method)[0] == 405


def test_only_names_of_this_machine_are_answered(port: int):
    for name in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1.evil:{port}"):
        assert ask(port, "/data", host=name)[0] == 403
    assert ask(port, "/data", host=f"localhost:{port}")[0] == 200
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /data HTTP/1.0\r\n\r\n")
        assert b" 403 " in client.recv(100)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site of others, with what its server must not follow or wait for."""
    folder = tmp_path / "site"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (folder / "index.html").write_text("the page")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    return folder


def test_a_site_is_shown_to_this_machine_and_nothing_beside_it(site: Path):
    with serve.site_server(site, 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            port = server.server_port
            assert ask(port, "/")[:2] == ask(port, "/index.html?x=1")[:2] == (200, "the page")
            for path in (
                "/link",
                "/up/secret",
                "/up/",
                "/pipe",
                "/sub/",
                "/../secret",
                "/%2e%2e/secret",
            ):
                assert ask(port, path)[0] == 404
            assert ask(port, "/", host=f"evil.example:{port}")[0] == 403
            assert ask(port, "/", "POST")[0] == 501
        finally:
            server.shutdown()
            thread.join()


def test_a_browser_that_leaves_is_no_error_and_a_defect_is_one(site: Path, capsys):
    with serve.site_server(site, 0) as server:
        for error in (ConnectionResetError("gone"), BrokenPipeError("gone"), ValueError("odd")):
            try:
                raise error
            except (OSError, ValueError):
                server.handle_error(None, ("127.0.0.1", 9))
    said = capsys.readouterr().err
    assert "gone" not in said
    assert said.count("ValueError: odd") == 1


def test_the_server_is_bound_to_loopback_only(tmp_path: Path):
    with serve.make_server(live.Monitor(tmp_path)) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_the_page_has_no_inline_script_and_no_markup_from_data():
    folder = ROOT / "src/scalebook/cli/live_page"
    page, script = (folder / "index.html").read_text(), (folder / "page.js").read_text()
    assert re.findall(r"<script[^>]*>([^<]*)", page) == [""]
    assert not re.search(r"\son\w+=|style=", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script)


def test_a_browser_shows_the_page_without_an_error(port: int, tmp_path: Path):
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom",
        f"http://127.0.0.1:{port}/",
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr
    assert shown.stdout.count('<path d="M') == 2  # loss and step time
    assert "10,982 (10,6" in shown.stdout
    assert "3 done, 1 running, 7 to do, 1 failed, of 12" in shown.stdout
    assert "&lt;script&gt;alert(1)" in shown.stdout
    assert "<script>alert" not in shown.stdout


def test_serve_ends_with_0_on_ctrl_c(tmp_path: Path):
    with terminal(["serve", "--runs", str(tmp_path)], 80) as (process, descriptor):
        assert "http://127.0.0.1:" in read_until(descriptor, "stops the server")
        os.write(descriptor, b"\x03")
        read_until(descriptor, "")
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
