"""`exogate doctor`: each check yields its findings and changes nothing."""

import errno
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Literal

import anyio
import click

from gateway.agent.leaves import Plans
from gateway.app.generation import decision_trees, soul_paths, tree_paths, with_subagents
from gateway.cli.command import FAILED, CliContext
from gateway.cli.configuration import configured
from gateway.cli.plugin_files import refusals
from gateway.config.problems import KeyPath, dotted
from gateway.config.values import GatewayConfig
from gateway.control.policy import DecisionTrees
from gateway.domain.agents import AgentDef
from gateway.domain.errors import GatewayError, StoreRefused, StoreUnavailable
from gateway.domain.ids import AgentId
from gateway.domain.messages import estimate_tokens
from gateway.domain.model import is_loopback
from gateway.host.clock import SystemClock
from gateway.host.files import FileTexts
from gateway.memory.souls import Souls
from gateway.providers.prices import DEFAULT_MODELS, is_listed
from gateway.store.opening import read_owner
from gateway.store.sqlite import look_over

LOW_DISK_BYTES = 500 * 1024 * 1024
LONG_SOUL_TOKENS = 1_500
SPARE_FILES = 100  # besides one a connection

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    severity: Severity
    path: str
    message: str
    fix: str
    place: KeyPath = ()  # of the configuration, if that is where it has to be mended

    def as_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name != "place"}

    def render(self) -> str:
        mark = "✗" if self.severity == "error" else "⚠"
        return f"{mark} {self.path}: {self.message}  [{self.id}]\n  → {self.fix}"


Check = Callable[[GatewayConfig], Iterable[Finding]]


def claims(_config: GatewayConfig) -> Iterator[Finding]:
    """Another distribution with a package `gateway` overwrites our files without a word."""
    owners = sorted(set(metadata.packages_distributions().get("gateway", ())))
    for other in (owner for owner in owners if owner != "exogate"):
        yield Finding(
            "install.package",
            "error",
            str(Path(sys.prefix)),
            f"the distribution {other!r} installs a package `gateway` too; files may be overwritten",
            "install exogate in a virtual environment of its own",
        )


def config_notices(config: GatewayConfig) -> Iterator[Finding]:
    for notice in config.notices:
        told = (notice.key, notice.message, notice.fix)
        yield Finding(notice.code, "warning", *told, notice.path)


def data_dir(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    if not folder.exists():
        return
    where = str(folder)
    if folder.stat().st_mode & 0o077:
        text = "other users of this machine can read the data directory"
        yield Finding("data.mode", "warning", where, text, f"chmod 700 {where}")
    free = shutil.disk_usage(folder).free
    if free < LOW_DISK_BYTES:
        text = f"only {free // 1024**2} MiB are free; a full disk stops the gateway from accepting"
        yield Finding("data.disk", "warning", where, text, "free some space")


def store(config: GatewayConfig) -> Iterator[Finding]:
    """A gateway that runs watches its store itself."""
    folder = config.gateway.data_dir
    if config.store.url != "embedded" or read_owner(folder) is not None:
        return
    try:
        look_over(folder)
    except (StoreRefused, StoreUnavailable) as error:
        fix = "restore a copy of the data directory, or move the file away"
        yield Finding("store.damaged", "error", str(folder), str(error), fix)


def data_dir_usable(config: GatewayConfig) -> Iterator[Finding]:
    folder = config.gateway.data_dir
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    why = None
    if not nearest.is_dir():
        why = f"{nearest} is no directory"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        why = f"{nearest} cannot be written by this user"
    if why is not None:
        where: KeyPath = ("gateway", "data_dir")
        fix = "choose another directory, or change its owner or mode"
        yield Finding("data.unusable", "error", dotted(where), why, fix, where)


def listening(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    owner = read_owner(settings.data_dir)
    if owner is not None and owner.url:
        return
    with socket.socket(socket.AF_INET6 if ":" in settings.bind else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.bind, settings.port))
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            where: KeyPath = ("gateway", "port" if is_taken else "bind")
            told = f"cannot listen on {settings.bind}:{settings.port}: {error.strerror}"
            fix = "stop what listens there, or choose another [gateway] port"
            fix = fix if is_taken else "set [gateway] bind to an address of this machine"
            name = "network.port" if is_taken else "network.bind"
            yield Finding(name, "error", dotted(where), told, fix, where)


def exposure(config: GatewayConfig) -> Iterator[Finding]:
    settings = config.gateway
    if not is_loopback(settings.bind) and not settings.trusted_proxies:
        text = "the gateway listens beyond this machine without encryption of its own"
        fix = "put a TLS proxy in front and name it in trusted_proxies"
        yield Finding("network.tls", "warning", "gateway.bind", text, fix)


def open_files(config: GatewayConfig) -> Iterator[Finding]:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = config.gateway.max_connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        text = f"the limit of open files is {hard}, but max_connections needs {wanted}"
        fix = f"raise the hard limit (ulimit -Hn) to {wanted}, or a smaller max_connections"
        yield Finding("limits.files", "warning", "gateway.max_connections", text, fix)


def keys(config: GatewayConfig) -> Iterator[Finding]:
    for name, one in config.providers.items():
        if one.api_key is None and not is_loopback(one.base_url.split("/")[2].split(":")[0]):
            text = "no key is configured"
            fix = f"set api_key in [providers.{name}], or its environment variable"
            yield Finding("provider.key", "warning", f"providers.{name}", text, fix)


def unknown_models(config: GatewayConfig) -> Iterator[Finding]:
    """Names that the public table of a provider does not have: a typing error, or newer than it."""
    for place, agent in agent_places(config):
        link: AgentDef | None = agent
        while link is not None:
            provider = config.providers.get(link.provider)
            usual = DEFAULT_MODELS.get(link.provider)
            if provider and link.model != usual and is_listed(provider, link.model) is False:
                text = f"{link.provider}'s table of models does not know {link.model}"
                fix = (
                    "correct the name; a model that is newer than the table works, without a price"
                )
                where = (*place, "model")
                yield Finding("model.unknown", "warning", dotted(where), text, fix, where)
            link, place = link.fallback, (*place, "fallback")


def agent_places(config: GatewayConfig) -> Iterator[tuple[KeyPath, AgentDef]]:
    """Every agent with its place in the file."""
    first = int(config.default_agent is not None)
    for index, agent in enumerate(config.agents):
        yield (("agent",) if index < first else ("agents", index - first)), agent


def texts(config: GatewayConfig) -> Iterator[Finding]:
    """Souls, prompts of subagents and trees, read as at a start."""
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
    for id_, path in soul_paths(config.agents).items():
        with suppress(OSError, UnicodeDecodeError):
            tokens = estimate_tokens(Path(path).read_text(encoding="utf-8"))
            if tokens > LONG_SOUL_TOKENS:
                text = f"the soul of {id_} has about {tokens} tokens, and is sent with every call"
                yield Finding("soul.long", "warning", path, text, "shorten it")


async def _read_texts(
    souls: Sequence[tuple[KeyPath, str]],
    trees: Sequence[tuple[KeyPath, AgentId, str]],
    decisions: DecisionTrees,
) -> list[Finding]:
    clock = SystemClock()
    found: list[Finding] = []
    for where, path in souls:
        try:
            await Souls(FileTexts(clock), {AgentId("tried"): path}, clock=clock).load()
        except GatewayError as error:
            fix = "correct the file or the path"
            found.append(Finding("soul.unreadable", "error", dotted(where), str(error), fix, where))
    for where, agent, path in trees:
        try:
            await Plans(FileTexts(clock), {agent: path}, decisions=decisions).load()
        except GatewayError as error:
            why, fix = str(error).partition("\n")[0], "run `exogate tree check` for details"
            found.append(Finding("tree.refused", "error", dotted(where), why, fix, where))
    return found


def plugins(config: GatewayConfig) -> Iterator[Finding]:
    """Each enabled one is loaded for trial, as at a start, and channels are opened with theirs."""
    if not any(plugin.is_enabled for plugin in config.plugins):
        return
    places = {one.name: index for index, one in enumerate(config.plugins)}
    try:
        refused = refusals(config)
    except (OSError, GatewayError) as error:  # no room, or no folder that can be written
        told, fix = (
            f"the plugins cannot be test-loaded: {error}",
            "free some disk space, and check TMPDIR",
        )
        yield Finding("plugin.trial", "error", "plugins", told, fix)
        return
    for kind, name, why in refused:
        where: KeyPath = (kind, places[name] if kind == "plugins" else name)
        where = (*where, "sha256") if "sha256" in why else where
        fix = f"exogate plugin inspect {name} shows what it needs and has"
        if kind == "channels":
            fix = f"exogate channel set {name} changes what it is given"
        yield Finding(f"{kind[:-1]}.refused", "error", f"{kind}.{name}", why, fix, where)


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
)


@click.command()
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.pass_obj
def doctor(context: CliContext, *, strict: bool) -> None:
    config = configured(context)
    results = [list(check(config)) for check in CHECKS]
    findings = sorted(chain.from_iterable(results), key=lambda one: one.severity)
    if context.json:
        context.tell([one.as_json() for one in findings])
    else:
        fine = sum(not found for found in results)
        click.echo("\n".join([*(one.render() for one in findings), f"{fine} checks passed"]))
    severities = {one.severity for one in findings}
    if "error" in severities or (strict and findings):
        sys.exit(FAILED)
