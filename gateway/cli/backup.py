"""`exogate backup`: the running gateway makes a backup; without one this process makes it. This process verifies and
restores."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import click
from pydantic_core import to_jsonable_python

from gateway.api.declarations import build, plain
from gateway.api.operating import BackupCreated
from gateway.app import backups as app
from gateway.cli.command import CliContext
from gateway.cli.configuration import load_config
from gateway.cli.link import ask, data_dir
from gateway.domain.backups import Backup
from gateway.host.clock import SystemClock
from gateway.store.opening import read_owner

CREATE_TIMEOUT_S = 3600.0  # a disk writes some hundred GB in that time

archive_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def backup() -> None: ...


@backup.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include secret files, and the secrets in the configuration.",
)
@click.pass_obj
def create(context: CliContext, file: Path | None, *, with_secrets: bool) -> None:
    path = file.absolute() if file else None
    if read_owner(data_dir(context)) is None:
        config, clock = load_config(context), SystemClock()
        create = partial(app.create_offline, config, path, with_secrets=with_secrets, clock=clock)
        made = anyio.run(create)
        value = build(BackupCreated, made, made.manifest, made.manifest.store)
        result = to_jsonable_python(plain(value))
    else:
        asked = {"file": str(path) if path else None, "with_secrets": with_secrets}
        result = ask(context, "backup.create", asked, CREATE_TIMEOUT_S)
    if not context.json:
        for one in result["left_out"]:
            click.echo(f"left out: {one['path']} ({one['why']})", err=True)
    context.print_result(
        result,
        f"{result['file']}   {_size(result['bytes'])}, {result['accepted']:,} messages",
        f"sha256 {result['sha256']}",
    )


@backup.command()
@archive_argument
@click.pass_obj
def verify(context: CliContext, file: Path) -> None:
    found = app.verify(file.absolute())
    context.print_result({"ok": True, **to_jsonable_python(asdict(found))}, *_lines(found))


@backup.command()
@archive_argument
@click.option("--dry-run", is_flag=True, help="Check everything; change nothing.")
@click.option(
    "--force", is_flag=True, help="Move a data directory with files aside; delete nothing."
)
@click.pass_obj
def restore(context: CliContext, file: Path, *, dry_run: bool, force: bool) -> None:
    restore = partial(app.restore, file.absolute(), data_dir(context), clock=SystemClock())
    done = anyio.run(partial(restore, force=force, dry_run=dry_run))
    about = {one: getattr(done, one) for one in ("data_dir", "moved_to", "held", "reserved")}
    lines = _lines(done.backup)
    if done.moved_to:
        lines.append(f"{done.data_dir} {'would be' if dry_run else 'was'} moved to {done.moved_to}")
    if dry_run:
        lines.append(f"dry run: it can be restored into {done.data_dir}; nothing was changed")
    else:
        lines.append(f"restored into {done.data_dir}")
        lines.append(
            f"{done.held} answers were being sent and are held (see exogate channel dead-letters); "
            f"{done.reserved} budget reservations count as spent"
        )
        if len(done.backup.manifest.members) > 1:
            inside = Path(done.data_dir, app.RESTORED)
            lines.append(f"the configuration and its files are in {inside}; put them in place")
    backup = to_jsonable_python(asdict(done.backup))
    context.print_result({**backup, **about, "dry_run": dry_run}, *lines)


def _lines(found: Backup) -> list[str]:
    about, store = found.manifest, found.manifest.store
    rows = sum(store.counts.values())
    lines = [
        f"{found.file} is intact: {_size(found.bytes)}, {len(about.members)} files",
        f"made {about.created_at:%Y-%m-%d %H:%M:%S} UTC by exogate {about.exogate} on {about.node}",
        f"store: schema version {store.schema_version}, {store.accepted:,} accepted messages, "
        f"{rows:,} rows, {store.audit_seq:,} audit entries",
        f"secrets: {'included' if about.secrets else 'not included'}",
    ]
    return lines + [f"left out: {one.path} ({one.why})" for one in about.left_out]


def _size(count: int) -> str:
    return f"{count / 1_000_000:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"
