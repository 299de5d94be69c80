"""What a plugin may do: shown and agreed to by the operator, then written down, or not at all."""

import hashlib
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click

from gateway.cli.context import CliContext, data_dir, refuse
from gateway.cli.known import known
from gateway.cli.plugin_checking import Examined, examine
from gateway.cli.plugin_files import BadPlugin, Given, given, replace_file
from gateway.cli.plugin_place import Place, config_place
from gateway.cli.plugin_words import asked_lines, block, shown, tool_line
from gateway.config import editing
from gateway.config.plugins import BUNDLED
from gateway.config.problems import ConfigInvalid
from gateway.config.sections import BadCapability, parse_capability
from gateway.domain.errors import GatewayError
from gateway.domain.plugins import Capability
from gateway.store.opening import read_owner

# What an import needs that only the operator can name.
_OPEN = frozenset({"http:HOST", "store:NAME", "host_function:NAME"})


class NotAgreed(GatewayError):
    """Nothing was written."""

    code = "not_agreed"


class _CapabilityType(click.ParamType[Capability]):
    name = "CAP"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Capability:
        try:
            return parse_capability(str(value))
        except BadCapability as error:
            self.fail(str(error), param, ctx)


CAPABILITY = _CapabilityType()
agree = click.option("--yes", "-y", is_flag=True, help="Agree without being asked.")


@dataclass(frozen=True, slots=True)
class Plan:
    """What installing comes to."""

    found: Examined
    place: Place
    after: str
    asked: tuple[Capability, ...]
    new: tuple[Capability, ...]
    copy: Path | None  # where the file is to be; None: it is bundled
    configured: Mapping[str, Any] | None  # as the file has it; None: it is new

    @property
    def is_done(self) -> bool:
        return self.after == self.place.text and (self.copy is None or self.copy.is_file())

    @property
    def difference(self) -> str:
        return editing.difference(self.place.text, self.after, self.place.name)


@click.command()
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
    """Add a plugin to the configuration. You see what it asks for before you agree."""
    plan = planned(context, given(source).called(name), extra, agent)
    tell(context, _shown(plan))
    name = plan.found.given.name
    if not plan.is_done:
        agreed("Install it, with these capabilities?", yes=yes)
        installed(context, plan)
        tell(context, [f"{name} was added to {plan.place.name}. {effect(context)}"])
    if context.json:
        told = {
            "name": name,
            "file": str(plan.copy) if plan.copy else source,
            "sha256": plan.found.sha256,
            "capabilities": [str(one) for one in plan.asked],
            "new": [str(one) for one in plan.new],
            "config": str(plan.place.path),
            "changed": plan.after != plan.place.text,
        }
        click.echo(json.dumps(told, ensure_ascii=False))


def planned(
    context: CliContext, source: Given, extra: Iterable[Capability], agent: str | None
) -> Plan:
    """Raises BadPlugin for what would be refused at load, CannotEdit; ends with 78."""
    place = place_of(context)
    table = _configured(place.text, source)
    granted = tuple(_parsed(table.get("capabilities", ()))) if table else ()
    wanted = tuple(dict.fromkeys((*source.asked, *extra)))
    plugin = replace(source.plugin, capabilities=(*granted, *wanted))
    found = anyio.run(examine, data_dir(context), source, plugin)
    wanted = tuple(dict.fromkeys((*wanted, *_needed(found))))
    _require_loadable(found)
    new = tuple(one for one in wanted if one not in granted)
    copy = None
    if source.bundled is None:
        folder = data_dir(context) / "plugins" / "installed"
        copy = folder / f"{source.name}-{found.sha256[:12]}.wasm"
    after = _edited(place.text, found, copy, new, is_known=table is not None)
    if found.told.info.kind == "tool" and (table is None or agent is not None):
        after = editing.with_tool(after, agent, source.name)
    return Plan(found, place, after, wanted, new, copy, table)


def _configured(text: str, source: Given) -> Mapping[str, Any] | None:
    """The plugin of this name, if there is one. Raises BadPlugin for a name that is not free."""
    tables = tomllib.loads(text.removeprefix("\ufeff")).get("plugins", [])
    found = (one for one in tables if isinstance(one, dict) and one.get("name") == source.name)
    table = next(found, None)
    if source.bundled is None and source.name in known().bundled:
        raise BadPlugin(f"a bundled plugin is named {source.name}; choose another with --name")
    if table is not None and _bundled(table) != source.bundled:
        raise BadPlugin(f"another plugin is named {source.name}; choose another with --name")
    return table


def _bundled(table: Mapping[str, Any]) -> str | None:
    path = str(table.get("path", ""))
    return path.removeprefix(BUNDLED) if path.startswith(BUNDLED) else None


def _parsed(texts: Iterable[object]) -> Iterator[Capability]:
    for text in texts:
        try:
            yield parse_capability(str(text))
        except BadCapability:
            continue  # the configuration is not valid: saving it will say so


def _needed(found: Examined) -> Iterator[Capability]:
    """What it imports and cannot do without, although its author does not ask for it."""
    for need in found.lacking.values():
        if need not in _OPEN:
            yield parse_capability(need)


def _require_loadable(found: Examined) -> None:
    problems = list(found.problems)
    problems += [
        f"it imports {name}, which needs {need}: say which with --grant {need}"
        for name, need in found.lacking.items()
        if need in _OPEN
    ]
    if problems:
        raise BadPlugin(f"{found.given.file} is not installed: {shown('; '.join(problems))}")


def _edited(
    text: str, found: Examined, copy: Path | None, new: Sequence[Capability], *, is_known: bool
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


def _shown(plan: Plan) -> Iterator[str]:
    """All that an operator has to know to agree."""
    found, table = plan.found, plan.configured
    told = found.told.info
    yield f"{told.name} {shown(told.version or '')}   {told.kind} plugin"
    yield from block("describes", [f"(the author's words) {shown(told.description) or '-'}"])
    yield from block("tools", [tool_line(tool) for tool in told.tools])
    old = str(table.get("sha256", found.sha256)) if table else found.sha256
    is_same = old.lower() == found.sha256
    hashes = [found.sha256] if is_same else [f"new {found.sha256}", f"old {shown(old)}"]
    yield from block("sha256", hashes)
    yield from block("requests", list(asked_lines(plan.asked, plan.new if table else ())))
    if table is not None and plan.new:
        yield f"It requests more than it is granted: {', '.join(map(str, plan.new))}"
    yield plan.difference or f"{found.given.name} is installed already; nothing changed"


def installed(context: CliContext, plan: Plan) -> None:
    """The file first, then the configuration; if that fails, the file goes again."""
    copy = plan.copy
    if copy is None:
        save(context, plan.place, plan.after)
        return
    is_fresh = not copy.exists()
    try:
        _copied(plan.found.given.file, copy, plan.found.sha256)
        save(context, plan.place, plan.after)
    except BaseException:
        if is_fresh:
            copy.unlink(missing_ok=True)
        raise
    old = Path(str(plan.configured["path"])) if plan.configured else copy
    if old != copy and old.parent == copy.parent:
        old.unlink(missing_ok=True)


def _copied(source: Path, copy: Path, sha256: str) -> None:
    try:
        wasm = source.read_bytes()
        if hashlib.sha256(wasm).hexdigest() != sha256:
            raise BadPlugin(f"{source} changed in the meantime; try again")
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(copy, wasm)
    except OSError as error:
        raise BadPlugin(f"{copy} cannot be written: {error.strerror}") from error


@click.command()
@click.argument("name")
@click.argument("capability", metavar="CAP", type=CAPABILITY)
@agree
@click.pass_obj
def grant(context: CliContext, name: str, capability: Capability, *, yes: bool) -> None:
    """Grant a capability to a plugin."""
    _change(context, name, capability, editing.with_capability, "Grant it?", yes=yes)


@click.command()
@click.argument("name")
@click.argument("capability", metavar="CAP", type=CAPABILITY)
@agree
@click.pass_obj
def revoke(context: CliContext, name: str, capability: Capability, *, yes: bool) -> None:
    """Revoke a capability of a plugin."""
    _change(context, name, capability, editing.without_capability, "Revoke it?", yes=yes)


def _becomes(lost: editing.LostHost) -> str:
    """Of a secret, in one sentence."""
    if lost.hosts:
        return (
            f"Secret {shown(lost.name)} is not sent there any more; "
            f"it stays for {shown(', '.join(lost.hosts))}."
        )
    value = shown(lost.value) if lost.value.startswith("${") else ""
    kept = f"; what {value} leads to stays where it is" if value else ", and its value with it"
    return f"Secret {shown(lost.name)} is for this host alone: it is removed from the file{kept}."


def _change(
    context: CliContext,
    name: str,
    capability: Capability,
    edit: Callable[[str, str, Capability], str],
    question: str,
    *,
    yes: bool,
) -> None:
    place = place_of(context)
    is_less = edit is editing.without_capability
    lost = editing.lost_hosts(place.text, name, capability) if is_less else ()
    after = edit(place.text, name, capability)
    is_changed = after != place.text
    if is_changed:
        diff = editing.difference(place.text, after, place.name)
        tell(context, [*asked_lines([capability]), *map(_becomes, lost), diff])
        agreed(question, yes=yes)
        save(context, place, after)
        tell(context, [f"{place.name} was written. {effect(context)}"])
    else:
        tell(context, [f"{name} already has {capability}; nothing changed"])
    if context.json:
        told = {"name": name, "capability": str(capability), "config": str(place.path)}
        secrets = [{"name": one.name, "hosts": list(one.hosts)} for one in lost]
        click.echo(json.dumps({**told, "changed": is_changed, "secrets": secrets}))


def place_of(context: CliContext) -> Place:
    try:
        return config_place(context)
    except ConfigInvalid as error:
        refuse(context, error)


def save(context: CliContext, place: Place, after: str) -> None:
    try:
        editing.save(place.path, place.text, after, place.around)
    except ConfigInvalid as error:
        refuse(context, error)


def tell(context: CliContext, lines: Iterable[str]) -> None:
    """For whoever reads: with --json, stdout is for programs."""
    click.echo("\n".join(lines), err=context.json)


def agreed(question: str, *, yes: bool) -> None:
    """Raises NotAgreed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NotAgreed("nothing was written: not a terminal; rerun with --yes")
    if not click.confirm(question, default=False, err=True):
        raise NotAgreed("nothing was written")


def effect(context: CliContext) -> str:
    owner = read_owner(data_dir(context))
    if owner is None:
        return "It takes effect at the next `exogate run`."
    return f"It takes effect after a restart of the running gateway (process {owner.pid})."
