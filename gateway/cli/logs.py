"""`exogate logs`: shows the log, with or without a running gateway, and the journal of one run."""

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import click

from gateway.api.operating import MOST_LINES
from gateway.cli.command import CliContext, Unreachable
from gateway.cli.link import ask, data_dir
from gateway.codec import decode
from gateway.domain.errors import GatewayError
from gateway.domain.ids import RunId
from gateway.domain.logs import LEVELS, Line, LogFilter, describe_run, merge_lines, stamp
from gateway.domain.text import moment_ago
from gateway.host.clock import SystemClock
from gateway.host.logs import FOLDER, LogTail, console_line, json_line, read_log
from gateway.store.inbox import read_history
from gateway.store.inspection import read_once
from gateway.store.sqlite import FILE

POLL_S = 0.25
TIME = slice(0, 23)  # date, time and milliseconds
SHARED_STORE = "only a running gateway can read a shared store: start it and try again"
SAME_IN_RUN = frozenset({"run", "session", "agent", "channel", "person"})


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Wait for new lines until Ctrl+C.")
@click.option("--since", metavar="TIME", help="90s, 15m, 1h, 7d ago, or an ISO 8601 time.")
@click.option("--level", type=click.Choice(LEVELS), default=LEVELS[0], help="The lowest level.")
@click.option("--run", metavar="RUN", help="One run, with the entries of its journal.")
@click.option("--session", metavar="KEY", help="One session.")
@click.option("--channel", metavar="NAME", help="One channel.")
@click.option("--event", metavar="NAME", help="One kind of event.")
@click.pass_obj
def logs(
    context: CliContext,
    /,
    *,
    follow: bool,
    since: str | None,
    **named: str | None,
) -> None:
    try:
        moment = moment_ago(since, SystemClock.now()) if since is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from None
    log_filter = LogFilter(moment, **named)  # type: ignore[arg-type]  # the level is one of the choices
    folder = data_dir(context) / FOLDER
    tail = LogTail(folder) if follow else None
    is_empty = True
    for line in (
        read_log(folder, log_filter) if log_filter.run is None else _read_run(context, log_filter)
    ):
        _show(context, log_filter, line)
        is_empty = False
    if tail is None:
        if is_empty:
            click.echo(f"no matching lines in {folder}", err=True)
        return
    while True:
        for line in tail.lines(log_filter):
            _show(context, log_filter, line)
        sys.stdout.flush()
        time.sleep(POLL_S)


def _show(context: CliContext, log_filter: LogFilter, line: Line) -> None:
    if context.json:
        click.echo(json_line(line))
        return
    if log_filter.run is not None:
        line = {name: value for name, value in line.items() if name not in SAME_IN_RUN}
    click.echo(console_line({"at": "", "level": "", "event": "", **line}, TIME))


def _read_run(context: CliContext, log_filter: LogFilter) -> Iterable[Line]:
    """Returns the log and the journal of a run, from the running gateway or else from the store, read-only."""
    since = None if log_filter.since is None else stamp(log_filter.since)
    names = ("level", "run", "session", "channel", "event")
    filters = {name: getattr(log_filter, name) for name in names}
    with suppress(Unreachable):
        found = ask(context, "logs.tail", {**filters, "since": since, "limit": MOST_LINES})
        return list(found["lines"])
    folder = data_dir(context)
    journal: Iterable[Line] = ()
    try:
        asked = partial(read_history, run_id=RunId(str(log_filter.run)))
        journal = describe_run(read_once(folder / FILE, asked), decode)
    except GatewayError as error:
        why = f"there is no store in {folder}; {SHARED_STORE}"
        why = str(error) if (folder / FILE).exists() else why
        click.echo(f"the journal of the run is not shown: {why}", err=True)
    return merge_lines(read_log(folder / FOLDER, log_filter), filter(log_filter.fits, journal))
