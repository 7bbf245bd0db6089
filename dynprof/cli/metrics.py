"""``dynprof metrics``: metrics of jobs for Prometheus and OpenTelemetry."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import directory_of
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.errors import reason
from dynprof.extras import require
from dynprof.runtime.destination import has_secret
from dynprof.runtime.safe_write import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.fleet.metrics import Collector, Readings

FILES = Path(__file__).parents[1] / "fleet"
RULES, DASHBOARD = FILES / "alert_rules.yaml", FILES / "dashboard.json"
EVERY_S = 15.0
"""Interval of ``--otlp`` next to ``--listen``, in seconds; Prometheus' usual one."""
ALL_MAY_READ = 0o644
"""Mode of a textfile: node_exporter runs as another user."""


def metrics(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR",
            help="Directories of jobs, or folders above such directories.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Answer Prometheus there, at /metrics, until Ctrl-C."
        ),
    ] = None,
    textfile: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write a .prom file for node_exporter."),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Send them to a receiver of OTLP, such as http://127.0.0.1:4318."
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            parser=at_least(1.0),
            metavar="S",
            help="Repeat --textfile and --otlp after as many seconds, until Ctrl-C.",
        ),
    ] = None,
    per_rank: Annotated[
        bool, typer.Option("--per-rank", metavar="", help="Add the metrics of each rank.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A file with the bearer token that Prometheus must send. Required for a --listen "
            "that other machines can reach.",
        ),
    ] = None,
    rules: Annotated[
        bool, typer.Option("--rules", metavar="", help="Print alert rules for Prometheus.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", metavar="", help="Print a dashboard for Grafana.")
    ] = False,
) -> None:
    """Give the state of jobs as metrics to Prometheus or OpenTelemetry.

    It reads files only: no job opens a port. Without --listen, --textfile and --otlp it prints the
    metrics once. Exit code 0: ended. 2: a directory cannot be read, the port is taken, the file
    cannot be written, or the receiver of OTLP did not take the metrics.

    Example: dynprof metrics /runs --listen 9464
    """
    require("serve", "dynprof metrics")
    if rules or dashboard:
        typer.echo((RULES if rules else DASHBOARD).read_text(), nl=False)
        return
    if not directories:
        fail("no directory is given; write dynprof metrics DIR", UNREADABLE)
    if every and not (textfile or otlp):
        fail("--every repeats --textfile and --otlp; add one of them", UNREADABLE)
    from dynprof.fleet.metrics import Collector, Readings

    readings = Readings([directory_of(path) for path in directories])
    collector = Collector(readings, per_rank=per_rank)
    actions = [_writer(collector, textfile)] if textfile else []
    actions += [_sender(readings, otlp, per_rank)] if otlp else []
    try:
        if listen:
            _serve(collector, listen, token_file, actions, every or EVERY_S)
        elif actions:
            _act(actions, every)
        else:
            typer.echo(collector.exposition().decode(), nl=False)
    except KeyboardInterrupt:
        say("")


def _sender(readings: Readings, url: str, per_rank: bool) -> Callable[[], str]:
    """Return a function that sends the metrics, and returns why the receiver did not take them."""
    from dynprof.fleet.otlp_exporter import Sender

    if has_secret(url):
        text = "the URL of --otlp has credentials or parameters; set OTEL_EXPORTER_OTLP_HEADERS"
        fail(f"{text} to an authorization header instead", UNREADABLE)
    sender = Sender(url, per_rank=per_rank)

    def send() -> str:
        trouble = sender.send(readings.read())
        hint = "check the address, and that it takes OTLP over HTTP"
        return trouble and f"{url} did not take the metrics: {trouble}; {hint}"

    return send


def _writer(collector: Collector, path: Path) -> Callable[[], str]:
    """Return a function that writes the file, and returns why it could not."""
    if path.suffix != ".prom":
        fail(f"node_exporter does not read {path}; give a name that ends in .prom", UNREADABLE)

    def write() -> str:
        try:
            write_atomic(path.absolute(), collector.exposition(), ALL_MAY_READ)
        except OSError as error:
            return f"{path} cannot be written: {reason(error)}"
        return ""

    return write


def _act(actions: list[Callable[[], str]], every_s: float | None) -> None:
    """Call the functions once, and exit if one fails; with an interval, again and again.

    Each failure is printed once, until there is none.
    """
    if not every_s:
        if texts := [text for act in actions if (text := act())]:
            fail("\n".join(texts), UNREADABLE)
        return
    told = dict.fromkeys(actions, "")
    while True:
        began_s = time.monotonic()
        for act in actions:
            text = act()
            if text and text != told[act]:
                say(f"{text}; the next try is in {every_s:g} s", err=True)
            told[act] = text
        time.sleep(max(0.0, every_s - (time.monotonic() - began_s)))


def _serve(
    collector: Collector,
    listen: str,
    token_file: Path | None,
    actions: list[Callable[[], str]],
    every_s: float,
) -> None:
    from dynprof.fleet import listening, scrape_server

    try:
        listener, token = listening.listening(listen, token_file)
    except ValueError as error:
        fail(str(error), UNREADABLE)
    say(f"{listening.url_of(listener)}{scrape_server.PATH}\nPress Ctrl-C to stop.")
    if actions:
        threading.Thread(target=_act, args=(actions, every_s), daemon=True).start()
    host, _ = listening.address(listen)
    scrape_server.serve(collector, listener, token, host)
    say("")
