"""`exogate version`."""

import json
import platform

import click

from gateway.cli.options import CliContext
from gateway.domain.version import VERSION


@click.command()
@click.pass_obj
def version(context: CliContext) -> None:
    """Show the version."""
    show_version(as_json=context.json)


def show_version(*, as_json: bool) -> None:
    """Print the version, for `exogate version` and `exogate --version`."""
    python = platform.python_version()
    if as_json:
        click.echo(json.dumps({"version": VERSION, "python": python}))
    else:
        click.echo(f"exogate {VERSION} (Python {python})")
