"""`exogate version`."""

import json
import platform

import click

from gateway.cli.options import CliContext
from gateway.domain.version import VERSION


@click.command()
@click.pass_obj
def version(context: CliContext) -> None:
    """Say which version this is."""
    python = platform.python_version()
    if context.json:
        click.echo(json.dumps({"version": VERSION, "python": python}))
    else:
        click.echo(f"exogate {VERSION} (Python {python})")
