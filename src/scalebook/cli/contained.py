"""The options of ``run`` that are about containers, and the start of a plan inside one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalebook.cli.tracking import without_log_to
from scalebook.running.container.images import ASKABLE

if TYPE_CHECKING:
    from scalebook.facts.catalog.types import Platform
    from scalebook.plan import Plan
    from scalebook.running.container.choose import Choice
    from scalebook.running.container.nested import Host, Request
    from scalebook.running.container.request import EngineCommand

IMAGES = Path("containers") / "images"  # of the project: image files of apptainer and enroot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say in which container a command runs."""
    group = parser.add_argument_group("in a container")
    group.add_argument(
        "--container",
        choices=(*ASKABLE, "pyxis"),
        default="auto",
        help="engine that starts the image; in a Slurm job: pyxis (or enroot), apptainer or none",
    )
    group.add_argument(
        "--image",
        default="",
        metavar="REFERENCE",
        help="name or file of the image (default: Scalebook's own; required in Slurm jobs)",
    )
    group.add_argument(
        "--container-arg",
        action="append",
        default=[],
        metavar="=--OPTION[=VALUE]",
        help="option for the engine; replaces ours of the same name; repeatable",
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="variable to set, or to pass into the container; repeatable",
    )


def without_container_options(arguments: Sequence[str]) -> list[str]:
    """Return a command line less the options that ``add_arguments`` adds."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    return parser.parse_known_args(list(arguments))[1]


def set_variables(options: argparse.Namespace) -> None:
    """Set the variables of ``--env`` in this process, marked as asked for by name."""
    from scalebook.host import ASKED
    from scalebook.running.container.nested import asked_variables

    values, names = asked_variables(options.env, os.environ)
    if options.env:
        before = os.environ.get(ASKED, "").split()
        os.environ.update({**values, ASKED: " ".join([*before, *values, *names])})


def enter(options: argparse.Namespace, platform: Platform, plan: Plan, runs: Path) -> int | None:
    """Run the plan in a container and return its exit code; None to run it right here.

    A dry run prints the line that would be run, and returns None.
    """
    from scalebook.project import required_root
    from scalebook.running.container import follow, nested

    choice = _choice(options, platform.vendor)
    if choice.note:
        print(f"Running {choice.note}", flush=True)
    if choice.engine is None:
        set_variables(options)
        follow.follow()
        return None
    host = nested.describe(required_root(), runs.resolve())
    request = _request(options, choice.engine, platform.vendor)
    if any(planned.config.engine == "nemo" for planned in plan.runs):
        # Megatron-Bridge reads a model's configuration from Hugging Face
        request = replace(request, fetches=True)
    command = nested.command(
        request,
        host,
        _inner_arguments(options, platform.name, runs),
        writes=(runs.resolve(),),
        reads=_reads(options, plan),
    )
    if options.dry_run:
        print(command.shown(), end="\n\n")
        return None
    _say_what_stays_outside(options)
    return _start(request, host, command, runs)


def _choice(options: argparse.Namespace, vendor: str) -> Choice:
    """Return the engine to use; a dry run of what cannot run here says so and continues."""
    from scalebook.errors import LaunchError
    from scalebook.project import required_root
    from scalebook.running.container import engines, inside
    from scalebook.running.container.choose import Choice, choose

    if options.container == "none":
        return Choice(None)
    wanted = engines.ENGINES if options.container == "auto" else (options.container,)
    if options.container == "auto" and (vendor == "cpu" or inside.container(os.environ)):
        wanted = ()  # no engine is used: none is asked, which can take a while
    here = engines.surroundings(vendor, required_root() / IMAGES, options.image, wanted)
    try:
        return choose(options.container, vendor, here)
    except LaunchError as error:
        if not options.dry_run:
            raise
        shown = None if options.container == "auto" else options.container
        return Choice(shown, f"a real run needs more: {error}")


def _request(options: argparse.Namespace, engine: str, vendor: str) -> Request:
    from scalebook.project import required_root
    from scalebook.running.container import engines
    from scalebook.running.container.images import image
    from scalebook.running.container.nested import Request

    folder = str(required_root() / IMAGES)
    reference = options.image or image(vendor).reference(engine, folder)
    found = None if options.dry_run else engines.find(engine, reference)
    known = None if isinstance(found, str) else found
    if known and not options.image and image(vendor).is_another_base(known.base):
        print(
            f"note: {reference} was built on {known.base}, and image.toml names "
            f"{image(vendor).base_reference}. Build it again: make image PLATFORM=..."
        )
    return Request(
        engine=engine,
        vendor=vendor,
        image=reference,
        image_id=engines.content_id(known) if known else None,
        base=known.base if known else None,
        arguments=tuple(options.container_arg),
        variables=tuple(options.env),
    )


def _inner_arguments(options: argparse.Namespace, platform: str, runs: Path) -> list[str]:
    """Return the command line inside: the same, with every path absolute and no container."""
    outside = without_log_to(without_container_options(options.arguments))
    arguments = [one for one in outside if one != "--dry-run"]
    arguments += ["--platform", platform, "--runs", str(runs.resolve()), "--container", "none"]
    if options.plan:
        arguments += ["--plan", str(options.plan.resolve())]
    if options.data:
        arguments += ["--data", str(Path(options.data).resolve())]
    return arguments


def _reads(options: argparse.Namespace, plan: Plan) -> list[Path]:
    """Return the files and folders outside the project that the plan reads."""
    prefixes = {planned.config.data for planned in plan.runs if planned.config.data}
    folders = [Path(prefix).resolve().parent for prefix in prefixes]
    return folders + ([options.plan.resolve()] if options.plan else [])


def _say_what_stays_outside(options: argparse.Namespace) -> None:
    from scalebook.host import performance_variables
    from scalebook.running.container.nested import not_passed

    names = not_passed(tuple(performance_variables(os.environ)), options.env)
    if names:
        print(f"Not passed into the container: {', '.join(names)} (name one with --env).")


def _start(request: Request, host: Host, command: EngineCommand, runs: Path) -> int:
    from scalebook.running.container import follow, oci

    runs.mkdir(parents=True, exist_ok=True)
    cleanup = oci.remove(request.engine, host.name) if request.engine in oci.ENGINES else ()
    return follow.run(command, cleanup)
