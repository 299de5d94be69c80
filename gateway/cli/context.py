"""What every verb is given, and how it gets its configuration."""

import json
from pathlib import Path
from typing import NoReturn

import click

from gateway.cli.ending import BAD_CONFIG, failure
from gateway.cli.known import known
from gateway.cli.options import CliContext as CliContext
from gateway.config.environment import read_environment
from gateway.config.load import find_data_dir, find_file, is_named_file, load
from gateway.config.problems import ConfigInvalid, ConfigProblem
from gateway.config.values import GatewayConfig, Overrides, Surroundings


def config_or_exit(context: CliContext, *, port: int | None = None) -> GatewayConfig:
    """Says every problem on stderr and ends with 78 if the configuration is not valid."""
    try:
        return loaded(context, port=port)
    except ConfigInvalid as error:
        refuse(context, error)


def loaded(context: CliContext, *, port: int | None = None) -> GatewayConfig:
    """Raises ConfigInvalid."""
    return load(
        context.config_path,
        environment=read_environment(),
        home=Path.home(),
        cwd=Path.cwd(),
        known=known(),
        overrides=Overrides(context.data_dir, port),
    )


def config_path(context: CliContext) -> Path | None:
    """The file that counts; None for a start without one."""
    return find_file(
        context.config_path, environment=read_environment(), home=Path.home(), cwd=Path.cwd()
    )


def surroundings(context: CliContext) -> Surroundings:
    environment = read_environment()
    is_named = is_named_file(context.config_path, environment)
    overrides = Overrides(context.data_dir)
    return Surroundings(environment, Path.home(), Path.cwd(), known(), overrides, is_named)


def data_dir(context: CliContext) -> Path:
    """All that a verb needs to find the running gateway, whose configuration may be broken by now.

    Ends with 78 if the file cannot be read.
    """
    try:
        return find_data_dir(
            context.config_path,
            environment=read_environment(),
            home=Path.home(),
            cwd=Path.cwd(),
            given=context.data_dir,
        )
    except ConfigInvalid as error:
        refuse(context, error)


def refuse(context: CliContext, error: ConfigInvalid) -> NoReturn:
    if context.json:
        click.echo(json.dumps(as_json(error), ensure_ascii=False))
    else:
        click.echo(error.render(), err=True)
    raise SystemExit(BAD_CONFIG)


def as_json(error: ConfigInvalid) -> dict[str, object]:
    """The failure as programs read it."""
    problems = [problem_as_json(problem) for problem in error.problems]
    told = failure(error.code, str(error))
    return {**told, "problems": problems, "left_out": error.left_out}


def problem_as_json(problem: ConfigProblem) -> dict[str, object]:
    return {
        "code": problem.code,
        "source": problem.source,
        "line": problem.line or None,
        "column": problem.column or None,
        "key": problem.key,
        "message": problem.message,
        "fix": problem.fix,
    }
