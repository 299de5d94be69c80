"""What can be wrong with an installation: each check yields its findings, with the command that mends them, and changes
nothing."""

import errno
import os
import re
import resource
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import anyio

from gateway.agent.leaves import Plans
from gateway.api import operating as api
from gateway.api.declarations import build
from gateway.app.generation import (
    agent_places,
    decision_trees,
    soul_paths,
    tree_paths,
    with_subagents,
)
from gateway.app.trial import load_for_trial
from gateway.config.problems import (
    Code,
    ConfigFinding,
    ConfigInvalid,
    ConfigProblem,
    KeyPath,
    dotted,
)
from gateway.config.values import GatewayConfig
from gateway.control.policy import DecisionTrees
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Limit
from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable
from gateway.domain.ids import AgentId
from gateway.domain.messages import estimate_tokens
from gateway.domain.model import is_loopback
from gateway.host.clock import SystemClock
from gateway.host.files import KEY, FileTexts
from gateway.memory.souls import Souls
from gateway.providers.prices import DEFAULT_MODELS, is_listed
from gateway.store.inspection import look_over
from gateway.store.opening import LOCK, read_owner
from gateway.store.sqlite import FILE

LOW_DISK_BYTES = 500 * 1024 * 1024
LONG_SOUL_TOKENS = 1_500
SPARE_FILES = 100  # besides one a connection
USUAL_DAILY = 200_000
PORTS = 100  # that are tried for one that is free
_KEYLESS = re.compile(r'no key for provider "([^"]+)"')
_NEEDS = re.compile(r"needs the capability ([^;\s]+);")
_MEANT = re.compile(r'did you mean "?([\w:.-]+)"?\?')
_OURS = re.compile(r"(?:^|(?<= && ))exogate ")
_LACKS = re.compile(r"config\.(\w+) is missing")

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` is one command of a shell. `place`: of the configuration, if that is where it has to be mended. `is_safe`:
    the command changes modes alone."""

    id: str
    severity: Severity
    path: str
    message: str
    fix: str
    place: KeyPath = ()
    is_safe: bool = False

    @property
    def told(self) -> api.DoctorFinding:
        return build(api.DoctorFinding, self)

    def render(self) -> str:
        mark = "✗" if self.severity == "error" else "⚠"
        return f"{mark} {self.path}: {self.message}  [{self.id}]\n  → {self.fix}"


Check = Callable[[GatewayConfig], Iterable[Finding]]


def chmod_command(mode: str, path: Path | str) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"


def set_command(place: KeyPath, value: object) -> str:
    """The command that writes a value of the configuration."""
    return f"exogate config set {shlex.quote(dotted(place))} {shlex.quote(str(value))} --yes"


def unset_command(place: KeyPath) -> str:
    return f"exogate config unset {shlex.quote(dotted(place))} --yes"


def secret_command(place: KeyPath) -> str:
    """The command that moves a secret into a file of its own; it asks for one that is not there."""
    return f"exogate config set {shlex.quote(dotted(place))} --secret --yes"


def edit_command(path: Path | str, line: int = 1) -> str:
    return f"${{EDITOR:-vi}} +{line} {shlex.quote(str(path))}"


# -- the configuration


def problems(error: ConfigInvalid, path: Path | None) -> Iterator[Finding]:
    """Those of a configuration that cannot be used."""
    for one in error.problems:
        where = f"{one.source}:{one.line}:{one.column}" if one.line else one.source
        told = f"{one.key}: {one.message}" if one.key else one.message
        fix = _mending(one, path)
        told = told if fix == one.fix else f"{told}; {one.fix}"
        is_safe = fix.startswith("chmod")
        yield Finding(str(one.code), "error", where, told, fix, is_safe=is_safe)


def _mending(one: ConfigProblem, path: Path | None) -> str:
    if one.fix.startswith("chmod "):
        return one.fix
    if one.code == Code.OPEN_DOOR:
        return set_command(("gateway", "bind"), "127.0.0.1")
    known = _command(one) if one.key and one.line else None
    return known or edit_command(path or one.source, one.line or 1)


def _command(one: ConfigProblem) -> str | None:
    """That mends a value of the file, if one can."""
    key, meant, keyless = (
        shlex.quote(one.key),
        _MEANT.search(one.fix),
        _KEYLESS.search(one.message),
    )
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
        fix = one.fix if one.fix.startswith("chmod ") else _mending_notice(one, config)
        key = one.key or str(config.origin)
        is_safe = fix.startswith("chmod ")
        yield Finding(one.code, "warning", key, one.message, fix, one.path, is_safe)


def _mending_notice(one: ConfigFinding, config: GatewayConfig) -> str:
    match one.code:
        case "literal-secret" | "key-kept-back":
            return secret_command(one.path)
        case "several-keys":
            return set_command(one.path, config.agents[0].provider)
        case "bindings.shadowed" | "unknown-channel":
            return unset_command(one.path[:2])
        case "unused-secret" if one.path[-1] == "api_key":
            return secret_command(one.path)
        case "plugin-disabled" | "unused-secret":
            return unset_command(one.path)
        case "no-mentions":
            return set_command((*one.path, "require_mention"), "false")
        case "context-clamped":
            return set_command(one.path, one.fix.partition(" ")[0])
    return edit_command(config.origin or "config.toml")


def unlimited(config: GatewayConfig) -> Iterator[Finding]:
    """Agents that ask a service which costs money, and could do so for ever."""
    budgets = config.budgets
    if any(one != Limit() for one in (budgets.daily, budgets.monthly)):
        return
    for agent in config.agents:
        bound = budgets.agents.get(agent.id, budgets.per_agent)
        asked = [config.providers.get(link.provider) for link in agent.chain]
        if bound == Limit() and any(one and not _is_near(one.base_url) for one in asked):
            where: KeyPath = ("budgets", "daily")
            text = f"nothing limits what agent {agent.id} spends at {agent.provider}"
            fix = set_command(where, USUAL_DAILY)
            yield Finding("budget.unlimited", "warning", dotted(where), text, fix, where)
            return


def _is_near(base_url: str) -> bool:
    return is_loopback(urlsplit(base_url).hostname or "")


# -- the machine


def claims(_config: GatewayConfig) -> Iterator[Finding]:
    """Another distribution with a package `gateway` overwrites our files without a word."""
    owners = sorted(set(metadata.packages_distributions().get("gateway", ())))
    for other in (owner for owner in owners if owner != "exogate"):
        pip = f"{shlex.quote(sys.executable)} -m pip"
        yield Finding(
            "install.package",
            "error",
            str(Path(sys.prefix)),
            f"the distribution {other!r} installs a package `gateway` too; files may be overwritten",
            f"{pip} uninstall --yes {other} && {pip} install --force-reinstall --no-deps exogate",
        )


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
    """A gateway that runs watches its store itself."""
    folder = config.gateway.data_dir
    if config.store.url != "embedded" or read_owner(folder) is not None:
        return
    try:
        look_over(folder / FILE)
    except (StoreRefused, StoreUnavailable) as error:
        kept = shlex.quote(f"{folder}.damaged")
        fix = f"mv {shlex.quote(str(folder))} {kept}"
        told = f"{error}; restore a backup, or begin anew without it"
        yield Finding("store.damaged", "error", str(folder), told, fix)


def data_dir_usable(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    where: KeyPath = ("gateway", "data_dir")
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    if not nearest.is_dir():
        why, fix = f"{nearest} is no directory", unset_command(where)
    elif not os.access(nearest, os.W_OK | os.X_OK):
        is_ours = nearest.stat().st_uid == os.geteuid()
        fix = chmod_command("u+rwx", nearest) if is_ours else unset_command(where)
        why = f"{nearest} cannot be written by this user"
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
        told = f"cannot listen on {settings.bind}:{settings.port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            where: KeyPath = ("gateway", "port")
            fix = set_command(where, _free_port(settings.bind, settings.port))
            yield Finding("network.port", "error", dotted(where), told, fix, where)
        else:
            where = ("gateway", "bind")
            fix = set_command(where, "127.0.0.1")
            yield Finding("network.bind", "error", dotted(where), told, fix, where)


def _bind(host: str, port: int) -> None:
    """Raises OSError where nobody can listen."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


def _free_port(host: str, taken: int) -> int:
    """The next one; 0 if there is none near."""
    for port in range(taken + 1, min(taken + PORTS, 65_536)):
        with suppress(OSError):
            _bind(host, port)
            return port
    return 0


def exposure(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    if not is_loopback(settings.bind) and not settings.trusted_proxies:
        where: KeyPath = ("gateway", "trusted_proxies")
        text = "the gateway listens beyond this machine without encryption of its own: put a TLS proxy in front"
        fix = set_command(where, '["127.0.0.1"]')
        yield Finding("network.tls", "warning", "gateway.bind", text, fix)


def open_files(config: GatewayConfig) -> Iterator[Finding]:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.gateway.max_connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        where: KeyPath = ("gateway", "max_connections")
        text = f"the limit of open files is {hard} (ulimit -Hn), but max_connections needs {wanted}"
        fix = set_command(where, max(1, hard - SPARE_FILES))
        yield Finding("limits.files", "warning", dotted(where), text, fix, where)


# -- what agents need


def keys(config: GatewayConfig) -> Iterator[Finding]:
    for name, one in config.providers.items():
        if one.api_key is None and not _is_near(one.base_url):
            place: KeyPath = ("providers", name, "api_key")
            text = "no key is configured"
            yield Finding(
                "provider.key", "warning", f"providers.{name}", text, secret_command(place)
            )


def unknown_models(config: GatewayConfig) -> Iterator[Finding]:
    """Names that the public table of a provider does not have: a typing error, or newer than it."""
    for place, agent in agent_places(config):
        link: AgentDef | None = agent
        while link is not None:
            provider = config.providers.get(link.provider)
            usual = DEFAULT_MODELS.get(link.provider)
            if provider and link.model != usual and is_listed(provider, link.model) is False:
                text = f"{link.provider}'s table of models does not know {link.model}; one that is newer works, without a price"
                where = (*place, "model")
                fix = set_command(where, usual or link.model)
                yield Finding("model.unknown", "warning", dotted(where), text, fix, where)
            link, place = link.fallback, (*place, "fallback")


def texts(config: GatewayConfig) -> Iterator[Finding]:
    """Souls, prompts of subagents, trees and rules, read as at a start."""
    helpers = with_subagents(config)[len(config.agents) :]
    places: list[tuple[KeyPath, str]] = []
    trees: list[tuple[KeyPath, AgentId, str]] = []
    for place, agent in agent_places(config):
        places.append(((*place, "soul_path"), soul_paths([agent])[agent.id]))
        trees.append(((*place, "tree"), agent.id, tree_paths([agent])[agent.id]))
    for index, one in enumerate(helpers):
        places.append((("subagents", index, "prompt_path"), soul_paths([one])[one.id]))
    decisions = decision_trees({one.decision for one in config.agents})
    found = anyio.run(_read_texts, places, trees, decisions)
    yield from found
    yield from _refused_rules(config)
    for id_, path in soul_paths(config.agents).items():
        with suppress(OSError, UnicodeDecodeError):
            tokens = estimate_tokens(Path(path).read_text(encoding="utf-8"))
            if tokens > LONG_SOUL_TOKENS:
                text = f"the soul of {id_} has about {tokens} tokens, and is sent with every call"
                yield Finding("soul.long", "warning", path, text, edit_command(path))


def _refused_rules(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.rule_folder
    if folder is None:
        return
    for one in folder.problems:
        told = f"{one.source}:{one.line}:{one.column}: {one.message}; {one.fix}"
        file = shlex.quote(str(folder.path / Path(one.source).name))
        fix = f"mv {file} {file}.off"
        yield Finding("rule.refused", "error", "rules_dir", told, fix, ("rules_dir",))


async def _read_texts(
    souls: Sequence[tuple[KeyPath, str]],
    trees: Sequence[tuple[KeyPath, AgentId, str]],
    decisions: DecisionTrees,
) -> list[Finding]:
    clock = SystemClock()
    found: list[Finding] = []
    for where, path in souls:
        try:
            await Souls(FileTexts(), {AgentId("tried"): path}, clock=clock).load()
        except GatewayError as error:
            fix = unset_command(where) if where[-1] == "soul_path" else edit_command(path)
            found.append(Finding("soul.unreadable", "error", dotted(where), str(error), fix, where))
    for where, agent, path in trees:
        try:
            await Plans(FileTexts(), {agent: path}, decisions=decisions).load()
        except GatewayError as error:
            why, fix = str(error).partition("\n")[0], set_command(where, "default")
            found.append(Finding("tree.refused", "error", dotted(where), why, fix, where))
    return found


def plugins(config: GatewayConfig) -> Iterator[Finding]:
    """Each enabled one is loaded for trial, as at a start, and channels are opened with theirs."""
    if not any(plugin.is_enabled for plugin in config.plugins):
        return
    places = {one.name: index for index, one in enumerate(config.plugins)}
    try:
        refused = load_for_trial(config)
    except (OSError, GatewayError) as error:  # no room, or no folder that can be written
        told = f"the plugins cannot be test-loaded: {error}; check TMPDIR"
        yield Finding("plugin.trial", "error", "plugins", told, "df -h /tmp")
        return
    for kind, name, why in refused:
        where: KeyPath = (kind, places[name] if kind == "plugins" else name)
        where = (*where, "sha256") if "sha256" in why else where
        fix = _mending_plugin(name, why) if kind == "plugins" else _mending_channel(name, why)
        yield Finding(f"{kind[:-1]}.refused", "error", f"{kind}.{name}", why, fix, where)


def _mending_plugin(name: str, why: str) -> str:
    if needed := _NEEDS.search(why):
        return f"exogate plugin grant {name} {shlex.quote(needed[1])} --yes"
    return set_command(("plugins", name, "enabled"), "false")


def _mending_channel(name: str, why: str) -> str:
    if lacking := _LACKS.search(why):
        return f"exogate channel set {name} --set {lacking[1]}=VALUE"
    return f"exogate channel remove {name} --yes"


# What a start would refuse, besides what reading the configuration finds.
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
    """What was found, errors first, and how many checks found nothing. `is_valid`: of the configuration."""

    findings: Sequence[Finding]
    passed: int
    is_valid: bool = True

    @property
    def told(self) -> api.DoctorReport:
        return api.DoctorReport(findings=[one.told for one in self.findings], passed=self.passed)

    def merge(self, other: "Examination") -> "Examination":
        findings = sorted((*self.findings, *other.findings), key=lambda one: one.severity)
        return Examination(findings, self.passed + other.passed, self.is_valid)


def examine(read: Callable[[], GatewayConfig], path: Path | None) -> Examination:
    """Of the configuration in this file, which is read here. A thread has to do it."""
    try:
        config = read()
    except ConfigInvalid as error:
        return Examination(_typed(problems(error, path), path), 0, is_valid=False)
    return run_checks([check(config) for check in CHECKS], path)


def run_checks(checks: Iterable[Iterable[Finding]], path: Path | None) -> Examination:
    results = [list(one) for one in checks]
    findings = sorted(chain.from_iterable(results), key=lambda one: one.severity)
    return Examination(_typed(findings, path), sum(not found for found in results))


def _typed(findings: Iterable[Finding], path: Path | None) -> list[Finding]:
    """With the file named in every command, which may be typed anywhere."""
    if path is None:
        return [*findings]
    named = f"exogate --config {shlex.quote(str(path.absolute()))} "
    return [replace(one, fix=_OURS.sub(named, one.fix)) for one in findings]
