"""`exogate replay RUN`."""

import json
import sys

import click

from gateway.cli.context import CliContext
from gateway.cli.ending import FAILED
from gateway.cli.link import linked

ANSWER_S = 900.0  # another model may take as long as a run may


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--model", help="Ask this model now, and compare: MODEL or PROVIDER/MODEL.")
@click.pass_obj
def replay(context: CliContext, run_id: str, model: str | None) -> None:
    """Replay a recorded run; exit 1 if it diverges."""
    with linked(context, ANSWER_S) as link:
        shown = link.call("run.replay", run_id=run_id, model=model)
    parted = shown["divergence"]
    if context.json:
        click.echo(json.dumps(shown, ensure_ascii=False))
    elif parted is None:
        click.echo(f"identical: {shown['chunks']} events, {shown['calls']} model calls")
    else:
        click.echo(f"diverged at {parted['at']}")
        click.echo(f"  recorded   {_text(parted['recorded'])}")
        click.echo(f"  now        {_text(parted['now'])}")
    if parted is not None:
        sys.exit(FAILED)


def _text(value: object) -> str:
    return "nothing" if value is None else json.dumps(value, ensure_ascii=False)
