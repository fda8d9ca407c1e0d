"""Render prepared notebooks with Quarto, as a website, without executing them again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

from scalebook.errors import ReportError
from scalebook.report.site.data_files import DATA_FILES

DATA = "Data: " + ", ".join(f"[{name}](data/{name})" for name in DATA_FILES)
INSTALL = "Install it from quarto.org, or use --renderer preview."


def find() -> str | None:
    """Return the path of the quarto command; None where there is none."""
    return shutil.which("quarto")


def write_project(settings: Path, theme: Path, project: Path, built: str) -> None:
    """Write Quarto's project file and theme beside the notebooks; ``built`` goes to the footer."""
    try:
        config = yaml.safe_load(settings.read_text(encoding="utf-8"))
        config["project"].pop("pre-render", None)  # which is for a call by hand
        config["website"]["page-footer"] = {"left": built, "right": DATA}
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ReportError(f"{settings} is not the Quarto project of the report: {error}") from error
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    (project / "_quarto.yml").write_text(text, encoding="utf-8")
    if theme.is_dir():
        shutil.copytree(theme, project / "theme", dirs_exist_ok=True)


def render(project: Path) -> Path:
    """Render the project and return the folder of the site.

    Raises:
        ReportError: quarto is missing or failed; its last line is in the message.
    """
    command = find()
    if command is None:
        raise ReportError(f"quarto was not found. {INSTALL}")
    done = subprocess.run(
        [command, "render", str(project), "--no-execute", "--no-clean"],
        capture_output=True,
        text=True,
        check=False,
    )
    site = project / "_site"
    if done.returncode != 0 or not (site / "index.html").is_file():
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        last = lines[-1] if lines else "it printed nothing"
        raise ReportError(f"quarto failed (exit {done.returncode}): {last}. {INSTALL}")
    return site
