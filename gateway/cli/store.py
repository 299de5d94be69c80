"""`exogate store`: a whole store moved from one engine to the other."""

from dataclasses import asdict
from functools import partial

import anyio
import click

from gateway.cli.command import CliContext
from gateway.cli.configuration import configured
from gateway.cli.verbs import table
from gateway.domain.errors import NotInstalled
from gateway.host.clock import SystemClock

try:  # an extra
    from gateway.app.copying import copy_store
except ModuleNotFoundError as error:
    raise NotInstalled("`exogate store copy`", "surrealdb") from error


@click.group()
def store() -> None: ...


@store.command()
@click.option("--from", "source", required=True, metavar="URL", help="embedded, or ws://HOST:PORT.")
@click.option("--to", "target", required=True, metavar="URL", help="embedded, or ws://HOST:PORT.")
@click.pass_obj
def copy(context: CliContext, source: str, target: str) -> None:
    copied = anyio.run(partial(copy_store, configured(context), source, target, SystemClock()))
    rows = [asdict(one) for one in copied]
    if context.json:
        context.tell({"tables": rows})
    else:
        click.echo(
            "\n".join(table([one for one in rows if one["rows"]], ["table", "rows", "digest"]))
        )
        click.echo(
            f'copied from {source} to {target}; write [store] url = "{target}" before the next start'
        )
