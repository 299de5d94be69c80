"""Checks of an installation: what a start would refuse, the machine and its files, and what only a running gateway
can check: backups, tokens, budgets, pending restarts.

Each check yields findings with the command that corrects them, and changes nothing. A trial of texts, plugins and
channels stores nothing and connects to nothing.
"""

import errno
import math
import os
import re
import resource
import shlex
import shutil
import socket
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio
from anyio import to_thread

from gateway.agent.leaves import Plans
from gateway.api import operating as api
from gateway.api.declarations import build
from gateway.api.spending import BudgetRow
from gateway.app.generation import agent_places, decision_trees, souls_and_plans, text_places
from gateway.channels.adapter_json import read_description
from gateway.channels.room import require_openable
from gateway.channels.webhooks import ChannelRefused
from gateway.config.problems import (
    Code,
    ConfigFinding,
    ConfigInvalid,
    ConfigProblem,
    KeyPath,
    dotted,
)
from gateway.config.values import GatewayConfig
from gateway.control.trees.reader import TreeInvalid
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Limit
from gateway.domain.errors import GatewayError, SoulUnreadable, StoreRefused, StoreUnavailable
from gateway.domain.model import is_loopback
from gateway.domain.ports import Clock
from gateway.domain.tokens import CreatedToken
from gateway.host.clock import SystemClock
from gateway.host.files import KEY
from gateway.host.logs import logging_to
from gateway.memory.souls import LONG_SOUL_TOKENS, Souls
from gateway.providers.prices import DEFAULT_MODELS, is_listed
from gateway.sandbox.cache import reuse_compiled
from gateway.sandbox.host_functions import HostDeps
from gateway.sandbox.plugins import NoFetch, Plugins, Sandbox, open_sandbox
from gateway.store.inspection import check_database
from gateway.store.opening import LOCK, open_memory, read_owner
from gateway.store.sqlite import FILE

# --- refusals ------------------------------------------------------------------------------------
Refusal = tuple[KeyPath, str, str]  # the place in the configuration, the name, and the reason


class BadPlugin(GatewayError):
    """The given file or folder is not a usable plugin."""

    code = "bad_plugin"


@asynccontextmanager
async def open_trial_sandbox(data_dir: Path) -> AsyncIterator[Sandbox]:
    """Opens a sandbox without network and store. Compiled code goes to the cache of the data directory."""
    clock = SystemClock()
    async with open_memory(clock) as stores:
        deps = HostDeps(NoFetch(), stores.tools, clock, read_description)
        make = partial(data_dir.mkdir, mode=0o700, parents=True, exist_ok=True)
        try:
            await to_thread.run_sync(make)
            async with open_sandbox(data_dir / "plugins", deps) as sandbox:
                yield sandbox
        except OSError as error:
            fix = "choose another --data-dir"
            raise BadPlugin(f"{data_dir} cannot be used: {error.strerror}; {fix}") from error


def load_for_trial(config: GatewayConfig) -> Sequence[Refusal]:
    """Loads all plugins into a temporary folder. Returns the plugins and channels that a start would refuse."""
    known = config.gateway.data_dir / "plugins"

    async def load(folder: str) -> Sequence[Refusal]:
        found = Plugins()
        files = [one.path for one in config.plugins]
        await to_thread.run_sync(reuse_compiled, known, Path(folder) / "plugins", files)
        async with open_trial_sandbox(Path(folder)) as sandbox:
            await found.load(sandbox, config.plugins)
        return [*find_refusals(config, found, SystemClock())]

    with (
        TemporaryDirectory(prefix="exogate-") as folder,
        logging_to(sys.stderr, "critical", "auto"),
    ):
        return anyio.run(load, folder)


def find_refusals(config: GatewayConfig, found: Plugins, clock: Clock) -> Iterator[Refusal]:
    """Yields refused plugins, then refused channels; a channel of a refused plugin is left out."""
    adapters = {one.plugin.name: one for one in found.adapters}
    bad = {one.name: one.why or "" for one in found.infos if one.state == "refused"}
    for index, name in enumerate(one.name for one in config.plugins):
        if name in bad:
            key = ("sha256",) if "sha256" in bad[name] else ()
            yield ("plugins", index, *key), name, bad[name]
    yield from _refused_channels(config, adapters, bad, clock)


def _refused_channels(
    config: GatewayConfig, adapters: Mapping[str, Any], bad: Collection[str], clock: Clock
) -> Iterator[Refusal]:
    for channel in config.channels:
        adapter, why = adapters.get(channel.plugin), ""
        try:
            if adapter is not None:
                require_openable(channel, adapter.description, clock)
            elif channel.plugin not in bad:
                why = f"plugin {channel.plugin} is not a channel adapter"
        except ChannelRefused as error:
            why = error.problem
        if why:
            yield ("channels", channel.name), channel.name, why


async def find_unreadable(*texts: Souls | Plans) -> Mapping[str, str]:
    """Reads all files. Returns the error of each file that cannot be used."""
    bad: dict[str, str] = {}
    for path, read in ((path, each.read) for each in texts for path in each.files):
        try:
            await read(path)
        except (SoulUnreadable, TreeInvalid) as error:
            bad[path] = str(error).partition("\n")[0]
    return bad


# --- checks --------------------------------------------------------------------------------------
LOW_DISK_BYTES = 500 * 1024 * 1024
SPARE_FILES = 100  # beyond one for each connection
DEFAULT_DAILY = 200_000
PORTS = 100  # to try for a free one
_KEYLESS = re.compile(r'no key for provider "([^"]+)"')
_NEEDS = re.compile(r"needs the capability ([^;\s]+);")
_MEANT = re.compile(r'did you mean "?([\w:.-]+)"?\?')
_EXOGATE = re.compile(r"(?:^|(?<= && ))exogate ")
_LACKS = re.compile(r"config\.(\w+) is missing")

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem. `fix`: a shell command. `place`: the key of the configuration to correct. `is_safe`: the command changes
    only file modes."""

    id: str
    severity: Severity
    path: str
    message: str
    fix: str
    place: KeyPath = ()
    is_safe: bool = False

    @property
    def report(self) -> api.DoctorFinding:
        return build(api.DoctorFinding, self)

    def render(self) -> str:
        mark = "✗" if self.severity == "error" else "⚠"
        return f"{mark} {self.path}: {self.message}  [{self.id}]\n  → {self.fix}"


Check = Callable[[GatewayConfig], Iterable[Finding]]


def chmod_command(mode: str, path: Path | str) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"


def set_command(place: KeyPath, value: object) -> str:
    """Returns the command that sets a key of the configuration."""
    return f"exogate config set {shlex.quote(dotted(place))} {shlex.quote(str(value))} --yes"


def unset_command(place: KeyPath) -> str:
    return f"exogate config unset {shlex.quote(dotted(place))} --yes"


def secret_command(place: KeyPath) -> str:
    """Returns the command that moves a secret to its own file, and asks for a missing secret."""
    return f"exogate config set {shlex.quote(dotted(place))} --secret --yes"


def edit_command(path: Path | str, line: int = 1) -> str:
    return f"${{EDITOR:-vi}} +{line} {shlex.quote(str(path))}"


# -- the configuration


def problems(error: ConfigInvalid, path: Path | None) -> Iterator[Finding]:
    """Yields the problems of an invalid configuration."""
    for one in error.problems:
        where = f"{one.source}:{one.line}:{one.column}" if one.line else one.source
        text = f"{one.key}: {one.message}" if one.key else one.message
        fix = _fix_problem(one, path)
        text = text if fix == one.fix else f"{text}; {one.fix}"
        is_safe = fix.startswith("chmod")
        yield Finding(str(one.code), "error", where, text, fix, is_safe=is_safe)


def _fix_problem(one: ConfigProblem, path: Path | None) -> str:
    if one.fix.startswith("chmod "):
        return one.fix
    if one.code == Code.OPEN_DOOR:
        return set_command(("gateway", "bind"), "127.0.0.1")
    command = _fix_value(one) if one.key and one.line else None
    return command or edit_command(path or one.source, one.line or 1)


def _fix_value(one: ConfigProblem) -> str | None:
    """Returns the command that corrects a value of the file, or None."""
    key, meant = shlex.quote(one.key), _MEANT.search(one.fix)
    keyless = _KEYLESS.search(one.message)
    match one.code:
        case Code.NOT_A_CHOICE | Code.UNKNOWN_NAME if meant:
            return f"exogate config set {key} {meant[1]} --yes"
        case Code.UNKNOWN_KEY | Code.OUT_OF_RANGE:
            return f"exogate config unset {key} --yes"
        case Code.BAD_SECRET_FILE:
            return f"exogate config set {key} --secret --yes"
        case Code.NO_KEY if keyless:
            return secret_command(("providers", keyless[1], "api_key"))
    return None


def config_notices(config: GatewayConfig) -> Iterator[Finding]:
    for one in config.notices:
        fix = one.fix if one.fix.startswith("chmod ") else _fix_notice(one, config)
        key = one.key or str(config.origin)
        is_safe = fix.startswith("chmod ")
        yield Finding(one.code, "warning", key, one.message, fix, one.path, is_safe)


def _fix_notice(one: ConfigFinding, config: GatewayConfig) -> str:
    match one.code:
        case "literal-secret" | "key-kept-back":
            return secret_command(one.path)
        case "unused-secret" if one.path[-1] == "api_key":
            return secret_command(one.path)
        case "several-keys":
            return set_command(one.path, config.agents[0].provider)
        case "bindings.shadowed" | "unknown-channel":
            return unset_command(one.path[:2])
        case "plugin-disabled" | "unused-secret":
            return unset_command(one.path)
        case "no-mentions":
            return set_command((*one.path, "require_mention"), "false")
        case "context-clamped":
            return set_command(one.path, one.fix.partition(" ")[0])
    return edit_command(config.origin or "config.toml")


def unlimited(config: GatewayConfig) -> Iterator[Finding]:
    """Finds an agent that uses a paid provider without any budget."""
    budgets = config.budgets
    if any(one != Limit() for one in (budgets.daily, budgets.monthly)):
        return
    for agent in config.agents:
        bound = budgets.agents.get(agent.id, budgets.per_agent)
        asked = [config.providers.get(link.provider) for link in agent.chain]
        if bound == Limit() and any(one and not _is_local(one.base_url) for one in asked):
            where: KeyPath = ("budgets", "daily")
            text = f"agent {agent.id} has no budget at provider {agent.provider}"
            fix = set_command(where, DEFAULT_DAILY)
            yield Finding("budget.unlimited", "warning", dotted(where), text, fix, where)
            return


def _is_local(base_url: str) -> bool:
    return is_loopback(urlsplit(base_url).hostname or "")


# -- the machine


def claims(_config: GatewayConfig) -> Iterator[Finding]:
    """Finds other distributions whose package `gateway` silently overwrites our files."""
    owners = sorted({one.name for one in metadata.distributions() if _has_package_gateway(one)})
    for other in (owner for owner in owners if owner != "exogate"):
        pip = f"{shlex.quote(sys.executable)} -m pip"
        yield Finding(
            "install.package",
            "error",
            str(Path(sys.prefix)),
            f"the distribution {other!r} installs a package `gateway` too; files may be overwritten",
            f"{pip} uninstall --yes {other} && {pip} install --force-reinstall --no-deps exogate",
        )


def _has_package_gateway(distribution: metadata.Distribution) -> bool:
    # importlib's packages_distributions parses all metadata of all distributions.
    listed = distribution.read_text("top_level.txt") or distribution.read_text("RECORD") or ""
    return re.search(r"^gateway(/|$)", listed, re.M) is not None


def data_dir(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    if not folder.exists():
        return
    where = str(folder)
    if folder.stat().st_mode & 0o077:
        text = "other users of this machine can read the data directory"
        yield Finding(
            "data.mode", "warning", where, text, chmod_command("700", folder), is_safe=True
        )
    for path in (folder / KEY, folder / LOCK):
        if path.exists() and path.stat().st_mode & 0o077:
            text = f"other users of this machine can read {path.name}"
            fix = chmod_command("600", path)
            yield Finding("data.mode", "warning", str(path), text, fix, is_safe=True)
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        text = f"only {free // 1024**2} MiB are free; a full disk stops the gateway from accepting"
        fix = f"du -xk {shlex.quote(where)} | sort -n | tail"
        yield Finding("data.disk", "warning", where, text, fix)


def store(config: GatewayConfig) -> Iterator[Finding]:
    """Checks the embedded store unless a gateway runs, which checks its store itself."""
    folder = config.gateway.data_dir
    if config.store.url != "embedded" or read_owner(folder) is not None:
        return
    try:
        check_database(folder / FILE)
    except (StoreRefused, StoreUnavailable) as error:
        kept = shlex.quote(f"{folder}.damaged")
        fix = f"mv {shlex.quote(str(folder))} {kept}"
        text = f"{error}; restore a backup, or start with an empty data directory"
        yield Finding("store.damaged", "error", str(folder), text, fix)


def data_dir_usable(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    where: KeyPath = ("gateway", "data_dir")
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        why, fix = f"{nearest} is not a directory", unset_command(where)
    elif not os.access(nearest, os.W_OK | os.X_OK):
        is_ours = nearest.stat().st_uid == os.geteuid()
        fix = chmod_command("u+rwx", nearest) if is_ours else unset_command(where)
        why = f"this user cannot write to {nearest}"
    else:
        return
    yield Finding("data.unusable", "error", dotted(where), why, fix, where)


def listening(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    owner = read_owner(settings.data_dir)
    if owner is not None and owner.url:
        return
    try:
        _bind(settings.bind, settings.port)
    except OSError as error:
        text = f"cannot listen on {settings.bind}:{settings.port}: {error.strerror}"
        name, value = "bind", "127.0.0.1"
        if error.errno == errno.EADDRINUSE:
            name, value = "port", str(_free_port(settings.bind, settings.port))
        where: KeyPath = ("gateway", name)
        fix = set_command(where, value)
        yield Finding(f"network.{name}", "error", dotted(where), text, fix, where)


def _bind(host: str, port: int) -> None:
    """Raises OSError if the address is taken or unusable."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _free_port(host: str, taken: int) -> int:
    """Returns the next free port, or 0."""
    for port in range(taken + 1, min(taken + PORTS, 65_536)):
        with suppress(OSError):
            _bind(host, port)
            return port
    return 0


def exposure(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    if not is_loopback(settings.bind) and not settings.trusted_proxies:
        where: KeyPath = ("gateway", "trusted_proxies")
        text = "the gateway listens beyond this machine without TLS: put a TLS proxy in front"
        fix = set_command(where, '["127.0.0.1"]')
        yield Finding("network.tls", "warning", "gateway.bind", text, fix)


def open_files(config: GatewayConfig) -> Iterator[Finding]:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.gateway.max_connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        where: KeyPath = ("gateway", "max_connections")
        text = f"the limit of open files is {hard} (ulimit -Hn); max_connections needs {wanted}"
        fix = set_command(where, max(1, hard - SPARE_FILES))
        yield Finding("limits.files", "warning", dotted(where), text, fix, where)


# -- what agents need


def keys(config: GatewayConfig) -> Iterator[Finding]:
    for name, one in config.providers.items():
        if one.api_key is None and not _is_local(one.base_url):
            place: KeyPath = ("providers", name, "api_key")
            text = "no key is configured"
            yield Finding(
                "provider.key", "warning", f"providers.{name}", text, secret_command(place)
            )


def unknown_models(config: GatewayConfig) -> Iterator[Finding]:
    """Finds models that are not in the provider's public table: misspelled, or newer than the table."""
    for place, agent in agent_places(config):
        link: AgentDef | None = agent
        while link is not None:
            provider = config.providers.get(link.provider)
            default = DEFAULT_MODELS.get(link.provider)
            if provider and link.model != default and is_listed(provider, link.model) is False:
                text = f"model {link.model} is not in the table of {link.provider}; a newer model works, without a price"
                where = (*place, "model")
                fix = set_command(where, default or link.model)
                yield Finding("model.unknown", "warning", dotted(where), text, fix, where)
            link, place = link.fallback, (*place, "fallback")


def texts(config: GatewayConfig) -> Iterator[Finding]:
    """Reads souls, templates, prompts of subagents, trees and rules like a start."""
    decisions = decision_trees({one.decision for one in config.agents})
    souls, plans = souls_and_plans(config, decisions, SystemClock())
    bad = anyio.run(find_unreadable, souls, plans)
    for where, path in text_places(config):
        if path in bad and where[-1] == "tree":
            fix = set_command(where, "default")
            yield Finding("tree.refused", "error", dotted(where), bad[path], fix, where)
        elif path in bad:
            fix = edit_command(path) if where[-1] == "prompt_path" else unset_command(where)
            yield Finding("soul.unreadable", "error", dotted(where), bad[path], fix, where)
    for agent in config.agents:
        soul = souls.by_agent.get(agent.id)
        if soul and soul.token_count > LONG_SOUL_TOKENS:
            text, path = f"it adds about {soul.token_count} tokens to every call", soul.loaded_from
            yield Finding("soul.long", "warning", path, text, edit_command(path))
    yield from _refused_rules(config)


def _refused_rules(config: GatewayConfig) -> Iterator[Finding]:
    if (folder := config.rule_folder) is None:
        return
    for one in folder.problems:
        text = f"{one.source}:{one.line}:{one.column}: {one.message}; {one.fix}"
        file = shlex.quote(str(folder.path / Path(one.source).name))
        fix = f"mv {file} {file}.off"
        yield Finding("rule.refused", "error", "rules_dir", text, fix, ("rules_dir",))


def plugins(config: GatewayConfig) -> Iterator[Finding]:
    """Loads each enabled plugin and opens the channels, like a start."""
    if not any(plugin.is_enabled for plugin in config.plugins):
        return
    try:
        refused = load_for_trial(config)
    except (OSError, GatewayError) as error:  # such as a full disk, or a read-only folder
        text = f"the plugins cannot be test-loaded: {error}; check TMPDIR"
        yield Finding("plugin.trial", "error", "plugins", text, "df -h /tmp")
        return
    for where, name, why in refused:
        kind = str(where[0])
        fix = _fix_plugin(name, why) if kind == "plugins" else _fix_channel(name, why)
        yield Finding(f"{kind[:-1]}.refused", "error", f"{kind}.{name}", why, fix, where)


def _fix_plugin(name: str, why: str) -> str:
    if needed := _NEEDS.search(why):
        return f"exogate plugin grant {name} {shlex.quote(needed[1])} --yes"
    return set_command(("plugins", name, "enabled"), "false")


def _fix_channel(name: str, why: str) -> str:
    if lacking := _LACKS.search(why):
        return f"exogate channel set {name} --set {lacking[1]}=VALUE"
    return f"exogate channel remove {name} --yes"


# A start refuses these problems, which reading the configuration does not find.
TRIALS: Sequence[Check] = (data_dir_usable, listening, texts, plugins, unknown_models)

CHECKS: Sequence[Check] = (
    claims,
    config_notices,
    data_dir,
    data_dir_usable,
    store,
    listening,
    exposure,
    open_files,
    keys,
    unknown_models,
    texts,
    plugins,
    unlimited,
)


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings, errors first, and the number of checks that passed. `is_valid` is false for an invalid configuration."""

    findings: Sequence[Finding]
    passed: int
    is_valid: bool = True

    @property
    def report(self) -> api.DoctorReport:
        return api.DoctorReport(findings=[one.report for one in self.findings], passed=self.passed)

    def merge(self, other: "Examination") -> "Examination":
        findings = sorted((*self.findings, *other.findings), key=lambda one: one.severity)
        return Examination(findings, self.passed + other.passed, self.is_valid)


def examine(read: Callable[[], GatewayConfig], path: Path | None) -> Examination:
    """Reads a configuration and runs all checks on it. It blocks."""
    try:
        config = read()
    except ConfigInvalid as error:
        return Examination(_with_config(problems(error, path), path), 0, is_valid=False)
    return run_checks([check(config) for check in CHECKS], path)


def run_checks(checks: Iterable[Iterable[Finding]], path: Path | None) -> Examination:
    results = [list(one) for one in checks]
    findings = sorted(chain.from_iterable(results), key=lambda one: one.severity)
    return Examination(_with_config(findings, path), sum(not found for found in results))


def _with_config(findings: Iterable[Finding], path: Path | None) -> list[Finding]:
    """Adds the file to every exogate command, so that it works in any directory."""
    if path is None:
        return [*findings]
    command = f"exogate --config {shlex.quote(str(path.absolute()))} "
    return [replace(one, fix=_EXOGATE.sub(command, one.fix)) for one in findings]


# --- upkeep --------------------------------------------------------------------------------------
BACKUP_DAYS = 7  # the longest time without a backup
EXPIRES_SOON = timedelta(days=7)
UNUSED = timedelta(days=90)
IMPERSONATE = "impersonate"
NEAR = 0.8  # of a limit
RENEWED = timedelta(days=90)  # the lifetime of a renewed token
UNBOUND = "its budget has no effect while it speaks as others, whose budgets it spends"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The facts to check. `began`: the creation of the store. `restart`: the command that restarts this gateway."""

    config: GatewayConfig
    now: datetime
    began: datetime
    backed_up: datetime | None
    tokens: Sequence[CreatedToken]
    budgets: Sequence[BudgetRow]
    restart_needed: Sequence[str]
    restart: str


def backup(facts: Upkeep) -> Iterator[Finding]:
    """Finds that a backup is due."""
    days = (facts.now - (facts.backed_up or facts.began)).days
    if days < BACKUP_DAYS or facts.config.store.url == "memory":
        return
    what = "the last backup is" if facts.backed_up else "there is no backup, and the store is"
    text = f"{what} {days} days old: a failed disk would lose everything since then"
    yield Finding(
        "backup.due", "warning", str(facts.config.gateway.data_dir), text, "exogate backup create"
    )


def expiring(facts: Upkeep) -> Iterator[Finding]:
    """Finds tokens that expire within days."""
    later = (facts.now + RENEWED).date().isoformat()
    ends = [
        *((one.name, one.expires, "") for one in facts.config.tokens),
        *(
            (one.name, one.expires_at, _create_command(one, f"{RENEWED.days}d"))
            for one in facts.tokens
            if not one.revoked_at
        ),
    ]
    for name, at, create in ends:
        if at is not None and facts.now < at < facts.now + EXPIRES_SOON:
            text = f"the token {name} expires at {at:%Y-%m-%d %H:%M} UTC"
            fix = set_command(("tokens", name, "expires"), later)
            if create:
                fix = f"exogate token revoke {name} && {create}"
                text += "; its users need the new token that the command prints"
            yield Finding("token.expiring", "warning", f"tokens.{name}", text, fix)


def _create_command(token: CreatedToken, expires: str, without: str = "") -> str:
    """Returns the command that creates a token like this, or "" if it would have no scope."""
    scopes = [one for one in sorted(token.scopes - {without}) if not one.startswith("agent:")]
    if not scopes:
        return ""
    words = ["exogate", "token", "create", token.name, "--inherit", "--scopes", ",".join(scopes)]
    words += ["--expires", expires] if expires else []
    for one in sorted(token.scopes - {*scopes, without}):
        words += ["--agent", one.partition(":")[2]]
    if budget := token.budget:
        periods = (("session", budget.session), ("day", budget.daily), ("month", budget.monthly))
        limits = [f"{one.tokens}/{name}" for name, one in periods if one.tokens is not None]
        words += ["--budget", ",".join(limits)] if limits else []
    return shlex.join(words)


def unbound(facts: Upkeep) -> Iterator[Finding]:
    """Finds tokens whose budget has no effect, because they can speak as others."""
    for token in facts.tokens:
        if token.state(facts.now) == "active" and token.budget and IMPERSONATE in token.scopes:
            expires = token.expires_at.isoformat(timespec="seconds") if token.expires_at else ""
            create = _create_command(token, expires, IMPERSONATE)
            fix = f"exogate token revoke {token.name}" + (f" && {create}" if create else "")
            yield Finding("token.unbound", "warning", f"tokens.{token.name}", UNBOUND, fix)
    for number, one in enumerate(facts.config.tokens):
        if one.budget and IMPERSONATE in one.scopes:
            place: KeyPath = ("tokens", number, "budget")
            fix = unset_command(place)
            yield Finding("token.unbound", "warning", dotted(place), UNBOUND, fix, place)


def unused(facts: Upkeep) -> Iterator[Finding]:
    """Finds active tokens that were not used for months."""
    for token in facts.tokens:
        days = (facts.now - (token.last_used_at or token.created_at)).days
        if token.state(facts.now) == "active" and days >= UNUSED.days:
            how = "was not used" if token.last_used_at else "was never used"
            text = (
                f"the token {token.name} {how} for {days} days, and works for anyone who finds it"
            )
            fix = f"exogate token revoke {token.name}"
            yield Finding("token.unused", "warning", f"tokens.{token.name}", text, fix)


def nearly_spent(facts: Upkeep) -> Iterator[Finding]:
    """Finds limits that are nearly reached."""
    for row in facts.budgets:
        if row.limit and row.used >= NEAR * row.limit:
            unit = "USD" if row.unit == "usd" else row.unit
            text = f"{row.used:,.15g} of {row.limit:,.15g} {unit} are used; messages are refused at the limit"
            enough = math.floor(row.used / NEAR) + 1
            if row.unit == "usd":
                in_cents = math.floor(100 * row.used / NEAR) + 1
                fix = set_command(_place_of(row, facts.config), in_cents / 100)
            elif row.scope == "daily" or row.scope.startswith("token:"):
                by = enough - int(row.limit)
                fix = f"exogate budget raise {shlex.quote(row.scope)} +{by} --today"
            else:
                fix = f"exogate budget set {shlex.quote(row.scope)} {enough} --yes"
            yield Finding("budget.near", "warning", f"budgets.{row.scope}", text, fix)


def _place_of(row: BudgetRow, config: GatewayConfig) -> KeyPath:
    """Returns the key of a limit in USD."""
    kind, _, name = row.scope.partition(":")
    if kind == "token":
        is_daily = row.period_start and row.resets_at == row.period_start + timedelta(days=1)
        return ("tokens", name, "budget", "daily" if is_daily else "monthly", "usd")
    if kind == "agent" and name in config.budgets.agents:
        return ("budgets", "agent", name, "usd")
    return ("budgets", "per_agent" if kind == "agent" else kind, "usd")


def restart(facts: Upkeep) -> Iterator[Finding]:
    if facts.restart_needed:
        keys = ", ".join(facts.restart_needed)
        text = f"{keys} changed and takes effect after a restart"
        yield Finding("restart.pending", "warning", facts.restart_needed[0], text, facts.restart)


UPKEEP_CHECKS: Sequence[Callable[[Upkeep], Iterator[Finding]]] = (
    backup,
    expiring,
    unbound,
    unused,
    nearly_spent,
    restart,
)
