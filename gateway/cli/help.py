"""`exogate explain` and `exogate completion`: explains error codes and completes commands in a shell."""

from dataclasses import asdict

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from gateway.api.errors import explanations, find_explanation
from gateway.cli.command import CliContext
from gateway.domain.errors import GatewayError
from gateway.domain.text import meant

SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


class UnknownCode(GatewayError):
    code = "unknown_code"


# -32003 is a code, not an option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("code")
@click.pass_obj
def explain(context: CliContext, code: str) -> None:
    found = find_explanation(code)
    if found is None:
        near = meant(code, explanations())
        raise UnknownCode(f"there is no error code {code[:60]!r}{near}")
    context.print_result(asdict(found), *found.lines())


@click.command()
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    program = ctx.find_root().command
    script = SHELLS[shell](program, {}, "exogate", "_EXOGATE_COMPLETE")
    # The method of the base class does not run the shell to get its version.
    click.echo(ShellComplete.source(script))
