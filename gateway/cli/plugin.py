"""`exogate plugin`: makes plugins, looks at them, and installs them. What one may do is shown to the operator and
confirm to, then written down, or not at all."""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.app.trial import BadPlugin
from gateway.cli.command import FAILED, JSON, CliContext, JsonObject, ParsedType, Unreachable
from gateway.cli.configuration import Edit, agree, known_names, load_config
from gateway.cli.link import ask, data_dir
from gateway.cli.plugin_files import (
    ABOUT,
    CASES,
    WASM,
    Build,
    PluginReport,
    PluginSource,
    asked_lines,
    block,
    checked_name,
    configured_source,
    examine,
    find_source,
    import_lines,
    read_about,
    replace_file,
    tool_line,
    with_sha256,
)
from gateway.cli.plugin_testing import read_cases, try_all
from gateway.config import editing
from gateway.config.environment import read_environment
from gateway.config.plugins import BUNDLED
from gateway.config.problems import ConfigInvalid
from gateway.config.sections import BadCapability, parse_capability
from gateway.domain.plugins import Capability, PluginDef
from gateway.domain.text import choose, one_line, quoted
from gateway.host.files import shipped_folder
from gateway.host.logs import logging_to
from gateway.sandbox.componentize import component_from_core

# What an import needs that only the operator can name.
_OPEN = frozenset({"http:HOST", "store:NAME", "host_function:NAME"})
_LEFT_OUT = shutil.ignore_patterns(
    "tool.wasm", "core.wasm", "node_modules", "__pycache__", "target"
)
WIT = shipped_folder("sandbox/wit") / "exogate-plugin.wit"
STDERR = 2  # results alone go to stdout


@click.group()
def plugin() -> None: ...


# -- call


@plugin.command()
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", metavar="[JSON]", default="{}", type=JSON)
@click.pass_obj
def call(context: CliContext, name: str, tool: str, arguments: JsonObject) -> None:
    given = {"name": name, "tool": tool, "arguments": arguments}
    told = ask(context, "plugin.call", given)
    if context.json:
        context.print_json(told)
    else:
        click.echo(told["output"], err=not told["ok"])
    if not told["ok"]:
        raise SystemExit(FAILED)


# -- new, build


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
    folder = folder or Path(name)
    write_scaffold(checked_name(name), kind, lang, folder)
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    follow = [f"exogate plugin build {folder}", f"exogate plugin install {folder}", "exogate run"]
    if kind == "tool":
        follow.append(f'exogate chat -m \'call {name} {{"text": "hello world"}}\'')
    also = f"also: exogate plugin test {folder} runs its recorded cases"
    context.print_result(
        {"name": name, "dir": str(folder), "files": files, "next": follow},
        f"{folder}: {', '.join(files)}",
        *block("Next", [*follow, also]),
    )


def scaffolds() -> dict[tuple[str, str], Path]:
    """(kind, language) -> the directory of an example."""
    folders = [one.parent for one in sorted(shipped_folder("wasm-examples").glob(f"*/{ABOUT}"))]
    return {(read_about(one).kind, one.name.removeprefix("channel-")): one for one in folders}


def write_scaffold(name: str, kind: str, language: str, folder: Path) -> None:
    """Copies the example of that language under the plugin's own name. Raises UsageError, BadPlugin."""
    known_ones = scaffolds()
    source = known_ones.get((kind, language))
    if source is None:
        pairs = ", ".join(f"--kind {k} --lang {one}" for k, one in known_ones)
        raise click.UsageError(f"there is no example of a {kind} in {language}; there are: {pairs}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadPlugin(f"{folder} is there already and not empty; choose another --dir")
    try:
        _copy_example(source, name, folder)
    except OSError as error:
        raise BadPlugin(f"{folder} cannot be written: {error.strerror or error}") from error


def _copy_example(source: Path, name: str, folder: Path) -> None:
    example = read_about(source)
    shutil.copytree(source, folder, ignore=_LEFT_OUT, dirs_exist_ok=True)
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_text(encoding="utf-8").replace(example.name, name)
        path.write_text(with_sha256(text, "") if path.name == ABOUT else text, encoding="utf-8")
    if example.build and example.build.core and not any(folder.rglob(WIT.name)):
        shutil.copy(WIT, folder)  # only to be read: such languages know nothing of it


@plugin.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.pass_obj
def build(context: CliContext, folder: Path) -> None:
    wasm = run_build(folder, read_environment())
    sha256 = save_build(folder, wasm)
    file = folder / WASM
    context.print_result(
        {"file": str(file), "size": len(wasm), "sha256": sha256},
        f"{file}: {len(wasm):,} bytes, sha256 {sha256}",
    )


def run_build(folder: Path, environment: Mapping[str, str]) -> bytes:
    """Runs the command of [build] there and gives what has come out; nothing is kept. Raises BadPlugin.

    The command is found as in a terminal, Python's packages also beside this program. What it says goes to stderr.
    """
    about = read_about(folder)
    if about.build is None:
        raise BadPlugin(
            f"{folder / ABOUT} says nothing of how it is built: it has no [build] command"
        )
    made = folder / (about.build.core or WASM)
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join(filter(None, (environment.get("PATH"), here)))
    code = subprocess.run(
        about.build.command,
        shell=True,  # it is the author's own command, written for a shell
        cwd=folder,
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=STDERR,
        check=False,
    ).returncode
    if code != 0:
        raise BadPlugin(f"the build failed (exit {code}){_needs(about.build)}")
    if not made.is_file():
        raise BadPlugin(f"the build ended without making {made}")
    wasm = made.read_bytes()
    return component_from_core(wasm, about.kind) if about.build.core else wasm


def _needs(build: Build) -> str:
    """What has to be there, and how to get what Python's package index has."""
    if not build.needs:
        return ""
    said = f"; it needs {', '.join(build.needs)}"
    packages = [need for need in build.needs if "==" in need]
    return f"{said}: python -m pip install {' '.join(packages)}" if packages else said


def save_build(folder: Path, wasm: bytes) -> str:
    """Writes tool.wasm, then its sha256 into plugin.toml, each whole or not at all; gives that."""
    sha256 = hashlib.sha256(wasm).hexdigest()
    replace_file(folder / WASM, wasm)
    about = folder / ABOUT
    replace_file(about, with_sha256(about.read_text(encoding="utf-8"), sha256).encode())
    return sha256


# -- check, test, inspect


@plugin.command()
@click.argument("file")
@click.pass_obj
def check(context: CliContext, file: str) -> None:
    found = anyio.run(examine, data_dir(context), find_source(file))
    asks = found.given.about.asks if found.given.about else list(found.lacking.values())
    unasked = [
        f"it imports {name}, which needs {need}: plugin.toml has to ask for that"
        for name, need in found.lacking.items()
        if need not in asks
    ]
    problems = (*found.problems, *unasked)
    said = [f"✗ {one_line(one)}" for one in problems]
    context.print_result(
        {**found.as_json(), "ok": not problems, "problems": problems},
        *_about(found),
        *(said or ["✓ it loads; `exogate plugin test` runs it"]),
    )
    if problems:
        sys.exit(FAILED)


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
    source = find_source(file)
    recorded = read_cases(cases or source.file.parent / CASES)
    with logging_to(sys.stderr, "warning", "console"):
        granted, verdicts = anyio.run(try_all, data_dir(context), source, recorded)
    failed = sum(bool(one.problem) for one in verdicts)
    if context.json:
        told = [one.as_json() for one in verdicts]
        context.print_json({"ok": not failed, "granted": list(map(str, granted)), "cases": told})
    else:
        click.echo("\n".join(block("Granted", list(asked_lines(granted)))))
        for one in verdicts:
            mark = "✗" if one.problem else "✓"
            click.echo(f"{mark} {one_line(one.name)}   {one.wall_ms:.2f} ms   {one.fuel:,} fuel")
            for line in one.problem:
                click.echo(f"    {one_line(line)}")
        click.echo(f"{len(verdicts) - failed} of {len(verdicts)} cases passed")
    if failed:
        sys.exit(FAILED)


@plugin.command()
@click.argument("target", metavar="FILE|NAME")
@click.pass_obj
def inspect(context: CliContext, target: str) -> None:
    source, granted = _sought(context, target)
    found = anyio.run(examine, data_dir(context), source, granted)
    about = source.about
    requested = [*about.capabilities, *about.asks] if about else None
    live: Mapping[str, Any] | None = None
    if granted and target == source.name:
        try:
            live = ask(context, "plugin.inspect", {"name": source.name})
        except Unreachable:
            live = None  # no gateway runs
    capabilities = [str(one) for one in granted.capabilities] if granted else None
    told = {**found.as_json(), "requested": requested, "granted": capabilities, "live": live}
    context.print_result(told, *_inspected(found, requested, granted, live))


def _inspected(
    found: PluginReport,
    requested: Sequence[str] | None,
    granted: PluginDef | None,
    live: Mapping[str, Any] | None,
) -> Sequence[str]:
    lines = list(_about(found))
    if requested is not None:
        lines += block("requests", list(map(one_line, requested)))
    grants = list(asked_lines(granted.capabilities)) if granted else ["it is not load_config"]
    lines += block("granted", grants)
    if live is not None:
        lines += block("state", [one_line(f"{live['state']} {live.get('reason', '')}".strip())])
        lines += block("used", _counts(live["used"]))
        lines += block("denied", _counts(live["denied"]))
    return [*lines, *(f"✗ {one_line(one)}" for one in found.problems)]


def _sought(context: CliContext, target: str) -> tuple[PluginSource, PluginDef | None]:
    """The file, and how it is configured if it is. A file is looked at although the configuration is not valid."""
    is_file = Path(target).exists() or target.endswith(".wasm") or ":" in target
    try:
        plugins = {one.name: one for one in load_config(context).plugins}
    except ConfigInvalid:
        if not is_file:
            raise
        plugins = {}
    if is_file:
        source = find_source(target)
        return source, plugins.get(source.name)
    if target not in plugins:
        names = choose(target, plugins)
        raise BadPlugin(f"there is no file and no plugin {quoted(target)}; {names}")
    return configured_source(plugins[target]), plugins[target]


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{one_line(name)}   {count} times" for name, count in sorted(counts.items())]


def _about(found: PluginReport) -> Iterator[str]:
    told = found.told.info
    yield f"{told.name} {one_line(told.version or '')}".strip()
    size = [f"{found.size:,} bytes, sha256 {told.sha256}"] if told.kind else []
    yield from block("file", [str(found.given.file), *size])
    if told.kind is None:
        return
    yield from block("kind", [f"{told.kind}, spoken to as {found.told.guest}"])
    if told.description:
        yield from block("describes", [f"(the author's words) {one_line(told.description)}"])
    if told.kind == "tool":
        yield from block("tools", [tool_line(tool) for tool in told.tools])
    yield from block("imports", list(import_lines(found.told.needs)))


# -- install


CAPABILITY = ParsedType("CAP", parse_capability)


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """What installing comes to."""

    found: PluginReport
    edit: Edit
    after: str
    asked: tuple[Capability, ...]
    new: tuple[Capability, ...]
    copy: Path | None  # where the file is to be; None: it is bundled
    table: Mapping[str, Any] | None  # as the file has it; None: it is new

    def save(self) -> str:
        """The file first, then the configuration; if that fails, the file goes again. Says what came of it."""
        copy = self.copy
        if copy is None:
            return self.edit.save_and_reload(self.after)
        with ExitStack() as undo:
            if not copy.exists():
                undo.callback(copy.unlink, missing_ok=True)
            _copy(self.found.given.file, copy, self.found.sha256)
            effect = self.edit.save_and_reload(self.after)
            undo.pop_all()
        old = Path(str(self.table["path"])) if self.table else copy
        if old != copy and old.parent == copy.parent:
            old.unlink(missing_ok=True)
        return effect


def _copy(source: Path, copy: Path, sha256: str) -> None:
    try:
        wasm = source.read_bytes()
        if hashlib.sha256(wasm).hexdigest() != sha256:
            raise BadPlugin(f"{source} changed in the meantime; try again")
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(copy, wasm)
    except OSError as error:
        raise BadPlugin(f"{copy} cannot be written: {error.strerror}") from error


@plugin.command()
@click.argument("source", metavar="FILE|DIR|bundled:NAME")
@click.option("--name", help="What to call it; if not said, as its author does.")
@click.option("--grant", "extra", type=CAPABILITY, multiple=True, help="Grant this too.")
@click.option("--agent", help="Whose tools it becomes; if not said, the default agent's.")
@agree
@click.pass_obj
def install(
    context: CliContext,
    source: str,
    *,
    name: str | None,
    extra: tuple[Capability, ...],
    agent: str | None,
    yes: bool,
) -> None:
    found = find_source(source)
    plan = plan_install(
        context, replace(found, name=checked_name(name or found.name)), extra, agent
    )
    edit, copy, name = plan.edit, plan.copy, plan.found.given.name
    edit.show(*_shown(plan))
    if plan.after != edit.before or not (copy is None or copy.is_file()):
        edit.confirm("Install it, with these capabilities?", yes=yes)
        effect = plan.save()
        edit.show(f"{name} was added to {edit.name}. {effect}")
    if context.json:
        context.print_json(
            {
                "name": name,
                "file": str(copy) if copy else source,
                "sha256": plan.found.sha256,
                "capabilities": [str(one) for one in plan.asked],
                "new": [str(one) for one in plan.new],
                "config": str(edit.path),
                "changed": plan.after != edit.before,
            }
        )


def plan_install(
    context: CliContext, source: PluginSource, extra: Iterable[Capability], agent: str | None
) -> InstallPlan:
    """Raises BadPlugin for what would be refused at load, CannotEdit, ConfigInvalid."""
    edit = Edit.begin(context)
    table = _table(edit.before, source)
    granted = tuple(_parsed(table.get("capabilities", ()))) if table else ()
    wanted = tuple(dict.fromkeys((*source.asked, *extra)))
    plugin = replace(source.plugin, capabilities=(*granted, *wanted))
    found = anyio.run(examine, data_dir(context), source, plugin)
    # What it imports and cannot do without, although its author does not ask for it.
    needs = [parse_capability(one) for one in found.lacking.values() if one not in _OPEN]
    wanted = tuple(dict.fromkeys((*wanted, *needs)))
    _require_loadable(found)
    new = tuple(one for one in wanted if one not in granted)
    copy = None
    if source.bundled is None:
        folder = data_dir(context) / "plugins" / "installed"
        copy = folder / f"{source.name}-{found.sha256[:12]}.wasm"
    after = _edited(edit.before, found, copy, new, is_known=table is not None)
    if found.told.info.kind == "tool" and (table is None or agent is not None):
        after = editing.with_tool(after, agent, source.name)
    return InstallPlan(found, edit, after, wanted, new, copy, table)


def _table(text: str, source: PluginSource) -> Mapping[str, Any] | None:
    """The plugin of this name in the file, if there is one. Raises BadPlugin for a name that is not free."""
    tables = tomllib.loads(text.removeprefix("\ufeff")).get("plugins", [])
    found = (one for one in tables if isinstance(one, dict) and one.get("name") == source.name)
    table = next(found, None)
    if source.bundled is None and source.name in known_names().bundled:
        raise BadPlugin(f"a bundled plugin is named {source.name}; choose another with --name")
    path = str(table.get("path", "")) if table else ""
    bundled = path.removeprefix(BUNDLED) if path.startswith(BUNDLED) else None
    if table is not None and bundled != source.bundled:
        raise BadPlugin(f"another plugin is named {source.name}; choose another with --name")
    return table


def _parsed(texts: Iterable[object]) -> Iterator[Capability]:
    for text in texts:
        try:
            yield parse_capability(str(text))
        except BadCapability:
            continue  # the configuration is not valid: saving it will say so


def _require_loadable(found: PluginReport) -> None:
    problems = list(found.problems)
    problems += [
        f"it imports {name}, which needs {need}: say which with --grant {need}"
        for name, need in found.lacking.items()
        if need in _OPEN
    ]
    if problems:
        raise BadPlugin(f"{found.given.file} is not installed: {one_line('; '.join(problems))}")


def _edited(
    text: str, found: PluginReport, copy: Path | None, new: Sequence[Capability], *, is_known: bool
) -> str:
    name, bundled = found.given.name, found.given.bundled
    if not is_known:
        table: dict[str, object] = {"name": name, "path": str(copy or f"{BUNDLED}{bundled}")}
        table["capabilities"] = [str(one) for one in new]
        if copy is not None:
            table["sha256"] = found.sha256
        return editing.with_plugin(text, table)
    if copy is not None:
        keys = {"path": str(copy), "sha256": found.sha256}
        text = editing.with_plugin_keys(text, name, keys)
    for capability in new:
        text = editing.with_capability(text, name, capability)
    return text


def _shown(plan: InstallPlan) -> Iterator[str]:
    """All that an operator has to know to agree."""
    found, table = plan.found, plan.table
    told = found.told.info
    yield f"{told.name} {one_line(told.version or '')}   {told.kind} plugin"
    yield from block("describes", [f"(the author's words) {one_line(told.description) or '-'}"])
    yield from block("tools", [tool_line(tool) for tool in told.tools])
    old = str(table.get("sha256", found.sha256)) if table else found.sha256
    is_same = old.lower() == found.sha256
    hashes = [found.sha256] if is_same else [f"new {found.sha256}", f"old {one_line(old)}"]
    yield from block("sha256", hashes)
    yield from block("requests", list(asked_lines(plan.asked, plan.new if table else ())))
    if table is not None and plan.new:
        yield f"It requests more than it is granted: {', '.join(map(str, plan.new))}"
    difference = plan.edit.difference(plan.after)
    yield difference or f"{found.given.name} is installed already; nothing changed"


# -- grant, revoke


@plugin.command()
@click.argument("name")
@click.argument("capability", metavar="CAP", type=CAPABILITY)
@agree
@click.pass_obj
def grant(context: CliContext, name: str, capability: Capability, *, yes: bool) -> None:
    _change(context, name, capability, editing.with_capability, yes=yes)


@plugin.command()
@click.argument("name")
@click.argument("capability", metavar="CAP", type=CAPABILITY)
@agree
@click.pass_obj
def revoke(context: CliContext, name: str, capability: Capability, *, yes: bool) -> None:
    _change(context, name, capability, editing.without_capability, yes=yes)


def _change(
    context: CliContext,
    name: str,
    capability: Capability,
    change: Callable[[str, str, Capability], str],
    *,
    yes: bool,
) -> None:
    edit, is_less = Edit.begin(context), change is editing.without_capability
    lost = editing.lost_hosts(edit.before, name, capability) if is_less else ()
    edit.written(
        change(edit.before, name, capability),
        *asked_lines([capability]),
        *map(_becomes, lost),
        question="Revoke it?" if is_less else "Grant it?",
        nothing=f"{name} already has {capability}",
        yes=yes,
        name=name,
        capability=str(capability),
        secrets=[{"name": one.name, "hosts": list(one.hosts)} for one in lost],
    )


def _becomes(lost: editing.LostHost) -> str:
    """Of a secret, in one sentence."""
    if lost.hosts:
        return (
            f"Secret {one_line(lost.name)} is not sent there any more; "
            f"it stays for {one_line(', '.join(lost.hosts))}."
        )
    value = one_line(lost.value) if lost.value.startswith("${") else ""
    kept = f"; what {value} leads to stays where it is" if value else ", and its value with it"
    return (
        f"Secret {one_line(lost.name)} is for this host alone: it is removed from the file{kept}."
    )
