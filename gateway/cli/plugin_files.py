"""A plugin's file: what its author says of it, what a sandbox of this command's own finds, and both in words for a
terminal. What others wrote is escaped. No gateway has to run."""

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
from gateway.app.trial import BadPlugin, opened
from gateway.channels.adapters import Description
from gateway.cli.configuration import known
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
from gateway.tools.gate import ToolGate
from gateway.web.status import describe_account

ABOUT, WASM, CASES = "plugin.toml", "tool.wasm", "cases.json"
PluginName = Annotated[str, Field(pattern=PLUGIN_NAME, max_length=32)]
_NAME: TypeAdapter[str] = TypeAdapter(PluginName)


class _Table(BaseModel):
    """More keys may be there; they are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)


class Build(_Table):
    command: str
    needs: list[str] = []
    core: str | None = None  # what the command makes, if that is yet to become a component


class AboutPlugin(_Table):
    """plugin.toml: the words of the plugin's author."""

    name: PluginName
    version: str = ""
    kind: PluginKind = "tool"
    description: str = ""
    capabilities: list[str] = []  # exactly what it asks for
    asks: list[str] = []  # what only the operator can name: http:HOST
    sha256: str = ""
    build: Build | None = None

    @property
    def asked(self) -> tuple[Capability, ...]:
        """Those that are written as they should be; `problems` has the others."""
        return tuple(one for one in self._read() if not isinstance(one, BadCapability))

    @property
    def problems(self) -> tuple[str, ...]:
        wrong = (one for one in self._read() if isinstance(one, BadCapability))
        return tuple(f"{ABOUT}: {error}" for error in wrong)

    def _read(self) -> Iterator[Capability | BadCapability]:
        for text in self.capabilities:
            try:
                yield parse_capability(text)
            except BadCapability as error:
                yield error


@dataclass(frozen=True, slots=True)
class Given:
    """A plugin's file, and what its author says of it if that stands beside it."""

    name: str
    file: Path
    about: AboutPlugin | None = None
    bundled: str | None = None

    @property
    def asked(self) -> tuple[Capability, ...]:
        return self.about.asked if self.about else ()

    @property
    def plugin(self) -> PluginDef:
        """As it would be configured if it got what it asks for."""
        is_bundled = self.bundled is not None
        return PluginDef(self.name, self.file, self.asked, is_bundled=is_bundled)


def given(text: str) -> Given:
    """Raises BadPlugin."""
    if text.startswith(BUNDLED):
        return _bundled(text.removeprefix(BUNDLED))
    path = Path(text)
    file = path / WASM if path.is_dir() else path
    about = read_about(path) if path.is_dir() else _beside(path)
    if not file.is_file():
        build = f"; build it with `exogate plugin build {path}`" if about and about.build else ""
        raise BadPlugin(f"there is no file {quoted(str(file))}{build}")
    return Given(about.name if about else _slug(file.stem), file.absolute(), about)


def given_as(plugin: PluginDef) -> Given:
    """The file of a configured plugin."""
    bundled = plugin.name if plugin.is_bundled else None
    return Given(plugin.name, plugin.path, _beside(plugin.path), bundled)


def _beside(file: Path) -> AboutPlugin | None:
    is_there = file.name == WASM and (file.parent / ABOUT).is_file()
    return read_about(file.parent) if is_there else None


def _bundled(name: str) -> Given:
    bundled = known().bundled
    if name not in bundled:
        raise BadPlugin(f"no plugin {quoted(name)} is bundled; {choose(name, bundled)}")
    file = bundled[name].file
    return Given(name, file, read_about(file.parent), bundled=name)


def read_about(folder: Path) -> AboutPlugin:
    """Raises BadPlugin with everything that is wrong."""
    path = folder / ABOUT
    try:
        return AboutPlugin.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise BadPlugin(
            f"there is no {quoted(str(path))}; give a file, or a directory that has it"
        ) from error
    except (OSError, ValueError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


def problems_of(error: OSError | ValueError) -> str:
    """Where and what; never a value, which may be anything."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = error.errors(include_url=False, include_input=False, include_context=False)
    places = [".".join(map(str, one["loc"])) for one in found]
    said = [
        f"{at}: {one['msg']}" if at else one["msg"] for at, one in zip(places, found, strict=True)
    ]
    return "; ".join(said[:10])


def noted(text: str, sha256: str) -> str:
    """A plugin.toml with another sha256, all else as it was."""
    line = f'sha256 = "{sha256}"'
    text, count = re.subn(r"(?m)^sha256[ \t]*=.*$", line, text, count=1)
    return text if count else f"{line}\n{text}"


def replace_file(path: Path, content: bytes) -> None:
    """Whoever reads it finds the old content or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.replace(path)


def checked_name(name: str) -> str:
    """Raises BadPlugin."""
    try:
        return _NAME.validate_python(name)
    except ValidationError as error:
        rule = "up to 32 lower-case letters, digits, - and single _ inside"
        raise BadPlugin(f"a plugin cannot be named {quoted(name)}: use {rule}") from error


def _slug(stem: str) -> str:
    """The name of a file as the name of a plugin, as far as that goes."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:32] or "plugin"


# -- what a sandbox finds


@dataclass(frozen=True, slots=True)
class Examined:
    """All that is known of a file; what is wrong with it is in `problems`."""

    given: Given
    told: PluginAccount
    size: int = 0
    problems: tuple[str, ...] = ()
    adapter: Description | None = None  # what a channel adapter says of itself

    @property
    def sha256(self) -> str:
        return self.told.info.sha256 or ""

    @property
    def lacking(self) -> dict[str, str]:
        """Imports with the capability that each needs, of those that it was not examined with."""
        needs = self.told.needs.items()
        return {name: need for name, need in needs if need and name in self.told.lacking}

    def as_json(self) -> dict[str, object]:
        """As a running gateway tells it, without what only that can know."""
        shown: dict[str, object] = plain(describe_account(self.told, {}))
        for key in ("state", "reason", "capabilities", "used", "denied"):
            shown.pop(key, None)
        file = {"file": str(self.given.file), "size": self.size}
        return {"ok": not self.problems, **file, **shown, "problems": list(self.problems)}


async def examine(data_dir: Path, given: Given, configured: PluginDef | None = None) -> Examined:
    """`configured` says what it is granted, if that is not what its author asks for."""
    definition = replace(configured or given.plugin, path=given.file, sha256=None)
    async with opened(data_dir) as sandbox:
        try:
            return await _examined(sandbox, given, definition)
        except Uncompiled as error:
            return Examined(given, PluginAccount(info(definition, None)), problems=(str(error),))


async def _examined(sandbox: Sandbox, given: Given, definition: PluginDef) -> Examined:
    compiled = await sandbox.compiling.compile(given.file)
    inspection, needs = compiled.inspection, needed_capabilities(compiled.inspection)
    told = replace(info(definition, None), kind=inspection.kind, sha256=compiled.sha256)
    problems: list[str] = []
    adapter = None
    try:  # whatever it imports: what it is not granted is another question
        loaded = await sandbox.load(replace(definition, deny_unused=True))
        told, adapter = info(definition, loaded), loaded.described.adapter
        gate = ToolGate(sandbox.tools(loaded), schemas=SchemaChecks(), clock=SystemClock())
        problems += [f"tool {one.name}: {one.why}" for one in gate.refused]
    except PluginRefused as error:
        problems.append(error.problem)
    lacking = frozenset(missing_capabilities(definition, inspection))
    imports = {name: needs.get(name) for name in inspection.imports}
    touches = PluginAccount(told, inspection.guest, imports, lacking)
    size = (await to_thread.run_sync(given.file.stat)).st_size
    return Examined(given, touches, size, (*_unlike(given, touches), *problems), adapter)


def _unlike(given: Given, found: PluginAccount) -> Iterator[str]:
    """What plugin.toml says otherwise than the file."""
    about, told = given.about, found.info
    if about is None:
        return
    yield from about.problems
    if about.sha256 and about.sha256.lower() != told.sha256:
        yield f"its sha256 is {told.sha256}, plugin.toml says {about.sha256[:64]}; build it again"
    if about.kind != told.kind:
        yield f"it is a {told.kind} plugin; plugin.toml says {about.kind}"
    if told.version is not None and about.version != told.version:
        yield f"it describes version {told.version!r}; plugin.toml says {about.version[:64]!r}"


# -- in words

_FUNCTIONS = {"clock": "may look at the clock", "random": "may draw random bytes"}


def in_words(capability: Capability) -> str:
    match capability:
        case HttpGrant(origin):
            return f"may send requests to {origin}"
        case StoreGrant(namespace, is_shared=is_shared, is_read_only=is_read_only):
            what = "read" if is_read_only else "keep texts in"
            whose = "one for all persons" if is_shared else "each person has another"
            return f"may {what} a store of its own, {namespace} ({whose})"
        case FunctionGrant(name):
            return _FUNCTIONS.get(name, f"may call the operator's host function {name}")


def asked_lines(asked: Iterable[Capability], new: Iterable[Capability] = ()) -> Iterator[str]:
    fresh = set(new)
    for capability in asked:
        mark = "   NEW" if capability in fresh else ""
        yield f"{capability} — {in_words(capability)}{mark}"


def import_lines(imports: Mapping[str, str | None]) -> Iterator[str]:
    wide = max((len(one_line(name)) for name in imports), default=0)
    for name, need in imports.items():
        yield f"{one_line(name):{wide}}   {need or _unneeded(name)}"


def _unneeded(name: str) -> str:
    if name.startswith("wasi"):
        return "served here: no files, no network; clock and random if granted"
    return "always allowed"


def tool_line(tool: ToolSpec) -> str:
    """As a signature; `?` marks what may be left out."""
    schema = json.loads(tool.parameters)
    fields, needed = schema.get("properties"), schema.get("required")
    needed = needed if isinstance(needed, list) else []
    names = fields if isinstance(fields, dict) else {}
    given = ", ".join(f"{name}{'' if name in needed else '?'}" for name in names)
    return f"{one_line(tool.name)}({one_line(given)})   {one_line(tool.description)}"


def block(title: str, lines: Sequence[str]) -> Iterator[str]:
    """A title in the first column, what belongs to it in the second."""
    for number, line in enumerate(lines or ["none"]):
        yield f"  {title if number == 0 else '':12} {line}"
