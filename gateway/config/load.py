"""Loads the GatewayConfig from the file, the environment and the command line; lists every value in force with its
origin, secrets masked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.access import resolve_cluster, resolve_gateway, resolve_store, resolve_tokens
from gateway.config.agents import (
    check_bindings,
    check_projects,
    places,
    resolve_agents,
    resolve_subagents,
    with_result,
)
from gateway.config.document import Document, build_error, read_data_dir, read_document
from gateway.config.environment import CONFIG, value_of
from gateway.config.plugins import as_host, resolve_channels, resolve_plugins
from gateway.config.problems import KeyPath, dotted, items_of, without_consequences
from gateway.config.providers import (
    check_budgets,
    check_prices,
    resolve_providers,
    resolve_servers,
    resolve_traces,
)
from gateway.config.reading import Reading
from gateway.config.rules import resolve_rules
from gateway.config.secrets import (
    MASK,
    absolute_files,
    is_sensitive,
    secret_folders,
    strike_arguments,
    strike_value,
)
from gateway.config.sections import (
    ROOT,
    SectionKey,
    SectionReader,
    blank,
    element_of,
    is_section,
    keys_here,
    keys_of,
)
from gateway.config.values import (
    GatewayConfig,
    GatewaySettings,
    Inputs,
    Known,
    Overrides,
    resolve_path,
    short_name,
)
from gateway.domain.agents import AgentDef
from gateway.domain.budgets import Limit
from gateway.domain.events import Action
from gateway.domain.ids import Secret
from gateway.domain.mcp import McpServerDef
from gateway.domain.plugins import PluginSecret
from gateway.domain.settings import Setting

NO_OVERRIDES = Overrides()
_SHORTEST = 6  # characters; a shorter value also occurs in unrelated words
_WITHOUT_NONE = {"bindings", "rules"}  # sections whose unset keys have no row


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration with its document and the origins of its values."""

    config: GatewayConfig
    document: Document
    origins: Mapping[KeyPath, str]  # only variables, secret files and the command line


def load(
    path: Path | None,
    *,
    environment: Mapping[str, str],
    home: Path,
    cwd: Path,
    known: Known,
    overrides: Overrides = NO_OVERRIDES,
) -> GatewayConfig:
    """Loads and checks the configuration. Raises ConfigInvalid with all problems."""
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    is_named = is_named_file(path, environment)
    return read(found, Inputs(environment, home, cwd, known, overrides, is_named)).config


def find_file(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path
) -> Path | None:
    """Returns the named file even if it is missing, else the first usual file that exists, else None."""
    named = path or value_of(environment, CONFIG)
    if named is not None:
        return cwd / named
    return next((file for file in usual_files(home, cwd) if file.exists()), None)


def usual_files(home: Path, cwd: Path) -> tuple[Path, ...]:
    """Returns the default paths of the file; the first that exists wins."""
    return (cwd / "config.toml", home / ".config" / "exogate" / "config.toml")


def is_named_file(path: Path | None, environment: Mapping[str, str]) -> bool:
    """True if the operator names the file."""
    return bool(path or value_of(environment, CONFIG))


def find_data_dir(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path, given: Path | None
) -> Path:
    """Returns the data directory of this configuration, even if the file has errors. `given`, from the command
    line, wins. Raises ConfigInvalid if the file cannot be read."""
    if given is not None:
        return given.absolute()
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    written = read_data_dir(found, short_name(found, home=home, cwd=cwd)) if found else None
    folder = found.absolute().parent if found else cwd
    return resolve_path(written or str(GatewaySettings().data_dir), folder, home=home).absolute()


def read(path: Path | None, inputs: Inputs) -> LoadedConfig:
    """Reads the file, if any, and resolves the configuration. Raises ConfigInvalid with all problems."""
    return interpret(read_document(path, inputs.name(path)) if path else Document(), inputs)


def interpret(document: Document, inputs: Inputs) -> LoadedConfig:
    """Resolves the configuration of a document. Raises ConfigInvalid with all problems."""
    reading = Reading(inputs, document)
    reader = SectionReader(reading)
    written = _read_sections(reader, reading.tree)
    in_tree = dict(reading.variables)  # later ones override the values of the tree
    config = _resolve(reading, written)
    later = without_consequences(reading.findings, reader.findings)
    findings = [replace(one, variable=in_tree.get(one.path)) for one in reader.findings]
    findings += [replace(one, variable=reading.variables.get(one.path)) for one in later]
    if findings:
        raise build_error(findings, document, left_out=reader.left_out, notices=reading.notices)
    return LoadedConfig(config, document, _known_origins(reading, config))


def _read_sections(reader: SectionReader, tree: Mapping[str, Any]) -> GatewayConfig:
    """Reads the sections. Agents inherit [limits] and [context] and may override them."""
    shared = {name: tree[name] for name in ("limits", "context") if name in tree}
    for_all = reader.section(GatewayConfig, shared, ())
    reader.usual[AgentDef] = replace(
        blank(AgentDef), limits=for_all.limits, context=for_all.context
    )
    rest = {name: value for name, value in tree.items() if name not in shared}
    written: GatewayConfig = reader.section(GatewayConfig, rest, ())
    return replace(written, limits=for_all.limits, context=for_all.context)


def _resolve(reading: Reading, written: GatewayConfig) -> GatewayConfig:
    """Resolves and checks all sections. Providers come after the sections that use them."""
    rules, rule_folder = resolve_rules(reading, written)
    agents, subagents = resolve_agents(reading, written), resolve_subagents(reading, written)
    delegation = written.delegation
    if delegation.is_enabled:
        where, or_else = ("delegation", "subagent"), "; or add [[subagents]] with this name"
        reading.refers(where, "subagent", delegation.subagent, or_else=or_else)
    plugins = resolve_plugins(reading, written.plugins)
    channels = resolve_channels(reading, written.channels, plugins)
    servers = resolve_servers(reading, written)
    providers, key_origins = resolve_providers(reading, written)
    gateway = resolve_gateway(reading, written)
    tokens = resolve_tokens(reading, written.tokens, gateway.token)
    check_projects(reading, written.projects)
    check_bindings(reading, written.bindings)
    check_budgets(reading, written)
    _check_file(reading)
    config = replace(written, providers=providers, subagents=subagents)
    by_place = {path: agent for (path, _), agent in zip(places(written), agents, strict=False)}
    check_prices(reading, config, by_place)
    if delegation.is_enabled:
        agents = tuple(with_result(agent) for agent in agents)
    inputs, document = reading.inputs, reading.document
    folders = secret_folders(inputs.environment, inputs.home)
    absent = () if document.path else usual_files(inputs.home, inputs.cwd)
    return replace(
        config,
        gateway=gateway,
        tokens=tokens,
        store=resolve_store(reading, written.store),
        cluster=resolve_cluster(reading, written),
        agent=agents[0] if written.agent else None,
        agents=agents,
        default_agent=agents[0].id if written.agent else None,
        plugins=plugins,
        channels=channels,
        mcp=replace(written.mcp, servers=servers),
        observability=resolve_traces(reading, written.observability),
        rules=rules,
        rule_folder=rule_folder,
        key_origins=key_origins,
        origin=document.path,
        notices=tuple(reading.notices),
        secret_folders=folders,
        other_files=(*folders, *absolute_files(document.text), *absent),
    )


def _check_file(reading: Reading) -> None:
    """Warns if other users can read a file with secrets, or write the file."""
    document = reading.document
    if document.can_others_read and any(one.code == "literal-secret" for one in reading.notices):
        message = f"other users can read {document.name}, which contains secrets"
        reading.note("readable-file", (), message, f"chmod 600 {document.path}")
    if why := document.why_writable():
        message = f"{why}, and could change what the gateway does: {document.name}"
        reading.note("writable-file", (), message, f"chmod go-w {document.path}")


def _known_origins(reading: Reading, config: GatewayConfig) -> dict[KeyPath, str]:
    origins = {path: f"environment {variable}" for path, variable in reading.variables.items()}
    for name, origin in config.key_origins.items():
        words = origin if origin.startswith("secret file") else f"environment {origin}"
        if origin != "config":
            origins["providers", name, "api_key"] = words
    for key in ("port", "data_dir"):
        if getattr(reading.inputs.overrides, key) is not None:
            origins["gateway", key] = "command line"
    return origins


@dataclass(frozen=True, slots=True)
class Row:
    """A value in force, as JSON data; None: not set."""

    key: str
    value: object
    origin: str


def effective(loaded: LoadedConfig) -> tuple[Row, ...]:
    """Returns all values in force, in the order of the documentation."""
    return tuple(
        Row(dotted(path), value, _origin(path, loaded))
        for key in keys_of(GatewayConfig).values()
        for path, value in _values((key.name,), _own_value(key, loaded), key.kind, key.setting)
    )


def _own_value(key: SectionKey, loaded: LoadedConfig) -> object:
    """Returns the value of a section, without items that another section or file defines."""
    config = loaded.config
    if key.name == "agents":
        return config.further_agents
    if key.name == "rules":
        name = loaded.document.name
        return tuple(one for one in config.rules if one.source.partition(":")[0] == name)
    if key.name == "rules_dir":
        return config.rule_folder.path if config.rule_folder else None
    return getattr(config, key.field)


def _values(
    path: KeyPath, value: Any, kind: Any, about: Setting = ROOT
) -> Iterator[tuple[KeyPath, object]]:
    """Yields each plain value inside a value, with its path."""
    element = element_of(kind)
    if isinstance(value, Secret) or "headers" in path[:-1]:
        yield path, MASK
    elif isinstance(value, Action | PluginSecret):
        yield from _unknown(path, _file_table(value))
    elif is_section(kind) and value is not None:
        yield from _of_section(path, value, about)
    elif is_section(element) or (isinstance(value, Mapping) and element is not object):
        for part, item in _items(value, about):
            yield from _values((*path, part), item, element, about)
    else:
        yield from _unknown(path, value)


def _items(value: Any, about: Setting) -> Iterable[tuple[str | int, Any]]:
    """Returns the items as the file has them: by name, by key or by place."""
    return items_of({item.name: item for item in value} if about.by_name else value)


def _of_section(path: KeyPath, section: Any, about: Setting) -> Iterator[tuple[KeyPath, object]]:
    for name, key in keys_here(section.__class__, about).items():
        value = _file_value(section, key)
        if value is not None or not (name == "fallback" or path[0] in _WITHOUT_NONE):
            yield from _values((*path, name), value, key.kind, key.setting)


def _file_table(value: Action | PluginSecret) -> Mapping[str, object]:
    """Returns the table that the file has for this value."""
    if isinstance(value, Action):
        return {value.kind: value.value, **value.options}
    return {"value": MASK, "hosts": sorted(map(as_host, value.origins))}


def _file_value(section: object, key: SectionKey) -> object:
    """Returns the value of a key as the file would have it."""
    value, words = getattr(section, key.field), key.setting.words
    if isinstance(section, McpServerDef) and key.name == "args":
        values = [one.reveal() for one in (*section.env.values(), *section.headers.values())]
        return strike_arguments(section.args, [one for one in values if len(one) >= _SHORTEST])
    if key.setting.scale > 1 and value is not None:
        return value / key.setting.scale
    if words:
        return next((word for word, number in words.items() if number == value), value)
    return None if value == Limit() else value


def _unknown(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    """Yields the values of a table without a schema; keys that look secret are masked."""
    is_plain_list = isinstance(value, list) and not any(isinstance(x, dict | list) for x in value)
    if isinstance(value, Mapping | list) and not is_plain_list:
        for name, item in items_of(value):
            yield from _unknown((*path, name), item)
    elif path[2:3] == ("config",) and is_sensitive(path[3:]):
        yield path, MASK
    else:
        yield path, _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        value = sorted(value)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, str):
        return strike_value(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def _origin(path: KeyPath, loaded: LoadedConfig) -> str:
    if path in loaded.origins:
        return loaded.origins[path]
    positions = loaded.document.positions
    if path in positions.places:
        line, _ = loaded.document.line_column(positions.span(path, "key").start)
        return f"{loaded.document.name}:{line}"
    elsewhere: KeyPath = ()
    match path:
        case ("providers", str(name), "wire" | "base_url"):
            return f"preset {name}"
        case ("plugins" | "channels", _, "secrets", str(), "value") | ("budgets", _, *_, "tokens"):
            elsewhere = path[:-1]
        case ("agent", "limits" | "context", _):
            elsewhere = path[1:]
        case ("agents", int(), "limits" | "context", _):
            elsewhere = path[2:]
    return _origin(elsewhere, loaded) if elsewhere else "default"
