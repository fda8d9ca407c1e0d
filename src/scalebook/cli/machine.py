"""Commands about this machine and its container images: doctor, probe, image and verify."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook import project
from scalebook.cli.terminal import (
    Subparsers,
    add_count,
    add_json,
    add_path,
    add_platform,
    add_repeated,
    add_runs,
    add_switch,
    add_text,
    number,
    platform_of,
    positive,
    print_json,
    print_table,
)
from scalebook.errors import LaunchError, RecordError
from scalebook.running.console import Console
from scalebook.running.container.images import ENGINES

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.measure.probes import Probe
    from scalebook.running.container.images import Image

CONTENTS = "scalebook.running.container.contents"
MARKS = {"ok": "ok", "warning": "WARNING", "problem": "PROBLEM", "unknown": "unknown"}


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "check this machine or container without changing it"
    parser = subparsers.add_parser("doctor", doctor, help=text)
    add_runs(parser)
    add_switch(parser, "--strict", "exit with code 1 for warnings, too")
    text = "only list lines in the files of DIR that look like secrets"
    add_path(parser, "--secrets", "DIR", text)
    add_json(parser)
    _register_probe(subparsers)
    _register_image(subparsers)
    _register_verify(subparsers)


def _register_probe(subparsers: Subparsers) -> None:
    text = "measure what this machine reaches: matrix products, copies, collectives"
    parser = subparsers.add_parser("probe", probe, help=text)
    add_platform(parser)
    add_count(parser, "--world-size", "GPUS", "processes (default: all GPUs)", default=0)
    text = "measure the matrix products of this model's layers; repeatable"
    add_repeated(parser, "--model", "NAME", text)
    text = "samples per matrix product (default: 1)"
    add_count(parser, "--micro-batch-size", "SAMPLES", text, default=1)
    text = "tokens per sample (default: 4096 on GPUs, 128 on a CPU)"
    add_count(parser, "--sequence-length", "TOKENS", text, default=0)
    text = "measuring time without start-up (default: 60 on GPUs, 4 on a CPU)"
    parser.add_argument("--seconds", type=positive, default=0.0, metavar="S", help=text)
    add_runs(parser)
    parser.add_argument("--module", default="", help=argparse.SUPPRESS)
    add_json(parser)


def _register_image(subparsers: Subparsers) -> None:
    build = subparsers.add_parser("image", image, help="build the container image of a platform")
    build.add_argument("--platform", required=True, help="platform, such as h100, mi300x or cpu")
    text = "engine that builds (default: auto)"
    build.add_argument("--container", choices=("auto", *ENGINES), default="auto", help=text)
    what = build.add_mutually_exclusive_group()
    add_text(what, "--base-image", "REFERENCE", "base (default: image.toml's)")
    text = (
        "write the digest of the base's tag into image.toml; build nothing (default: the "
        "digest that the registry has)"
    )
    what.add_argument("--pin", nargs="?", const="", metavar="DIGEST", help=text)
    add_text(build, "--image", "REFERENCE", "name of the new image")
    text = "import an existing image: docker-archive:FILE, docker:TAG or podman:TAG"
    what.add_argument("--from", dest="source", metavar="KIND:NAME", help=text)
    text = "install every package from FOLDER, without network access"
    add_path(build, "--wheels", "FOLDER", text)
    text = "option for the image builder; repeatable"
    add_repeated(build, "--build-arg", "=--OPTION[=VALUE]", text)
    add_switch(build, "--dry-run", "print the commands without building")


def _register_verify(subparsers: Subparsers) -> None:
    text = "compare an image's versions with image.toml"
    check = subparsers.add_parser("verify", verify, help=text)
    add_platform(check)
    text = "engine that runs the image"
    check.add_argument("--container", choices=("auto", *ENGINES, "none"), default="auto", help=text)
    text = "image to check (default: the one that Scalebook builds)"
    add_text(check, "--image", "REFERENCE", text)
    text = "option for the engine; repeatable"
    add_repeated(check, "--container-arg", "=--OPTION[=VALUE]", text)
    add_json(check)


def doctor(options: argparse.Namespace) -> int:
    """Print what every check found; 0 without a problem, 1 with one."""
    if options.secrets is not None:
        return _secrets(options.secrets, as_json=options.json)
    from scalebook.doctor import checks, gather
    from scalebook.running.container.images import folder_of

    facts = gather.gather(
        project.runs_folder(options.runs), folder_of(project.root() or Path.cwd())
    )
    findings = checks.examine(facts)
    code = checks.exit_code(findings, strict=options.strict)
    if options.json:
        print_json({"findings": findings, "facts": facts, "exit_code": code})
        return code
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print(f"{MARKS[finding.level]:<8} {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            print(f"{'':<{width + 11}}{finding.advice}")
    counts = {level: sum(f.level == level for f in findings) for level in ("problem", "warning")}
    print("\n" + ", ".join(f"{n} {level}{'s'[: n != 1]}" for level, n in counts.items()) + ".")
    return code


def _secrets(folder: Path, *, as_json: bool) -> int:
    """Print where something looks like a secret, never the secret itself; 1 if anything does."""
    from scalebook.scrub import in_folder

    if not folder.is_dir():
        raise RecordError(f"{folder} is not a folder. Name the folder of runs.")
    found = list(in_folder(folder))
    if as_json:
        print_json([{"file": str(path), "line": line, "kinds": one} for path, line, one in found])
    else:
        for path, line, kinds in found:
            print(f"{path}:{line}: {', '.join(kinds)}")
        counted = f"Lines that look like secrets: {len(found)}."
        print(counted if found else "Nothing looks like a secret.")
    return 1 if found else 0


def probe(options: argparse.Namespace) -> int:
    """Probe this machine; 0 if the probe completed."""
    from scalebook.measure.probes.files import FOLDER
    from scalebook.probe import probing

    asked = probing.request(
        platform=options.platform or "",
        world_size=options.world_size,
        models=tuple(options.model),
        seconds=options.seconds,
        micro_batch_size=options.micro_batch_size,
        sequence_length=options.sequence_length,
    )
    console = Console(sys.stderr)
    runs, module = project.runs_folder(options.runs), options.module or probing.MODULE
    found = probing.probe(asked, str(runs), console.live, module)
    console.say(f"{found.status}: {project.short(runs / FOLDER / found.probe_id)}")
    if options.json:
        print_json(found.model_dump(mode="json"))
    else:
        _print_probe(found)
    if found.status == "interrupted":
        raise KeyboardInterrupt
    return 0 if found.status == "completed" else 1


def _print_probe(found: Probe) -> None:
    """Print the best rates as a table, what was left out, and why a probe did not complete."""
    from scalebook.measure.probes.lines import left_out, lines

    if found.reason:
        tail = found.log_tail if found.status != "interrupted" else ()
        print("\n".join((f"{found.reason}.", *(f"  | {line}" for line in tail))))
    rows = [(what, number(rate), unit) for what, rate, unit in lines(found)]
    if rows:
        print_table(("what", "rate", "unit"), rows)
    for sentence in left_out(found):
        print(sentence)


def image(options: argparse.Namespace) -> int:
    """Build an image; return the exit code of the first step that failed, 0 if none."""
    from scalebook import host
    from scalebook.facts import catalog
    from scalebook.running.container import building, images

    known = images.image(catalog.platform(options.platform).vendor)
    if options.pin is not None:
        return _pin(known, options)
    engine = _builder(options)
    root = project.required_root()
    target = images.named_or_ours(options.image, known.vendor, engine)
    dry = options.dry_run or bool(options.source)
    wheels = options.wheels.absolute() if options.wheels else None
    with building.context(root, known, dry=dry, wheels=wheels) as path:
        wanted = building.Build(
            engine=engine,
            image=known,
            base=options.base_image or known.base_reference,
            target=target,
            context=path,
            source=options.source,
            arguments=tuple(options.build_arg),
            offline=wheels is not None,
        )
        if not options.source and host.image_digest(wanted.base) is None:
            pin = f"Pin it: scalebook image --platform {options.platform} --pin"
            how = "Name it by digest (NAME@sha256:...)." if options.base_image else pin
            note = f"note: the base {wanted.base} is named by a tag, which can move. {how}"
            print(note, file=sys.stderr)
        if options.dry_run:
            print("\n".join(shlex.join(step) for step in building.steps(wanted)))
            return 0
        code = building.run(wanted)
        listed = building.copy_packages(wanted, images.folder_of(root)) if code == 0 else None
    if code == 0:
        found = listed and project.short(listed)
        print(f"Its packages: {found}" if found else f"{target} has no list of packages.")
        print(f"Built {target}. Check it: scalebook verify --platform {options.platform}")
    return code


def _pin(known: Image, options: argparse.Namespace) -> int:
    """Write the digest that the base's tag has now into image.toml and the Containerfile."""
    from scalebook.running.container import engines, images

    if options.pin and not images.DIGEST.fullmatch(options.pin):
        raise LaunchError(
            f"--pin {options.pin!r} is not a digest. Write sha256: and 64 hex digits."
        )
    digest, program = (
        (options.pin, "hand") if options.pin else engines.registry_digest(known.tagged)
    )
    if options.dry_run:
        print(f"{known.tagged} has the digest {digest}; nothing is written.")
        return 0
    folder = project.required_root() / "containers" / known.vendor
    table, recipe = folder / "image.toml", folder / "Containerfile"
    comment = f"of {known.tag} on {datetime.now(UTC).date()}, by {program}"
    pinned = images.with_digest(table.read_text("utf-8"), digest, comment)
    based = images.with_base(recipe.read_text("utf-8"), f"{known.base}@{digest}")
    table.write_text(pinned, "utf-8")
    recipe.write_text(based, "utf-8")
    print(f"Pinned {known.tagged} in {project.short(table)}: {digest}")
    print(f"Build on it: scalebook image --platform {options.platform}")
    return 0


def _builder(options: argparse.Namespace) -> str:
    """Return the engine that builds: the one asked for, or the first that is installed."""
    from scalebook.running.container.engines import installed

    if options.container != "auto":
        if not options.dry_run and not installed((options.container,)):
            raise LaunchError(f"{options.container} was not found. Install it first.")
        return str(options.container)
    for engine in installed():
        return engine
    raise LaunchError(f"No container engine was found ({', '.join(ENGINES)}). Install one first.")


def verify(options: argparse.Namespace) -> int:
    """Compare an image's contents with image.toml; 0 if all is as stated, 1 if not."""
    from scalebook.running.container import contents, images

    platform = platform_of(options)
    engine, read = _read(options, platform)
    versions, torch = contents.told(read)
    findings = contents.compare(images.image(platform.vendor).contents, versions)
    good = all(finding.good for finding in findings) and torch["starts"] is True
    if options.json:
        body = {"engine": engine, "good": good, "findings": findings, "torch": torch}
        print_json({**body, "versions": versions})
    else:
        rows = [(f.component, f.stated or "-", f.found or "-", f.verdict) for f in findings]
        print_table(("component", "stated", "found", "verdict"), rows)
        starts = f"torch starts and sees {torch['devices']} GPUs."
        print(starts if torch["starts"] else f"torch does not start: {torch['reason']}.")
    return 0 if good else 1


def _read(options: argparse.Namespace, platform: Platform) -> tuple[str | None, dict[str, Any]]:
    """Return the engine that was used and what the image holds."""
    from scalebook.running.container import contents, engines, images, nested

    root, vendor, asked = project.required_root(), platform.vendor, options.container
    wanted = {"auto": ENGINES, "none": ()}.get(asked, (asked,))
    here = engines.surroundings(vendor, images.folder_of(root), options.image, wanted)
    ready = [engine for engine, lack in here.engines.items() if lack is None]
    # A CPU platform trains without a container, but what is verified is its image, where it is.
    engine = ready[0] if asked == "auto" and ready else engines.choose(asked, vendor, here).engine
    if engine is None:
        print(
            "No image was started: these are the versions in this machine's Python.",
            file=sys.stderr,
        )
        return None, contents.read()
    reference = images.named_or_ours(options.image, vendor, engine)
    request = nested.ContainerRequest(
        engine=engine, vendor=vendor, image=reference, arguments=tuple(options.container_arg)
    )
    command = nested.bare(request, nested.describe(root, Path.cwd()), ("-m", CONTENTS))
    return engine, nested.output_of(command, os.environ)
