"""`exogate backup`: made by the running gateway, or here if none runs; checked and restored here."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import click
from pydantic_core import to_jsonable_python

from gateway.api.declarations import build, plain
from gateway.api.operating import BackupCreated
from gateway.app import backups as app
from gateway.cli.command import CliContext
from gateway.cli.configuration import load_config
from gateway.cli.link import data_dir, open_link
from gateway.domain.backups import Backup
from gateway.host.clock import SystemClock
from gateway.store.opening import read_owner

MADE_S = 3600.0  # for the gateway's answer: a disk writes some hundred GB meanwhile

archive_given = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def backup() -> None: ...


@backup.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Secret files, and secrets in the configuration, as well.",
)
@click.pass_obj
def create(context: CliContext, file: Path | None, *, with_secrets: bool) -> None:
    path = file.absolute() if file else None
    if read_owner(data_dir(context)) is None:
        config, clock = load_config(context), SystemClock()
        make = partial(app.create_offline, config, path, with_secrets=with_secrets, clock=clock)
        made = anyio.run(make)
        value = build(BackupCreated, made, made.manifest, made.manifest.store)
        told = to_jsonable_python(plain(value))
    else:
        with open_link(context, MADE_S) as link:
            given = {"file": str(path) if path else None, "with_secrets": with_secrets}
            told = link.call("backup.create", **given)
    if context.json:
        context.print_json(told)
        return
    for one in told["left_out"]:
        click.echo(f"left out: {one['path']} ({one['why']})", err=True)
    click.echo(f"{told['file']}   {_size(told['bytes'])}, {told['accepted']:,} messages")
    click.echo(f"sha256 {told['sha256']}")


@backup.command()
@archive_given
@click.pass_obj
def verify(context: CliContext, file: Path) -> None:
    found = app.verify(file.absolute())
    context.print_result({"ok": True, **_as_json(found)}, *_lines(found))


@backup.command()
@archive_given
@click.option("--dry-run", is_flag=True, help="Check everything; change nothing.")
@click.option(
    "--force", is_flag=True, help="Move a data directory that is not empty aside; delete nothing."
)
@click.pass_obj
def restore(context: CliContext, file: Path, *, dry_run: bool, force: bool) -> None:
    given = (file.absolute(), data_dir(context))
    clock = SystemClock()
    done = anyio.run(partial(app.restore, *given, force=force, dry_run=dry_run, clock=clock))
    if context.json:
        about = {one: getattr(done, one) for one in ("data_dir", "moved_to", "held", "reserved")}
        context.print_json({**_as_json(done.backup), **about, "dry_run": dry_run})
        return
    click.echo("\n".join(_lines(done.backup)))
    if done.moved_to:
        click.echo(f"{done.data_dir} {'would be' if dry_run else 'was'} moved to {done.moved_to}")
    if dry_run:
        click.echo(f"it can be restored into {done.data_dir}; nothing was changed")
        return
    click.echo(f"restored into {done.data_dir}")
    click.echo(
        f"held: {done.held} answers whose sending was under way (exogate channel dead-letters list); "
        f"{done.reserved} reservations of budgets count as spent"
    )
    inside = Path(done.data_dir, app.RESTORED)
    if len(done.backup.manifest.members) > 1:
        click.echo(f"the configuration and what it names are in {inside}; nothing was written over")


def _as_json(found: Backup) -> dict[str, Any]:
    told: dict[str, Any] = to_jsonable_python(asdict(found))
    return told


def _lines(found: Backup) -> list[str]:
    about = found.manifest
    store = about.store
    rows = sum(store.counts.values())
    lines = [
        f"{found.file} is whole: {_size(found.bytes)}, {len(about.members)} members",
        f"made {about.created_at:%Y-%m-%d %H:%M:%S} UTC by exogate {about.exogate} at {about.node}",
        f"store of schema version {store.schema_version}: {store.accepted:,} messages accepted, "
        f"{rows:,} rows, {store.audit_seq:,} entries of the audit",
        f"secrets are {'in it' if about.secrets else 'not in it'}",
    ]
    return lines + [f"left out: {one.path} ({one.why})" for one in about.left_out]


def _size(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"
