"""Runs the recorded cases of a plugin in a sandbox whose host functions give the answers of the case."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_json

from gateway.app.doctor import BadPlugin, open_trial_sandbox
from gateway.cli.plugin_files import (
    PluginSource,
    problems_of,
)
from gateway.domain.errors import Denied
from gateway.domain.plugins import Capability, FunctionGrant, HttpGrant, PluginDef, StoreGrant
from gateway.domain.ports import Fetched, FetchGrant, FetchRequest, HostFunction, PluginSpace
from gateway.host.clock import SystemClock
from gateway.outbound.guard import check_granted, read_headers, read_method, read_url
from gateway.sandbox.host_functions import Host
from gateway.sandbox.plugins import Sandbox, missing_capabilities

PERSON = "tester"
LAST_MS = 253_402_300_799_999  # the end of the year 9999, the last time of `datetime`
_LONGEST_DIFF = 60


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrialCall(_Table):
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


class ScriptedAnswer(_Table):
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


class FunctionAnswer(_Table):
    input: Any
    output: str


class Case(_Table):
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


class Cases(_Table):
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
