"""`exogate plugin`: creates, tests, inspects and installs plugins. The operator sees and agrees to the capabilities of a
plugin before they are written."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.app.doctor import BadPlugin
from gateway.cli.command import FAILED, JSON, CliContext, JsonObject, ParsedType, Unreachable
from gateway.cli.configuration import Edit, known_names, load_config, yes_option
from gateway.cli.link import ask, data_dir
from gateway.cli.plugin_files import (
    ABOUT,
    CASES,
    WASM,
    Build,
    PluginReport,
    PluginSource,
    block,
    capability_lines,
    checked_name,
    configured_source,
    examine,
    find_source,
    import_lines,
    read_about,
    read_cases,
    replace_file,
    tool_line,
    try_all,
    with_sha256,
)
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

# Capabilities that only the operator can complete.
_OPEN = frozenset({"http:HOST", "store:NAME", "host_function:NAME"})
_NOT_COPIED = shutil.ignore_patterns(
    "tool.wasm", "core.wasm", "node_modules", "__pycache__", "target"
)
WIT = shipped_folder("sandbox/wit") / "exogate-plugin.wit"
STDERR = 2  # stdout is for results


@click.group()
def plugin() -> None: ...


# -- call


@plugin.command()
@click.argument("name")
@click.argument("tool")
@click.argument("arguments", metavar="[JSON]", default="{}", type=JSON)
@click.pass_obj
def call(context: CliContext, name: str, tool: str, arguments: JsonObject) -> None:
    result = ask(context, "plugin.call", {"name": name, "tool": tool, "arguments": arguments})
    if context.json:
        context.print_json(result)
    else:
        click.echo(result["output"], err=not result["ok"])
    if not result["ok"]:
        raise SystemExit(FAILED)


# -- new, build


@plugin.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(["tool", "channel"]), default="tool", show_default=True)
@click.option(
    "--lang", required=True, help="The language: zig, js, python, rust, c or assemblyscript."
)
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path), help="The target; by default ./NAME."
)
@click.pass_obj
def new(context: CliContext, name: str, kind: str, lang: str, folder: Path | None) -> None:
    folder = folder or Path(name)
    write_scaffold(checked_name(name), kind, lang, folder)
    files = sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())
    steps = [f"exogate plugin build {folder}", f"exogate plugin install {folder}", "exogate run"]
    if kind == "tool":
        steps.append(f'exogate chat -m \'call {name} {{"text": "hello world"}}\'')
    also = f"also: exogate plugin test {folder} runs its recorded cases"
    context.print_result(
        {"name": name, "dir": str(folder), "files": files, "next": steps},
        f"{folder}: {', '.join(files)}",
        *block("Next", [*steps, also]),
    )


def scaffolds() -> dict[tuple[str, str], Path]:
    """Maps kind and language to the directory of an example."""
    folders = [one.parent for one in sorted(shipped_folder("wasm-examples").glob(f"*/{ABOUT}"))]
    return {(read_about(one).kind, one.name.removeprefix("channel-")): one for one in folders}


def write_scaffold(name: str, kind: str, language: str, folder: Path) -> None:
    """Copies the example of that language under the name of the plugin. Raises UsageError, BadPlugin."""
    examples = scaffolds()
    source = examples.get((kind, language))
    if source is None:
        pairs = ", ".join(f"--kind {k} --lang {one}" for k, one in examples)
        raise click.UsageError(f"there is no example of a {kind} in {language}; there are: {pairs}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadPlugin(f"{folder} exists and is not empty; choose another --dir")
    try:
        _copy_example(source, name, folder)
    except OSError as error:
        raise BadPlugin(f"{folder} cannot be written: {error.strerror or error}") from error


def _copy_example(source: Path, name: str, folder: Path) -> None:
    example = read_about(source)
    shutil.copytree(source, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
    for path in filter(Path.is_file, folder.rglob("*")):
        text = path.read_text(encoding="utf-8").replace(example.name, name)
        path.write_text(with_sha256(text, "") if path.name == ABOUT else text, encoding="utf-8")
    if example.build and example.build.core and not any(folder.rglob(WIT.name)):
        shutil.copy(WIT, folder)  # as documentation: a build of a core module does not use it


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
    """Runs the [build] command in the folder and returns the component that it makes. Raises BadPlugin.

    The search path ends with the directory of this program, for tools that pip installed. Output goes to stderr.
    """
    about = read_about(folder)
    if about.build is None:
        raise BadPlugin(f"{folder / ABOUT} has no [build] command")
    made = folder / (about.build.core or WASM)
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join(filter(None, (environment.get("PATH"), here)))
    code = subprocess.run(
        about.build.command,
        shell=True,  # the author wrote the command for a shell
        cwd=folder,
        env={**environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=STDERR,
        check=False,
    ).returncode
    if code != 0:
        raise BadPlugin(f"the build failed (exit {code}){_needs(about.build)}")
    if not made.is_file():
        raise BadPlugin(f"the build did not make {made}")
    wasm = made.read_bytes()
    return component_from_core(wasm, about.kind) if about.build.core else wasm


def _needs(build: Build) -> str:
    """Names the tools that a build needs, and the pip command for those of Python's package index."""
    if not build.needs:
        return ""
    text = f"; it needs {', '.join(build.needs)}"
    packages = [need for need in build.needs if "==" in need]
    return f"{text}: python -m pip install {' '.join(packages)}" if packages else text


def save_build(folder: Path, wasm: bytes) -> str:
    """Writes tool.wasm, then its sha256 into plugin.toml, each atomically. Returns the sha256."""
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
    about = found.source.about
    asks = about.asks if about else list(found.lacking.values())
    missing = [
        f"it imports {name}, which needs {need}: add that to `asks` in {ABOUT}"
        for name, need in found.lacking.items()
        if need not in asks
    ]
    problems = (*found.problems, *missing)
    verdict = [f"✗ {one_line(one)}" for one in problems]
    context.print_result(
        {**found.as_json(), "ok": not problems, "problems": problems},
        *_about(found),
        *(verdict or ["✓ it loads; `exogate plugin test` runs its cases"]),
    )
    if problems:
        sys.exit(FAILED)


@plugin.command()
@click.argument("file")
@click.option(
    "--case",
    "cases",
    type=click.Path(path_type=Path),
    help="The recorded cases; by default cases.json beside FILE.",
)
@click.pass_obj
def test(context: CliContext, file: str, cases: Path | None) -> None:
    source = find_source(file)
    recorded = read_cases(cases or source.file.parent / CASES)
    with logging_to(sys.stderr, "warning", "console"):
        granted, verdicts = anyio.run(try_all, data_dir(context), source, recorded)
    failed = sum(bool(one.problem) for one in verdicts)
    lines = [*block("Granted", list(capability_lines(granted)))]
    for one in verdicts:
        mark = "✗" if one.problem else "✓"
        lines.append(f"{mark} {one_line(one.name)}   {one.wall_ms:.2f} ms   {one.fuel:,} fuel")
        lines += [f"    {one_line(line)}" for line in one.problem]
    results = [one.as_json() for one in verdicts]
    context.print_result(
        {"ok": not failed, "granted": list(map(str, granted)), "cases": results},
        *lines,
        f"{len(verdicts) - failed} of {len(verdicts)} cases passed",
    )
    if failed:
        sys.exit(FAILED)


@plugin.command()
@click.argument("target", metavar="FILE|NAME")
@click.pass_obj
def inspect(context: CliContext, target: str) -> None:
    source, granted = _find_target(context, target)
    found = anyio.run(examine, data_dir(context), source, granted)
    about = source.about
    requested = [*about.capabilities, *about.asks] if about else None
    live: Mapping[str, Any] | None = None
    if granted and target == source.name:
        with suppress(Unreachable):
            live = ask(context, "plugin.inspect", {"name": source.name})
    capabilities = [str(one) for one in granted.capabilities] if granted else None
    result = {**found.as_json(), "requested": requested, "granted": capabilities, "live": live}
    lines = list(_about(found))
    if requested is not None:
        lines += block("requests", list(map(one_line, requested)))
    grants = list(capability_lines(granted.capabilities)) if granted else ["it is not configured"]
    lines += block("granted", grants)
    if live is not None:
        lines += block("state", [one_line(f"{live['state']} {live.get('reason', '')}".strip())])
        lines += block("used", _counts(live["used"]))
        lines += block("denied", _counts(live["denied"]))
    context.print_result(result, *lines, *(f"✗ {one_line(one)}" for one in found.problems))


def _find_target(context: CliContext, target: str) -> tuple[PluginSource, PluginDef | None]:
    """Returns a plugin by its file or name, and its definition in the configuration if it has one."""
    is_file = Path(target).exists() or target.endswith(".wasm") or ":" in target
    try:
        plugins = {one.name: one for one in load_config(context).plugins}
    except ConfigInvalid:
        if not is_file:  # a file needs no valid configuration
            raise
        plugins = {}
    if is_file:
        source = find_source(target)
        return source, plugins.get(source.name)
    if target not in plugins:
        hint = choose(target, plugins)
        raise BadPlugin(f"there is no file and no plugin {quoted(target)}; {hint}")
    return configured_source(plugins[target]), plugins[target]


def _counts(counts: Mapping[str, int]) -> list[str]:
    return [f"{one_line(name)}   {count} times" for name, count in sorted(counts.items())]


def _about(found: PluginReport) -> Iterator[str]:
    info = found.account.info
    yield f"{info.name} {one_line(info.version or '')}".strip()
    size = [f"{found.size:,} bytes, sha256 {info.sha256}"] if info.kind else []
    yield from block("file", [str(found.source.file), *size])
    if info.kind is None:
        return
    yield from block("kind", [f"{info.kind}, called as {found.account.guest}"])
    if info.description:
        yield from block("describes", [f"(the author's words) {one_line(info.description)}"])
    if info.kind == "tool":
        yield from block("tools", [tool_line(tool) for tool in info.tools])
    yield from block("imports", list(import_lines(found.account.needs)))


# -- install


CAPABILITY = ParsedType("CAP", parse_capability)


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """The changes that an installation makes. `table` is the plugin's present entry in the file."""

    found: PluginReport
    edit: Edit
    after: str
    requested: tuple[Capability, ...]
    new: tuple[Capability, ...]
    copy: Path | None  # the target of the .wasm file; None for a bundled plugin
    table: Mapping[str, Any] | None

    def save(self) -> str:
        """Copies the file, then writes the configuration; removes the copy if that fails. Returns the effect."""
        copy = self.copy
        if copy is None:
            return self.edit.save_and_reload(self.after)
        with ExitStack() as undo:
            if not copy.exists():
                undo.callback(copy.unlink, missing_ok=True)
            _copy(self.found.source.file, copy, self.found.sha256)
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
            raise BadPlugin(f"{source} has changed; try again")
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(copy, wasm)
    except OSError as error:
        raise BadPlugin(f"{copy} cannot be written: {error.strerror}") from error


@plugin.command()
@click.argument("source", metavar="FILE|DIR|bundled:NAME")
@click.option("--name", help="The name of the plugin; by default that of its author.")
@click.option("--grant", "extra", type=CAPABILITY, multiple=True, help="Grant one more capability.")
@click.option("--agent", help="The agent that gets its tools; by default the default agent.")
@yes_option
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
    edit, copy, name = plan.edit, plan.copy, plan.found.source.name
    edit.show(*_describe(plan))
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
                "capabilities": [str(one) for one in plan.requested],
                "new": [str(one) for one in plan.new],
                "config": str(edit.path),
                "changed": plan.after != edit.before,
            }
        )


def plan_install(
    context: CliContext, source: PluginSource, extra: Iterable[Capability], agent: str | None
) -> InstallPlan:
    """Plans an installation. Raises BadPlugin if the plugin would not load, CannotEdit, ConfigInvalid."""
    edit = Edit.begin(context)
    table = _table(edit.before, source)
    granted = tuple(_parsed(table.get("capabilities", ()))) if table else ()
    wanted = tuple(dict.fromkeys((*source.requested, *extra)))
    plugin = replace(source.plugin, capabilities=(*granted, *wanted))
    found = anyio.run(examine, data_dir(context), source, plugin)
    # Its imports may need capabilities that its author does not request.
    needs = [parse_capability(one) for one in found.lacking.values() if one not in _OPEN]
    wanted = tuple(dict.fromkeys((*wanted, *needs)))
    _require_loadable(found)
    new = tuple(one for one in wanted if one not in granted)
    copy = None
    if source.bundled is None:
        folder = data_dir(context) / "plugins" / "installed"
        copy = folder / f"{source.name}-{found.sha256[:12]}.wasm"
    after = _edited(edit.before, found, copy, new, is_known=table is not None)
    if found.account.info.kind == "tool" and (table is None or agent is not None):
        after = editing.with_tool(after, agent, source.name)
    return InstallPlan(found, edit, after, wanted, new, copy, table)


def _table(text: str, source: PluginSource) -> Mapping[str, Any] | None:
    """Returns the entry of this plugin in the file, if there is one. Raises BadPlugin if another plugin has its name."""
    table = editing.value_at(text, ("plugins", source.name))
    if source.bundled is None and source.name in known_names().bundled:
        raise BadPlugin(f"a bundled plugin is named {source.name}; choose another with --name")
    if not isinstance(table, dict) or table.get("name") != source.name:
        return None  # a plugin named 0 is not the first one
    path = str(table.get("path", ""))
    if source.bundled != (path.removeprefix(BUNDLED) if path.startswith(BUNDLED) else None):
        raise BadPlugin(f"another plugin is named {source.name}; choose another with --name")
    return table


def _parsed(texts: Iterable[object]) -> Iterator[Capability]:
    for text in texts:
        try:
            yield parse_capability(str(text))
        except BadCapability:
            continue  # saving reports the invalid configuration


def _require_loadable(found: PluginReport) -> None:
    problems = list(found.problems)
    problems += [
        f"it imports {name}, which needs {need}: add --grant {need}"
        for name, need in found.lacking.items()
        if need in _OPEN
    ]
    if problems:
        raise BadPlugin(f"{found.source.file} is not installed: {one_line('; '.join(problems))}")


def _edited(
    text: str, found: PluginReport, copy: Path | None, new: Sequence[Capability], *, is_known: bool
) -> str:
    name, bundled = found.source.name, found.source.bundled
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


def _describe(plan: InstallPlan) -> Iterator[str]:
    """Yields the facts that an operator needs in order to agree."""
    found, table = plan.found, plan.table
    info = found.account.info
    yield f"{info.name} {one_line(info.version or '')}   {info.kind} plugin"
    yield from block("describes", [f"(the author's words) {one_line(info.description) or '-'}"])
    yield from block("tools", [tool_line(tool) for tool in info.tools])
    old = str(table.get("sha256", found.sha256)) if table else found.sha256
    is_same = old.lower() == found.sha256
    hashes = [found.sha256] if is_same else [f"new {found.sha256}", f"old {one_line(old)}"]
    yield from block("sha256", hashes)
    yield from block("requests", list(capability_lines(plan.requested, plan.new if table else ())))
    if table is not None and plan.new:
        yield f"It requests new capabilities: {', '.join(map(str, plan.new))}"
    difference = plan.edit.difference(plan.after)
    yield difference or f"{found.source.name} is installed already; nothing changed"


# -- grant, revoke


def _add_verb(verb: str, change: Callable[[str, str, Capability], str]) -> None:
    @plugin.command(verb)
    @click.argument("name")
    @click.argument("capability", metavar="CAP", type=CAPABILITY)
    @yes_option
    @click.pass_obj
    def run(context: CliContext, name: str, capability: Capability, *, yes: bool) -> None:
        edit, is_revoked = Edit.begin(context), verb == "revoke"
        lost = editing.lost_hosts(edit.before, name, capability) if is_revoked else ()
        edit.apply(
            change(edit.before, name, capability),
            *capability_lines([capability]),
            *map(_describe_lost, lost),
            question="Revoke it?" if is_revoked else "Grant it?",
            nothing=f"{name} already has {capability}",
            yes=yes,
            name=name,
            capability=str(capability),
            secrets=[{"name": one.name, "hosts": list(one.hosts)} for one in lost],
        )


_add_verb("grant", editing.with_capability)
_add_verb("revoke", editing.without_capability)


def _describe_lost(lost: editing.LostHost) -> str:
    """Says in one sentence how a revoked host changes a secret."""
    name = one_line(lost.name)
    if lost.hosts:
        return f"Secret {name} is no longer sent there; {one_line(', '.join(lost.hosts))} still gets it."
    value = one_line(lost.value) if lost.value.startswith("${") else ""
    kept = f"; the secret behind {value} stays" if value else ", with its value"
    return f"Secret {name} is for this host alone: its entry is removed from the file{kept}."
