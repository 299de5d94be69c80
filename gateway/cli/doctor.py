"""`exogate doctor`: what is wrong, and the command that mends it."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import click

from gateway.api.declarations import plain
from gateway.app.doctor import Examination, Finding, examine, secret_command
from gateway.cli.command import BAD_CONFIG, FAILED, CliContext, Unreachable
from gateway.cli.configuration import config_path, load_config
from gateway.cli.link import ask
from gateway.cli.provider import try_provider
from gateway.domain.errors import GatewayError


@click.command()
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--online", is_flag=True, help="Ask each provider of an agent a tiny question, too.")
@click.option("--fix", is_flag=True, help="Mend modes of files; say so. Nothing else is changed.")
@click.pass_obj
def doctor(context: CliContext, *, strict: bool, online: bool, fix: bool) -> None:
    found = _examined(context)
    if fix and _mended(found):
        found = _examined(context)
    if online and found.is_valid:
        found = replace(found, findings=[*found.findings, *_providers(context)])
    _show(context, found)
    if not found.is_valid:
        sys.exit(BAD_CONFIG)
    if any(strict or one.severity == "error" for one in found.findings):
        sys.exit(FAILED)


def _mended(found: Examination) -> bool:
    """Runs the commands that change modes alone; whether there was one."""
    safe = [one for one in found.findings if one.is_safe]
    for one in safe:
        click.echo(f"{one.path}: {one.fix}", err=True)
        subprocess.run(shlex.split(one.fix), check=False)
    return bool(safe)


def _examined(context: CliContext) -> Examination:
    found = examine(lambda: load_config(context), config_path(context))
    return found.merge(_of_the_gateway(context)) if found.is_valid else found


def _of_the_gateway(context: CliContext) -> Examination:
    """What only the one that runs can tell, if one does."""
    try:
        told = ask(context, "doctor.run", {"live": True})
    except Unreachable:
        return Examination([], 0)
    except GatewayError as error:
        click.echo(f"the gateway that runs was not asked: {error}", err=True)
        return Examination([], 0)
    return Examination([Finding(**one) for one in told["findings"]], told["passed"])


def _show(context: CliContext, found: Examination) -> None:
    if context.json:
        context.print_json(plain(found.told))
        return
    passed = (
        f"{found.passed} checks passed"
        if found.is_valid
        else "the other checks need a valid configuration"
    )
    click.echo("\n".join([*(one.render() for one in found.findings), passed]))


def _providers(context: CliContext) -> Sequence[Finding]:
    """Each provider that an agent asks answers, or is found."""
    config = load_config(context)
    found = []
    for name in dict.fromkeys(
        agent.provider for agent in config.agents if agent.provider in config.providers
    ):
        told = try_provider(context, name)
        if not told["ok"]:
            fix = (
                secret_command(("providers", name, "api_key"))
                if told["kind"] == "auth"
                else f"exogate provider test {name}"
            )
            message = str(told["message"])
            found.append(Finding("provider.online", "error", f"providers.{name}", message, fix))
    return found
