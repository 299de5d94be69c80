"""Plugin files: the author's plugin.toml, an examination in a sandbox of this process, the text of both for a terminal,
and the recorded cases. Text of others is escaped. No gateway has to run."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from pydantic import (
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import to_json

from gateway.api.declarations import plain
from gateway.app.doctor import BadPlugin, open_trial_sandbox
from gateway.channels.adapters import Description
from gateway.cli.configuration import known_names
from gateway.config.plugins import BUNDLED
from gateway.config.sections import PLUGIN_NAME, BadCapability, parse_capability
from gateway.domain.errors import Denied
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
from gateway.domain.ports import Fetched, FetchGrant, FetchRequest, HostFunction, PluginSpace
from gateway.domain.text import choose, one_line, quoted
from gateway.host.clock import SystemClock
from gateway.outbound.guard import check_granted, read_headers, read_method, read_url
from gateway.sandbox.cache import Uncompiled
from gateway.sandbox.host_functions import Host
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

# --- plugins -------------------------------------------------------------------------------------
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


# --- recorded cases ------------------------------------------------------------------------------
PERSON = "tester"
LAST_MS = 253_402_300_799_999  # the end of the year 9999, the last time of `datetime`
_LONGEST_DIFF = 60


class _CaseTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrialCall(_CaseTable):
    """A call of a tool, or of an export of a channel adapter."""

    tool: str | None = None
    arguments: dict[str, Any] = {}
    export: str = "handle-tool-call"
    input: Any = None
    config: dict[str, Any] = {}
    session: str = "session-1"

    @property
    def text(self) -> str:
        """The input of the export, as JSON."""
        value: object = self.input
        if self.tool is not None:
            value = {
                "tool": self.tool,
                "arguments": self.arguments,
                "call_id": "call-1",
                "session": {"id": self.session},
                "config": self.config,
            }
        return to_json(value).decode()


class ScriptedAnswer(_CaseTable):
    """The answer to exactly this request."""

    method: str
    url: str
    status: int = 200
    headers: dict[str, str] = {}
    body: str = ""
    body_base64: Base64Bytes = b""

    def __call__(self, ask: FetchRequest) -> Fetched | None:
        if (ask.method, ask.url) != (self.method, self.url):
            return None
        headers = tuple((name.lower(), value) for name, value in self.headers.items())
        return Fetched(self.status, headers, self.body.encode() or self.body_base64)


class FunctionAnswer(_CaseTable):
    input: Any
    output: str


class Case(_CaseTable):
    """One call, the answers of the host, and the expected result."""

    name: str
    call: TrialCall
    expect: Any = None
    expect_contains: str | None = None
    expect_error: str | None = None
    clock_ms: int = Field(0, ge=0, le=LAST_MS)
    http: list[ScriptedAnswer] = []
    functions: dict[str, list[FunctionAnswer]] = {}
    store: dict[str, dict[str, str]] = {}

    @model_validator(mode="after")
    def _expects_something(self) -> "Case":
        if len({"expect", "expect_contains", "expect_error"} & self.model_fields_set) != 1:
            raise ValueError("give one of expect, expect_contains, expect_error")
        return self


class Cases(_CaseTable):
    cases: list[Case] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class CaseVerdict:
    """The result of a case; `problem` holds the lines of the difference from the expected result."""

    name: str
    wall_ms: float
    fuel: int
    problem: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        problem = "\n".join(self.problem) or None
        return {
            "name": self.name,
            "ok": not self.problem,
            "wall_ms": self.wall_ms,
            "fuel": self.fuel,
            "problem": problem,
        }


def read_cases(path: Path) -> tuple[Case, ...]:
    """Reads the cases. Raises BadPlugin with all problems."""
    try:
        return tuple(Cases.model_validate_json(path.read_bytes()).cases)
    except FileNotFoundError as error:
        raise BadPlugin(f"there is no {path}; name the recorded cases with --case") from error
    except (OSError, ValidationError) as error:
        raise BadPlugin(f"{path} cannot be used: {problems_of(error)}") from error


async def try_all(
    data_dir: Path, source: PluginSource, cases: Sequence[Case]
) -> tuple[tuple[Capability, ...], list[CaseVerdict]]:
    """Runs the cases over one plugin store. Returns the granted capabilities, and the result of each case.

    Raises PluginRefused, and BadPlugin if neither plugin.toml nor a case names a needed grant.
    """
    async with open_trial_sandbox(data_dir) as sandbox:
        plugin = source.plugin
        compiled = await sandbox.compiling.compile(source.file)
        lacking = set(missing_capabilities(plugin, compiled.inspection).values())
        granted = (*plugin.capabilities, *dict.fromkeys(_implied(lacking, cases)))
        plugin = replace(plugin, capabilities=granted)
        for name, need in missing_capabilities(plugin, compiled.inspection).items():
            raise BadPlugin(
                f"it imports {name}, which needs {need}: name it in plugin.toml or in a case"
            )
        return granted, [await _try(sandbox, plugin, case) for case in cases]


def _implied(lacking: set[str], cases: Iterable[Case]) -> Iterator[Capability]:
    """Yields capabilities that the file needs, its plugin.toml lacks, and the cases use."""
    exact = {"host_function:clock": "clock", "host_function:random": "random"}
    yield from (FunctionGrant(name) for need, name in exact.items() if need in lacking)
    for case in cases:
        if "http:HOST" in lacking:
            yield from (HttpGrant(read_url(one.url).origin) for one in case.http)
        if lacking & {"store:NAME", "store:vars"}:
            yield from map(StoreGrant, case.store)
        for name in case.functions:
            if lacking & {"host_function:NAME", f"host_function:{name}"}:
                yield FunctionGrant(name)


async def _try(sandbox: Sandbox, plugin: PluginDef, case: Case) -> CaseVerdict:
    plugin = replace(plugin, config=case.call.config)
    world = _CaseHost(case)
    deps = replace(
        sandbox.deps, fetch=world, clock=_CaseClock(case.clock_ms), functions=world.functions
    )
    own = replace(sandbox, deps=deps)
    loaded = await own.load(plugin)
    for namespace, values in case.store.items():
        grant = loaded.plugin.store_grant(namespace)
        person = None if grant is not None and grant.is_shared else PERSON
        for key, value in values.items():
            await deps.store.set(PluginSpace(loaded.plugin.name, namespace, person), key, value)
    host = Host(deps, loaded.plugin, PERSON)
    outcome = await own.run(loaded, case.call.export, case.call.text, host)
    problem = tuple(_problem(case, outcome.status, outcome.text))
    return CaseVerdict(case.name, outcome.wall_ms, outcome.fuel, problem)


class _CaseHost:
    """The host functions of a case: gives its recorded answers and denies all other requests."""

    def __init__(self, case: Case) -> None:
        self._answers = case.http
        self.functions: Mapping[str, HostFunction] = {
            name: _Function(name, answers) for name, answers in case.functions.items()
        }

    async def fetch(self, ask: FetchRequest, leave: FetchGrant) -> Fetched:
        """Checks the request like the real client."""
        check_granted(read_url(ask.url).origin, leave)
        read_method(ask.method)
        read_headers(ask.headers)
        for answer in self._answers:
            if found := answer(ask):
                return found
        raise Denied(f"the case has no answer to {ask.method} {ask.url}")


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    answers: Iterable[FunctionAnswer]

    async def __call__(self, text: str, plugin: PluginDef) -> str:
        asked = json.loads(text)
        for known in self.answers:
            if known.input == asked:
                return known.output
        raise Denied(f"the case has no answer of {self.name} to {text[:200]}")


class _CaseClock(SystemClock):
    """A clock that stands still at the time of the case."""

    def __init__(self, ms: int) -> None:
        self._now = datetime.fromtimestamp(ms / 1000, UTC)

    def now(self) -> datetime:
        return self._now


def _problem(case: Case, status: str, text: str) -> Iterator[str]:
    """Yields the differences from the expected result."""
    if case.expect_error is not None:
        if status != "err":
            yield f"expected an error with {case.expect_error!r}, got: {text}"
        elif case.expect_error not in text:
            yield f"expected an error with {case.expect_error!r}"
            yield f"got the error {text!r}"
    elif status != "ok":
        yield f"it refused: {text}" if status == "err" else f"it gave no answer ({status}): {text}"
    elif case.expect_contains is not None:
        if case.expect_contains not in text:
            yield f"expected something with {case.expect_contains!r}"
            yield f"got {text!r}"
    elif case.expect not in (_read(text), text):
        yield from _difference(case.expect, _read(text))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _difference(expected: object, got: object) -> Iterator[str]:
    old, new = (
        json.dumps(one, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
        for one in (expected, got)
    )
    lines = list(difflib.unified_diff(old, new, "expected", "got", lineterm=""))
    yield from lines[:_LONGEST_DIFF]
    if len(lines) > _LONGEST_DIFF:
        yield f"… and {len(lines) - _LONGEST_DIFF} more lines"
