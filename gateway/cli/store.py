"""`exogate store`: copies a whole store from one engine to the other."""

from dataclasses import asdict
from functools import partial

import anyio
import click

from gateway.cli.command import CliContext
from gateway.cli.configuration import load_config
from gateway.cli.verbs import table
from gateway.domain.errors import NotInstalled
from gateway.host.clock import SystemClock

try:  # an extra
    from gateway.app.shared_store import copy_store
except ModuleNotFoundError as error:
    raise NotInstalled("`exogate store copy`", "surrealdb") from error


@click.group()
def store() -> None: ...


@store.command()
@click.option("--from", "source", required=True, metavar="URL", help="embedded, or ws://HOST:PORT.")
@click.option("--to", "target", required=True, metavar="URL", help="embedded, or ws://HOST:PORT.")
@click.pass_obj
def copy(context: CliContext, source: str, target: str) -> None:
    copied = anyio.run(partial(copy_store, load_config(context), source, target, SystemClock()))
    rows = [asdict(one) for one in copied]
    context.print_result(
        {"tables": rows},
        *table([one for one in rows if one["rows"]], ["table", "rows", "digest"]),
        f'copied from {source} to {target}; set [store] url = "{target}" before the next start',
    )
