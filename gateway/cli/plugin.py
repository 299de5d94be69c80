"""`exogate plugin`: makes, looks at, tries, installs plugins, and says what they may do."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.cli.context import CliContext, config_or_exit, data_dir
from gateway.cli.ending import FAILED, Unreachable
from gateway.cli.link import linked
from gateway.cli.plugin_checking import Examined, examine
from gateway.cli.plugin_files import BadPlugin, Given, checked_name, given, given_as
from gateway.cli.plugin_granting import grant, install, revoke
from gateway.cli.plugin_place import config_in_force
from gateway.cli.plugin_scaffold import NoScaffold, made
from gateway.cli.plugin_words import asked_lines, block, import_lines, shown, tool_line
from gateway.domain.plugins import PluginDef
from gateway.domain.text import choose, quoted
from gateway.host.logs import logging_to


@click.group()
def plugin() -> None:
    """Create, test and install plugins, and grant them permissions."""


for _verb in (install, grant, revoke):
    plugin.add_command(_verb)


@plugin.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(["tool", "channel"]), default="tool", show_default=True)
@click.option(
    "--lang", required=True, help="The language: zig, js, python, rust, c or assemblyscript."
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="Where to; ./NAME if not said."
)
@click.pass_obj
def new(context: CliContext, name: str, kind: str, lang: str, folder: Path | None) -> None:
    """Write the source of a new plugin."""
    folder = folder or Path(name)
    try:
        made(checked_name(name), kind, lang, folder)
    except NoScaffold as error:
        raise click.UsageError(str(error)) from error
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    follow = [f"exogate plugin build {folder}", f"exogate plugin install {folder}", "exogate run"]
    if kind == "tool":
        follow.append(f'exogate chat -m \'call {name} {{"text": "hello world"}}\'')
    if context.json:
        click.echo(json.dumps({"name": name, "dir": str(folder), "files": files, "next": follow}))
        return
    follow.append(f"also: exogate plugin test {folder} runs its recorded cases")
    click.echo("\n".join([f"{folder}: {', '.join(files)}", *block("Next", follow)]))


@plugin.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.pass_obj
def build(context: CliContext, folder: Path) -> None:
    """Build the plugin in DIR. Its plugin.toml names the command and keeps the sha256."""
    from gateway.cli.plugin_building import built, keep  # noqa: PLC0415  # few verbs need it
    from gateway.config.environment import read_environment  # noqa: PLC0415  # as above

    wasm = built(folder, read_environment())
    sha256 = keep(folder, wasm)
    file = folder / "tool.wasm"
    if context.json:
        click.echo(json.dumps({"file": str(file), "size": len(wasm), "sha256": sha256}))
    else:
        click.echo(f"{file}: {len(wasm):,} bytes, sha256 {sha256}")


@plugin.command()
@click.argument("file")
@click.pass_obj
def check(context: CliContext, file: str) -> None:
    """Check a plugin and list every problem. FILE may be a directory. Exit 1 if there is a problem."""
    found = anyio.run(examine, data_dir(context), given(file))
    problems = (*found.problems, *_unasked(found))
    if context.json:
        told = {**found.as_json(), "ok": not problems, "problems": problems}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo("\n".join([*_about(found), *(f"✗ {shown(one)}" for one in problems)]))
        if not problems:
            click.echo("✓ it loads; `exogate plugin test` runs it")
    if problems:
        sys.exit(FAILED)


def _unasked(found: Examined) -> Iterator[str]:
    """What a file imports although its plugin.toml asks for nothing of the kind."""
    about = found.given.about
    for name, need in found.lacking.items() if about else ():
        if about and need not in about.asks:
            yield f"it imports {name}, which needs {need}: plugin.toml has to ask for that"


@plugin.command()
@click.argument("file")
@click.option(
    "--case",
    "cases",
    type=click.Path(path_type=Path),
    help="The recorded cases; cases.json beside FILE if not said.",
)
@click.pass_obj
def test(context: CliContext, file: str, cases: Path | None) -> None:
    """Run the recorded cases of a plugin in the sandbox. FILE may be a directory. Exit 1 if one fails."""
    from gateway.cli.plugin_testing import read_cases, try_all  # noqa: PLC0415  # as in `build`

    source = given(file)
    recorded = read_cases(cases or source.cases)
    with logging_to(sys.stderr, "warning", "console"):
        granted, verdicts = anyio.run(try_all, data_dir(context), source, recorded)
    failed = sum(bool(one.problem) for one in verdicts)
    if context.json:
        told = [one.as_json() for one in verdicts]
        grants = [str(one) for one in granted]
        click.echo(json.dumps({"ok": not failed, "granted": grants, "cases": told}))
    else:
        click.echo("\n".join(block("Granted", list(asked_lines(granted)))))
        for one in verdicts:
            mark = "✗" if one.problem else "✓"
            click.echo(f"{mark} {shown(one.name)}   {one.wall_ms:.2f} ms   {one.fuel:,} fuel")
            for line in one.problem:
                click.echo(f"    {shown(line)}")
        click.echo(f"{len(verdicts) - failed} of {len(verdicts)} cases passed")
    if failed:
        sys.exit(FAILED)


@plugin.command()
@click.argument("target", metavar="FILE|NAME")
@click.pass_obj
def inspect(context: CliContext, target: str) -> None:
    """Show the tools, imports and permissions of a plugin. By NAME, also what it used and was denied."""
    source, granted = _sought(context, target)
    found = anyio.run(examine, data_dir(context), source, granted)
    live = _live(context, source.name) if granted and target == source.name else None
    if context.json:
        about = source.about
        requested = [*about.capabilities, *about.asks] if about else None
        capabilities = [str(one) for one in granted.capabilities] if granted else None
        told = {**found.as_json(), "requested": requested, "granted": capabilities, "live": live}
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    lines = [*_about(found), *_asked(source), *_granted(granted), *_lived(live)]
    click.echo("\n".join([*lines, *(f"✗ {shown(one)}" for one in found.problems)]))


def _sought(context: CliContext, target: str) -> tuple[Given, PluginDef | None]:
    """The file, and how it is configured if it is."""
    is_file = Path(target).exists() or target.endswith(".wasm") or ":" in target
    config = config_in_force(context) if is_file else config_or_exit(context)
    configured = {one.name: one for one in config.plugins} if config else {}
    if is_file:
        source = given(target)
        return source, configured.get(source.name)
    if target not in configured:
        names = choose(target, configured)
        raise BadPlugin(f"there is no file and no plugin {quoted(target)}; {names}")
    return given_as(configured[target]), configured[target]


def _asked(source: Given) -> Iterator[str]:
    if source.about:
        asked = [*source.about.capabilities, *source.about.asks]
        yield from block("requests", [shown(one) for one in asked])


def _granted(granted: PluginDef | None) -> Iterator[str]:
    lines = list(asked_lines(granted.capabilities)) if granted else ["it is not configured"]
    yield from block("granted", lines)


def _lived(live: Mapping[str, Any] | None) -> Iterator[str]:
    if live is not None:
        yield from block("state", [shown(f"{live['state']} {live.get('reason', '')}".strip())])
        yield from block("used", _counts(live["used"]))
        yield from block("denied", _counts(live["denied"]))


def _live(context: CliContext, name: str) -> Mapping[str, Any] | None:
    """What the running gateway knows of it; None if none runs."""
    try:
        with linked(context) as link:
            told: Mapping[str, Any] = link.call("plugin.inspect", name=name)
    except Unreachable:
        return None
    return told


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{shown(name)}   {count} times" for name, count in sorted(counts.items())]


def _about(found: Examined) -> Iterator[str]:
    told = found.told.info
    yield f"{told.name} {shown(told.version or '')}".strip()
    size = [f"{found.size:,} bytes, sha256 {told.sha256}"] if told.kind else []
    yield from block("file", [str(found.given.file), *size])
    if told.kind is None:
        return
    yield from block("kind", [f"{told.kind}, spoken to as {found.told.guest}"])
    if told.description:
        yield from block("describes", [f"(the author's words) {shown(told.description)}"])
    if told.kind == "tool":
        yield from block("tools", [tool_line(tool) for tool in told.tools])
    yield from block("imports", list(import_lines(found.told.needs)))


@plugin.command("list")
@click.pass_obj
def list_plugins(context: CliContext) -> None:
    """List the plugins of the running gateway."""
    with linked(context) as link:
        found = link.call("plugin.list")
    if context.json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for one in found:
        tools = ", ".join(tool["name"] for tool in one["tools"]) or "no tools"
        grants = ", ".join(one["capabilities"]) or "nothing granted"
        why = f"   {one['reason']}" if one.get("reason") else f"   {tools}   {grants}"
        click.echo(shown(f"{one['name']:16} {one['state']:9} {one['version'] or '-':8}{why}"))
