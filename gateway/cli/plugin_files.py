"""Plugin files: the author's plugin.toml, an examination in a sandbox of this process, and the text of both for a
terminal. Text of others is escaped. No gateway has to run."""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.api.declarations import plain
from gateway.app.doctor import BadPlugin, open_trial_sandbox
from gateway.channels.adapters import Description
from gateway.cli.configuration import known_names
from gateway.config.plugins import BUNDLED
from gateway.config.sections import PLUGIN_NAME, BadCapability, parse_capability
from gateway.domain.ids import PluginKind
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import (
    Capability,
    FunctionGrant,
    HttpGrant,
    PluginAccount,
    PluginDef,
    PluginInfo,
    StoreGrant,
)
from gateway.domain.text import choose, one_line, quoted
from gateway.host.clock import SystemClock
from gateway.sandbox.cache import Uncompiled
from gateway.sandbox.plugins import (
    PluginRefused,
    Sandbox,
    info,
    missing_capabilities,
    needed_capabilities,
)
from gateway.schemas import SchemaChecks
from gateway.tools import ToolGate
from gateway.web.status import describe_account

ABOUT, WASM, CASES = "plugin.toml", "tool.wasm", "cases.json"
PluginName = Annotated[str, Field(pattern=PLUGIN_NAME, max_length=32)]
_NAME: TypeAdapter[str] = TypeAdapter(PluginName)


class _Table(BaseModel):
    """A table that may have more keys, which are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class Build(_Table):
    command: str
    needs: list[str] = []
    core: str | None = None  # the core module that the command builds, to be made a component


class AboutPlugin(_Table):
    """plugin.toml, as the author of the plugin wrote it."""

    name: PluginName
    version: str = ""
    kind: PluginKind = "tool"
    description: str = ""
    capabilities: list[str] = []  # the capabilities that it requests
    asks: list[str] = []  # capabilities that only the operator can complete: http:HOST
    sha256: str = ""
    build: Build | None = None

    @property
    def requested(self) -> tuple[Capability, ...]:
        """The valid capabilities; `problems` describes the others."""
        return tuple(one for one in self._parse() if not isinstance(one, BadCapability))

    @property
    def problems(self) -> tuple[str, ...]:
        bad = (one for one in self._parse() if isinstance(one, BadCapability))
        return tuple(f"{ABOUT}: {error}" for error in bad)

    def _parse(self) -> Iterator[Capability | BadCapability]:
        for text in self.capabilities:
            try:
                yield parse_capability(text)
            except BadCapability as error:
                yield error


@dataclass(frozen=True, slots=True)
class PluginSource:
    """The file of a plugin, with its plugin.toml if there is one."""

    name: str
    file: Path
    about: AboutPlugin | None = None
    bundled: str | None = None

    @property
    def requested(self) -> tuple[Capability, ...]:
        return self.about.requested if self.about else ()

    @property
    def plugin(self) -> PluginDef:
        """The definition of the plugin with all capabilities that it requests."""
        is_bundled = self.bundled is not None
        return PluginDef(self.name, self.file, self.requested, is_bundled=is_bundled)


def find_source(text: str) -> PluginSource:
    """Finds a plugin by `bundled:NAME`, its file or its directory. Raises BadPlugin."""
    if text.startswith(BUNDLED):
        return _find_bundled(text.removeprefix(BUNDLED))
    path = Path(text)
    file = path / WASM if path.is_dir() else path
    about = read_about(path) if path.is_dir() else _beside(path)
    if not file.is_file():
        hint = "give a .wasm file, a plugin directory, or bundled:NAME"
        if about and about.build:
            hint = f"build it with `exogate plugin build {path}`"
        raise BadPlugin(f"there is no file {quoted(str(file))}; {hint}")
    return PluginSource(about.name if about else _slug(file.stem), file.absolute(), about)


def configured_source(plugin: PluginDef) -> PluginSource:
    """Returns the source of a configured plugin."""
    bundled = plugin.name if plugin.is_bundled else None
    return PluginSource(plugin.name, plugin.path, _beside(plugin.path), bundled)


def _beside(file: Path) -> AboutPlugin | None:
    is_there = file.name == WASM and (file.parent / ABOUT).is_file()
    return read_about(file.parent) if is_there else None


def _find_bundled(name: str) -> PluginSource:
    bundled = known_names().bundled
    if name not in bundled:
        raise BadPlugin(f"no plugin {quoted(name)} is bundled; {choose(name, bundled)}")
    file = bundled[name].file
    return PluginSource(name, file, read_about(file.parent), bundled=name)


def read_about(folder: Path) -> AboutPlugin:
    """Reads plugin.toml. Raises BadPlugin with all problems."""
    path = folder / ABOUT
    try:
        return AboutPlugin.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadPlugin(
            f"there is no {quoted(str(path))}; give a .wasm file, or a directory with {ABOUT}"
        ) from error
    except (OSError, ValueError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def problems_of(error: OSError | ValueError) -> str:
    """Lists the problems with their places; leaves out the values, which may be untrusted."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [".".join(map(str, one["loc"])) for one in found]
    texts = [
        f"{at}: {one['msg']}" if at else one["msg"] for at, one in zip(places, found, strict=True)
    ]
    return "; ".join(texts[:10])


def with_sha256(text: str, sha256: str) -> str:
    """Replaces or adds the sha256 in the text of a plugin.toml."""
    line = f'sha256 = "{sha256}"'
    text, count = re.subn(r"(?m)^sha256[ \t]*=.*$", line, text, count=1)
    return text if count else f"{line}\n{text}"


def replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically: a reader finds the old content or the new."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def checked_name(name: str) -> str:
    """Returns the name. Raises BadPlugin if a plugin cannot have it."""
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        rule = "up to 32 lower-case letters, digits, - and single _ inside"
        raise BadPlugin(f"{quoted(name)} is not a plugin name: use {rule}") from error


def _slug(stem: str) -> str:
    """Makes the name of a plugin from the name of its file."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:32] or "plugin"


# -- the examination in a sandbox


@dataclass(frozen=True, slots=True)
class PluginReport:
    """The facts and problems that an examination finds. `adapter` describes a channel adapter."""

    source: PluginSource
    account: PluginAccount
    size: int = 0
    problems: tuple[str, ...] = ()
    adapter: Description | None = None

    @property
    def sha256(self) -> str:
        return self.account.info.sha256 or ""

    @property
    def lacking(self) -> dict[str, str]:
        """Each import that is not granted, with the capability that it needs."""
        needs = self.account.needs.items()
        return {name: need for name, need in needs if need and name in self.account.lacking}

    def as_json(self) -> dict[str, object]:
        """The fields of `plugin.inspect`, without those that only a running gateway knows."""
        shown: dict[str, object] = plain(describe_account(self.account, {}))
        for key in ("state", "reason", "capabilities", "used", "denied"):
            shown.pop(key, None)
        file = {"file": str(self.source.file), "size": self.size}
        return {"ok": not self.problems, **file, **shown, "problems": list(self.problems)}


async def examine(
    data_dir: Path, source: PluginSource, configured: PluginDef | None = None
) -> PluginReport:
    """Loads a plugin into a sandbox, with the grants of `configured` or else those that it requests."""
    definition = replace(configured or source.plugin, path=source.file, sha256=None)
    async with open_trial_sandbox(data_dir) as sandbox:
        try:
            return await _examine(sandbox, source, definition)
        except Uncompiled as error:
            account = PluginAccount(info(definition, None))
            return PluginReport(source, account, problems=(str(error),))


async def _examine(sandbox: Sandbox, source: PluginSource, definition: PluginDef) -> PluginReport:
    compiled = await sandbox.compiling.compile(source.file)
    inspection, needs = compiled.inspection, needed_capabilities(compiled.inspection)
    about = replace(info(definition, None), kind=inspection.kind, sha256=compiled.sha256)
    problems: list[str] = []
    adapter = None
    try:  # deny_unused lets it load without its grants; `lacking` lists the missing ones
        loaded = await sandbox.load(replace(definition, deny_unused=True))
        about, adapter = info(definition, loaded), loaded.described.adapter
        gate = ToolGate(sandbox.tools(loaded), schemas=SchemaChecks(), clock=SystemClock())
        problems += [f"tool {one.name}: {one.why}" for one in gate.refused]
    except PluginRefused as error:
        problems.append(error.problem)
    lacking = frozenset(missing_capabilities(definition, inspection))
    imports = {name: needs.get(name) for name in inspection.imports}
    account = PluginAccount(about, inspection.guest, imports, lacking)
    size = (await to_thread.run_sync(source.file.stat)).st_size
    return PluginReport(source, account, size, (*_mismatches(source, about), *problems), adapter)


def _mismatches(source: PluginSource, found: PluginInfo) -> Iterator[str]:
    """Yields the differences between plugin.toml and the file."""
    about = source.about
    if about is None:
        return
    yield from about.problems
    if about.sha256 and about.sha256.lower() != found.sha256:
        yield f"its sha256 is {found.sha256}, plugin.toml says {about.sha256[:64]}; build it again"
    if about.kind != found.kind:
        yield f"it is a {found.kind} plugin; plugin.toml says {about.kind}"
    if found.version is not None and about.version != found.version:
        yield f"it describes version {found.version!r}; plugin.toml says {about.version[:64]!r}"


# -- text for a terminal

_FUNCTIONS = {"clock": "may read the clock", "random": "may read random bytes"}


def describe_capability(capability: Capability) -> str:
    match capability:
        case HttpGrant(origin):
            return f"may send requests to {origin}"
        case StoreGrant(namespace, is_shared=is_shared, is_read_only=is_read_only):
            what = "read" if is_read_only else "read and write"
            whose = "shared by all people" if is_shared else "separate for each person"
            return f"may {what} its own store {namespace} ({whose})"
        case FunctionGrant(name):
            return _FUNCTIONS.get(name, f"may call the operator's host function {name}")


def capability_lines(
    capabilities: Iterable[Capability], new: Iterable[Capability] = ()
) -> Iterator[str]:
    fresh = set(new)
    for capability in capabilities:
        mark = "   NEW" if capability in fresh else ""
        yield f"{capability}   {describe_capability(capability)}{mark}"


def import_lines(imports: Mapping[str, str | None]) -> Iterator[str]:
    wide = max((len(one_line(name)) for name in imports), default=0)
    for name, need in imports.items():
        is_wasi = name.startswith("wasi")
        free = "no files, no network; clock and random if granted" if is_wasi else "always allowed"
        yield f"{one_line(name):{wide}}   {need or free}"


def tool_line(tool: ToolSpec) -> str:
    """Renders a tool as a signature; `?` marks optional parameters."""
    schema = json.loads(tool.parameters)
    fields, needed = schema.get("properties"), schema.get("required")
    needed = needed if isinstance(needed, list) else []
    names = fields if isinstance(fields, dict) else {}
    shown = ", ".join(f"{name}{'' if name in needed else '?'}" for name in names)
    return f"{one_line(tool.name)}({one_line(shown)})   {one_line(tool.description)}"


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines, with the title in front of the first."""
    for number, line in enumerate(lines or ["none"]):
        yield f"  {title if number == 0 else '':12} {line}"
