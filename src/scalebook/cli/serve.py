"""Servers on this machine: ``serve`` shows what trains now, ``open`` the report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebook.cli.terminal import (
    Subparsers,
    add_output,
    add_port,
    add_runs,
    add_switch,
    existing_runs,
    serve_until_interrupted,
    site_folder,
)
from scalebook.errors import LaunchError, ReportError

if TYPE_CHECKING:
    from scalebook.running.live import Monitor

ADDRESS = "127.0.0.1"
FRESH_SECONDS = 1.0  # many open pages read a folder no more often than one
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Allow": "GET",
}


def register(subparsers: Subparsers) -> None:
    """Add this module's commands."""
    text = "show running and ended runs in a browser, on this machine only"
    parser = subparsers.add_parser("serve", serve, help=text)
    add_runs(parser)
    add_port(parser)
    text = "open the report in a browser, served on this machine only"
    parser = subparsers.add_parser("open", open_report, help=text)
    add_output(parser)
    add_port(parser)
    add_switch(parser, "--no-browser", "print the address only")


@dataclass(slots=True)
class _Source:
    """The data of the page as JSON, read at most once per ``FRESH_SECONDS``."""

    monitor: Monitor
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _content: bytes = b""
    _until: float = 0.0

    def content(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._until:
                value = dataclasses.asdict(self.monitor.snapshot())
                self._content = json.dumps(value, allow_nan=False).encode()
                self._until = time.monotonic() + FRESH_SECONDS
            return self._content


def make_server(monitor: Monitor, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page, bound to 127.0.0.1 and not started.

    Raises:
        LaunchError: the port cannot be used.
    """
    handler = type("Handler", (_Live,), {"data": staticmethod(_Source(monitor).content)})
    return _bound(port, partial(handler, directory=str(Path(__file__).with_name("live_page"))))


def site_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of the files below a folder, bound to 127.0.0.1 and not started.

    Raises:
        LaunchError: the port cannot be used.
    """
    return _bound(port, partial(_Files, directory=str(folder)))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of a browser that left, as one does that is closed or loads again."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _bound(port: int, handler: Callable[..., BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return _Server((ADDRESS, port), handler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports are at most 65535"
        raise LaunchError(
            f"Port {port} cannot be used: {why}. Name another with --port, or leave it out."
        ) from error


def _asks_here(request: BaseHTTPRequestHandler) -> bool:
    """Return whether the Host header names this machine, and not a name that leads here."""
    port: int = request.connection.getsockname()[1]
    names = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
    hosts: list[str] = request.headers.get_all("Host") or []
    return len(hosts) == 1 and hosts[0].strip().lower() in names


class _Files(SimpleHTTPRequestHandler):
    timeout = 10  # a client that sends nothing does not keep a thread
    server_version, sys_version = "scalebook", ""

    def send_head(self) -> Any:
        """Answer with a page or a file of the folder, never with what a link of it leads to."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        place = Path(self.directory).resolve()
        if not _asks_here(self):
            self.send_error(403, "This server answers on this machine only")
        elif not path.is_file() or not path.resolve().is_relative_to(place):
            self.send_error(404)
        else:
            return super().send_head()
        return None

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a page that refreshes would fill the terminal."""


class _Live(_Files):
    data: Callable[[], bytes]

    def parse_request(self) -> bool:
        """Return whether a request is to be answered; of any method but GET it says so."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.close_connection = True
            self.send_error(405)
            return False
        return True

    def send_head(self) -> Any:
        """Answer with the data, else with a file of the page."""
        if self.path.partition("?")[0] != "/data" or not _asks_here(self):
            return super().send_head()
        content = self.data()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return BytesIO(content)

    def end_headers(self) -> None:
        """Add to each answer what its browser may do with it."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()


def serve(options: argparse.Namespace) -> int:
    """Serve the page on this machine only until interrupted."""
    from scalebook.running.live import Monitor

    monitor = Monitor(existing_runs(options.runs), curves=True)
    return serve_until_interrupted(make_server(monitor, options.port))


def open_report(options: argparse.Namespace) -> int:
    """Serve the site on this machine only until interrupted, and show it in the browser."""
    import webbrowser

    own, demo = site_folder(options.output), site_folder(options.output, demo=True)
    site = own if (own / "index.html").is_file() else demo
    if not (site / "index.html").is_file():
        raise ReportError(f"There is no report in {own}. Build it with 'make report'.")
    server = site_server(site, options.port)
    return serve_until_interrupted(server, str if options.no_browser else webbrowser.open)
