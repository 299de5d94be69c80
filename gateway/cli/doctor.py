"""`exogate doctor`."""

import json
import sys
from dataclasses import asdict
from itertools import chain

import click

from gateway.cli.checks import CHECKS, Finding
from gateway.cli.context import CliContext, config_or_exit
from gateway.cli.ending import FAILED


@click.command()
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.pass_obj
def doctor(context: CliContext, *, strict: bool) -> None:
    """Check the installation and the configuration; change nothing."""
    config = config_or_exit(context)
    results = [list(check(config)) for check in CHECKS]
    findings = sorted(chain.from_iterable(results), key=lambda one: one.severity)
    if context.json:
        click.echo(json.dumps([_as_json(finding) for finding in findings], ensure_ascii=False))
    else:
        lines = [_line(finding) for finding in findings]
        fine = sum(not found for found in results)
        passed = str(fine) if fine == len(CHECKS) else f"{fine} of {len(CHECKS)}"
        click.echo("\n".join([*lines, f"{passed} checks passed"]))
    if any(strict or finding.severity == "error" for finding in findings):
        sys.exit(FAILED)


def _as_json(finding: Finding) -> dict[str, object]:
    return {name: value for name, value in asdict(finding).items() if name != "place"}


def _line(finding: Finding) -> str:
    mark = "✗" if finding.severity == "error" else "⚠"
    return f"{mark} {finding.path}: {finding.message}  [{finding.id}]\n  → {finding.fix}"
