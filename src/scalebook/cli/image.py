"""``image`` builds the container image of a platform; ``verify`` compares one with image.toml."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.arguments import Subparsers, add_json
from scalebook.running.container.images import ENGINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scalebook.facts.catalog.types import Platform
    from scalebook.running.container.contents import ImageFinding
    from scalebook.running.container.images import Image

CONTENTS = "scalebook.running.container.contents"


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    build = subparsers.add_parser("image", help="build the container image of a platform")
    build.add_argument("--platform", required=True, help="platform, such as h100, mi300x or cpu")
    build.add_argument(
        "--container",
        choices=("auto", *ENGINES),
        default="auto",
        help="engine that builds (default: auto)",
    )
    what = build.add_mutually_exclusive_group()
    what.add_argument(
        "--base-image", default="", metavar="REFERENCE", help="base (default: image.toml's)"
    )
    what.add_argument(
        "--pin",
        action="store_true",
        help="write the digest of the base's tag into image.toml; build nothing",
    )
    build.add_argument("--image", default="", metavar="REFERENCE", help="name of the new image")
    what.add_argument(
        "--from",
        dest="source",
        metavar="KIND:NAME",
        help="import an existing image: docker-archive:FILE, docker:TAG or podman:TAG",
    )
    build.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="install every package from FOLDER, without network access",
    )
    build.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="=--OPTION[=VALUE]",
        help="option for the image builder; repeatable",
    )
    build.add_argument("--dry-run", action="store_true", help="print the commands without building")
    build.set_defaults(handler=image)
    _register_verify(subparsers)


def _register_verify(subparsers: Subparsers) -> None:
    check = subparsers.add_parser("verify", help="compare an image's versions with image.toml")
    check.add_argument("--platform", help="platform (default: that of this machine)")
    check.add_argument(
        "--container",
        choices=("auto", *ENGINES, "none"),
        default="auto",
        help="engine that runs the image",
    )
    check.add_argument(
        "--image",
        default="",
        metavar="REFERENCE",
        help="image to check (default: the one that Scalebook builds)",
    )
    check.add_argument(
        "--container-arg",
        action="append",
        default=[],
        metavar="=--OPTION[=VALUE]",
        help="option for the engine; repeatable",
    )
    add_json(check)
    check.set_defaults(handler=verify)


def image(options: argparse.Namespace) -> int:
    """Build an image; return the exit code of the first step that failed, 0 if none."""
    from scalebook import host
    from scalebook.facts import catalog
    from scalebook.project import required_root, short
    from scalebook.running.container import build, context, images

    known = images.image(catalog.platform(options.platform).vendor)
    if options.pin:
        return _pin(known, options)
    engine = _builder(options)
    folder = required_root() / "containers" / "images"
    target = options.image or known.reference(engine, str(folder))
    dry = options.dry_run or bool(options.source)
    wheels = options.wheels.absolute() if options.wheels else None
    with context.made(required_root(), known, dry=dry, wheels=wheels) as path:
        wanted = build.Build(
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
            print(_unpinned(wanted.base, options), file=sys.stderr)
        if options.dry_run:
            print("\n".join(shlex.join(step) for step in build.steps(wanted)))
            return 0
        code = context.build(wanted)
        listed = context.copy_packages(wanted, folder) if code == 0 else None
    if code == 0:
        print(f"Its packages: {short(listed)}" if listed else f"{target} has no list of packages.")
        print(f"Built {target}. Check it: scalebook verify --platform {options.platform}")
    return code


def _unpinned(base: str, options: argparse.Namespace) -> str:
    how = f"Pin it: scalebook image --platform {options.platform} --pin"
    if options.base_image:
        how = "Name it by digest (NAME@sha256:...)."
    return f"note: the base {base} is named by a tag, which can move. {how}"


def _pin(known: Image, options: argparse.Namespace) -> int:
    """Write the digest that the base's tag has now into image.toml and the Containerfile."""
    from scalebook.project import required_root, short
    from scalebook.running.container import engines, images

    digest, program = engines.registry_digest(known.tagged)
    if options.dry_run:
        print(f"{known.tagged} has the digest {digest}; nothing is written.")
        return 0
    folder = required_root() / "containers" / known.vendor
    table, recipe = folder / "image.toml", folder / "Containerfile"
    comment = f"of {known.tag} on {datetime.now(UTC).date()}, by {program}"
    pinned = images.with_digest(table.read_text("utf-8"), digest, comment)
    based = images.with_base(recipe.read_text("utf-8"), f"{known.base}@{digest}")
    table.write_text(pinned, "utf-8")
    recipe.write_text(based, "utf-8")
    print(f"Pinned {known.tagged} in {short(table)}: {digest}")
    print(f"Build on it: scalebook image --platform {options.platform}")
    return 0


def _builder(options: argparse.Namespace) -> str:
    """Return the engine that builds: the one asked for, or the first that is installed.

    Raises:
        LaunchError: none is.
    """
    import shutil

    from scalebook.errors import LaunchError

    if options.container != "auto":
        if not options.dry_run and shutil.which(options.container) is None:
            raise LaunchError(f"{options.container} was not found. Install it first.")
        return str(options.container)
    for engine in ENGINES:
        if shutil.which(engine) is not None:
            return engine
    raise LaunchError(f"No container engine was found ({', '.join(ENGINES)}). Install one first.")


def verify(options: argparse.Namespace) -> int:
    """Compare an image's contents with image.toml; 0 if all is as stated, 1 if not."""
    from scalebook.cli.output import print_json
    from scalebook.facts import catalog
    from scalebook.running.container import contents, images
    from scalebook.running.devices import detect

    named = options.platform
    platform = catalog.platform(named) if named else detect.platform_of(detect.detect())
    engine, read = _read(options, platform)
    versions, torch = contents.told(read)
    findings = contents.compare(images.image(platform.vendor).contents, versions)
    good = all(finding.good for finding in findings) and torch["starts"] is True
    if options.json:
        body = {"engine": engine, "good": good, "findings": findings, "torch": torch}
        print_json({**body, "versions": versions})
    else:
        _print(findings, torch)
    return 0 if good else 1


def _print(findings: Sequence[ImageFinding], torch: dict[str, Any]) -> None:
    from scalebook.cli.output import print_table

    rows = [(f.component, f.stated or "-", f.found or "-", f.verdict) for f in findings]
    print_table(("component", "stated", "found", "verdict"), rows)
    if torch["starts"]:
        print(f"torch starts and sees {torch['devices']} GPUs.")
    else:
        print(f"torch does not start: {torch['reason']}.")


def _read(options: argparse.Namespace, platform: Platform) -> tuple[str | None, dict[str, Any]]:
    """Return the engine that was used and what the image holds."""
    from scalebook.project import required_root
    from scalebook.running.container import choose, contents, context, engines, nested

    root, vendor = required_root(), platform.vendor
    folder = root / "containers" / "images"
    asked = options.container
    wanted = engines.ENGINES if asked == "auto" else (asked,)
    here = engines.surroundings(vendor, folder, options.image, wanted if asked != "none" else ())
    ready = [engine for engine, lack in here.engines.items() if lack is None]
    # A CPU platform trains without a container, but what is verified is its image, where it is.
    engine = ready[0] if asked == "auto" and ready else choose.choose(asked, vendor, here).engine
    if engine is None:
        print(
            "No image is started: these are the versions in this machine's Python.", file=sys.stderr
        )
        return None, contents.read()
    reference = options.image or context.reference(vendor, engine, folder)
    request = nested.Request(
        engine=engine, vendor=vendor, image=reference, arguments=tuple(options.container_arg)
    )
    command = nested.bare(request, nested.describe(root, Path.cwd()), ("-m", CONTENTS))
    return engine, context.output_of(command, os.environ)
