"""From a path (or none), the environment and the command line to the one frozen GatewayConfig."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.access import resolve_gateway, resolve_tokens
from gateway.config.agents import (
    check_bindings,
    check_projects,
    places,
    resolve_agents,
    resolve_subagents,
    with_result,
)
from gateway.config.document import Document, placed, read_document, written_data_dir
from gateway.config.environment import CONFIG, value_of
from gateway.config.plugins import resolve_channels, resolve_plugins
from gateway.config.problems import KeyPath, without_consequences
from gateway.config.providers import check_budgets, check_prices, resolve_providers, resolve_servers
from gateway.config.reading import Reading
from gateway.config.rules import resolve_rules
from gateway.config.sections import SectionReader, blank
from gateway.config.values import (
    GatewayConfig,
    GatewaySettings,
    Known,
    Overrides,
    Surroundings,
    placed_at,
    shorter_name,
)
from gateway.domain.agents import AgentDef

NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what it was made of, for those who explain it."""

    config: GatewayConfig
    document: Document
    origins: Mapping[KeyPath, str]  # in words, of what neither file nor default said


def load(
    path: Path | None,
    *,
    environment: Mapping[str, str],
    home: Path,
    cwd: Path,
    known: Known,
    overrides: Overrides = NO_OVERRIDES,
) -> GatewayConfig:
    """Reads and checks everything; raises ConfigInvalid with every problem at once."""
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    is_named = is_named_file(path, environment)
    return read(found, Surroundings(environment, home, cwd, known, overrides, is_named)).config


def find_file(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path
) -> Path | None:
    """The file that counts: a named one even if it is missing, then the usual places."""
    named = path or value_of(environment, CONFIG)
    if named is not None:
        return cwd / named
    usual = (cwd / "config.toml", home / ".config" / "exogate" / "config.toml")
    return next((file for file in usual if file.exists()), None)


def is_named_file(path: Path | None, environment: Mapping[str, str]) -> bool:
    """Whether the operator says which file counts; else it is found."""
    return bool(path or value_of(environment, CONFIG))


def find_data_dir(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path, given: Path | None
) -> Path:
    """Where the gateway of this configuration keeps its data, however broken the rest of it is; `given`
    by the command line comes first. Raises ConfigInvalid for a file that cannot be read.
    """
    if given is not None:
        return given.absolute()
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    written = written_data_dir(found, shorter_name(found, home=home, cwd=cwd)) if found else None
    folder = found.absolute().parent if found else cwd
    return placed_at(written or str(GatewaySettings().data_dir), folder, home=home).absolute()


def read(path: Path | None, around: Surroundings) -> Loaded:
    """`path` None: no file. Raises ConfigInvalid with every problem at once."""
    return interpreted(read_document(path, around.name(path)) if path else Document(), around)


def interpreted(document: Document, around: Surroundings) -> Loaded:
    """Raises ConfigInvalid with every problem at once."""
    reading = Reading(around, document)
    reader = SectionReader(reading.names)
    written = _sections(reader, reading.tree)
    config = _resolved(reading, written)
    found = [*reader.dangling, *reading.findings]
    findings = [*reader.findings, *without_consequences(found, reader.findings)]
    if findings:
        sources = reading.variables
        findings = [
            replace(one, variable=one.variable or sources.get(one.path)) for one in findings
        ]
        raise placed(findings, document, left_out=reader.left_out, notices=reading.notices)
    return Loaded(config, document, _origins(reading, config))


def _sections(reader: SectionReader, tree: Mapping[str, Any]) -> GatewayConfig:
    """What is written. Agents have the limits and the context that all have, but for their own."""
    shared = {name: tree[name] for name in ("limits", "context") if name in tree}
    for_all = reader.section(GatewayConfig, shared, ())
    reader.usual[AgentDef] = replace(
        blank(AgentDef), limits=for_all.limits, context=for_all.context
    )
    rest = {name: value for name, value in tree.items() if name not in shared}
    written: GatewayConfig = reader.section(GatewayConfig, rest, ())
    return replace(written, limits=for_all.limits, context=for_all.context)


def _resolved(reading: Reading, written: GatewayConfig) -> GatewayConfig:
    """All of it followed, merged and checked. Providers come behind those who ask them."""
    agents, subagents = resolve_agents(reading, written), resolve_subagents(reading, written)
    delegation, names = written.delegation, [one.name for one in subagents]
    if delegation.is_enabled:
        where, fix = ("delegation", "subagent"), ", or add [[subagents]] with it"
        reading.refers(where, "subagent", delegation.subagent, names, or_else=fix)
    plugins = resolve_plugins(reading, written.plugins)
    channels = resolve_channels(reading, written.channels, plugins)
    servers = resolve_servers(reading, written)
    providers, key_origins = resolve_providers(reading, written)
    gateway = resolve_gateway(reading, written)
    tokens = resolve_tokens(reading, written.tokens, gateway.token)
    check_projects(reading, written.projects)
    check_bindings(reading, written.bindings)
    rules, rule_folder = resolve_rules(reading, written)
    check_budgets(reading, written)
    _check_file(reading)
    config = replace(written, providers=providers, subagents=subagents)
    by_place = {path: agent for (path, _), agent in zip(places(written), agents, strict=False)}
    check_prices(reading, config, by_place)
    if delegation.is_enabled:
        agents = tuple(with_result(agent) for agent in agents)
    return replace(
        config,
        gateway=gateway,
        tokens=tokens,
        agent=agents[0] if written.agent else None,
        agents=agents,
        default_agent=agents[0].id if written.agent else None,
        plugins=plugins,
        channels=channels,
        mcp=replace(written.mcp, servers=servers),
        rules=rules,
        rule_folder=rule_folder,
        key_origins=key_origins,
        origin=reading.document.path,
        notices=tuple(reading.notices),
    )


def _check_file(reading: Reading) -> None:
    """Who else can read a file with secrets, or write it."""
    document = reading.document
    if document.can_others_read and any(one.code == "literal-secret" for one in reading.notices):
        message = f"other users can read {document.name}, which holds secrets"
        reading.note("readable-file", (), message, f"chmod 600 {document.path}")
    if why := document.why_writable():
        message = f"{why}, and could change what the gateway does: {document.name}"
        reading.note("writable-file", (), message, f"chmod go-w {document.path}")


def _origins(reading: Reading, config: GatewayConfig) -> dict[KeyPath, str]:
    origins = {path: f"environment {variable}" for path, variable in reading.variables.items()}
    for name, origin in config.key_origins.items():
        words = origin if origin.startswith("secret file") else f"environment {origin}"
        if origin != "config":
            origins["providers", name, "api_key"] = words
    for key in ("port", "data_dir"):
        if getattr(reading.around.overrides, key) is not None:
            origins["gateway", key] = "command line"
    return origins
