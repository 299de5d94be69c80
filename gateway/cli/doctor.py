"""`exogate doctor`: checks the installation and prints a command for each problem."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
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
@click.option("--online", is_flag=True, help="Also ask each provider of an agent a tiny question.")
@click.option("--fix", is_flag=True, help="Correct the modes of files, and nothing else.")
@click.pass_obj
def doctor(context: CliContext, *, strict: bool, online: bool, fix: bool) -> None:
    found = _examine(context)
    if fix and _fix_modes(found):
        found = _examine(context)
    if online and found.is_valid:
        found = replace(found, findings=[*found.findings, *_check_providers(context)])
    context.print_result(plain(found.report), *_render(found))
    if not found.is_valid:
        sys.exit(BAD_CONFIG)
    if any(strict or one.severity == "error" for one in found.findings):
        sys.exit(FAILED)


def _render(found: Examination) -> Sequence[str]:
    passed = f"{found.passed} checks passed"
    last = passed if found.is_valid else "the other checks need a valid configuration"
    return [*(one.render() for one in found.findings), last]


def _fix_modes(found: Examination) -> bool:
    """Runs the commands that change only file modes. Returns True if there is one."""
    safe = [one for one in found.findings if one.is_safe]
    for one in safe:
        click.echo(f"{one.path}: {one.fix}", err=True)
        subprocess.run(shlex.split(one.fix), check=False)
    return bool(safe)


def _examine(context: CliContext) -> Examination:
    found = examine(lambda: load_config(context), config_path(context))
    return found.merge(_examine_running(context)) if found.is_valid else found


def _examine_running(context: CliContext) -> Examination:
    """Runs the checks of the running gateway; finds nothing if none runs."""
    try:
        result = ask(context, "doctor.run", {"live": True})
    except Unreachable:
        return Examination([], 0)
    except GatewayError as error:
        click.echo(f"the checks of the running gateway were skipped: {error}", err=True)
        return Examination([], 0)
    return Examination([Finding(**one) for one in result["findings"]], result["passed"])


def _check_providers(context: CliContext) -> Iterator[Finding]:
    """Asks each provider that an agent uses, and yields those that fail."""
    config = load_config(context)
    for name in dict.fromkeys(one.provider for one in config.agents):
        if name not in config.providers:
            continue
        result = try_provider(context, name)
        if not result["ok"]:
            fix = f"exogate provider test {name}"
            if result["kind"] == "auth":
                fix = secret_command(("providers", name, "api_key"))
            message = str(result["message"])
            yield Finding("provider.online", "error", f"providers.{name}", message, fix)
