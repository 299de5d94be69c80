"""The thorough way: a document, the environment and the command line become one configuration."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gateway.config.access import Access
from gateway.config.agents import Agents, resolve_bindings, resolve_projects
from gateway.config.budgets import PriceCheck, add_usual_budget, resolve_budgets
from gateway.config.channels import Channels
from gateway.config.checking import check
from gateway.config.delegation import resolve_delegation, with_results
from gateway.config.document import Document, read_document
from gateway.config.environment import (
    AGENT_KEYS,
    DEMO,
    ENCODING,
    MCP_SERVER,
    MCP_URL,
    TOKEN,
    Choice,
    usual_choice,
    value_of,
)
from gateway.config.given import Given
from gateway.config.mcp import McpServers
from gateway.config.mcp_serving import resolve_serving
from gateway.config.plugins import BUNDLED, Plugins
from gateway.config.problems import Code, KeyPath, Report, is_news
from gateway.config.providers import Providers
from gateway.config.rules import RuleReader, check_agents
from gateway.config.schema import ConfigFile
from gateway.config.secrets import SecretSource
from gateway.config.subagents import resolve_subagents
from gateway.config.values import (
    GatewayConfig,
    Known,
    ObservabilitySettings,
    Overrides,
    QueueSettings,
    RuleFolder,
    SandboxSettings,
    StoreSettings,
    Surroundings,
)
from gateway.domain.agents import OWN_TOOLS, RESULT, AgentDef, SubagentDef
from gateway.domain.budgets import Budgets
from gateway.domain.channels import ChannelDef
from gateway.domain.events import RuleDef
from gateway.domain.ids import AgentId
from gateway.domain.mcp import FAMILY, McpNotInstalled
from gateway.domain.text import quoted

# What a variable's key has to belong to, and how that is called.
_NEEDED = {
    "agent": (("agent",), "default agent"),
    "mcp": (("mcp", "servers", MCP_SERVER), f"MCP server {quoted(MCP_SERVER)}, nor {MCP_URL}"),
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what it was made of, for those who explain it."""

    config: GatewayConfig
    document: Document
    sections: ConfigFile
    origins: Mapping[KeyPath, str]  # in words, of what neither file nor default said


def read(path: Path | None, around: Surroundings) -> Loaded:
    """`path` None: no file. Raises ConfigInvalid with every problem at once."""
    document = read_document(path, around.name(path)) if path else Document()
    return interpreted(document, around)


def interpreted(document: Document, around: Surroundings) -> Loaded:
    """Raises ConfigInvalid with every problem at once."""
    report = Report()
    content = {**document.content}
    choice = _add_usual_agent(content, around, report)
    variables = _add_variables(content, around, choice, report)
    names = _Names(
        _agent_ids(content),
        _provider_names(content, around.known),
        _plugin_names(content),
        _channel_names(content),
    )
    reading = _Reading(around, document, choice, names, report)
    sections, wrong, left_out = check(content)
    config = reading.config(sections) if sections is not None else None
    if sections is None or config is None or wrong or report.findings:
        # tree-sitter and all that only errors need
        from gateway.config.placing import placed  # noqa: PLC0415  # only errors need a place

        findings = [
            replace(found, variable=found.variable or variables.get(found.path))
            for found in (*wrong, *(f for f in report.findings if is_news(f, wrong)))
        ]
        raise placed(findings, document, left_out=left_out, notices=report.notices)
    return Loaded(config, document, sections, _origins(config, variables, around.overrides))


def _origins(
    config: GatewayConfig, variables: Mapping[KeyPath, str], overrides: Overrides
) -> dict[KeyPath, str]:
    origins = {path: f"environment {variable}" for path, variable in variables.items()}
    for name, origin in config.key_origins.items():
        words = origin if origin.startswith("secret file") else f"environment {origin}"
        if origin != "config":
            origins["providers", name, "api_key"] = words
    for key in ("port", "data_dir"):
        if getattr(overrides, key) is not None:
            origins["gateway", key] = "command line"
    return origins


@dataclass(frozen=True, slots=True)
class _Names:
    """As they are written, also wrong ones: whoever uses such is not wrong a second time."""

    agents: tuple[str, ...]
    providers: tuple[str, ...]
    plugins: Mapping[str, bool]  # whether it is enabled
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reading:
    around: Surroundings
    document: Document
    choice: Choice
    names: _Names
    report: Report

    def config(self, sections: ConfigFile) -> GatewayConfig:
        around, report, path, names = self.around, self.report, self.document.path, self.names
        folder = path.absolute().parent if path else around.cwd
        source = SecretSource(around.environment, around.home, report)
        agents = Agents(
            around, self.choice, names.providers, names.plugins, sections, folder, report
        )
        definitions = agents.resolve()
        subagents = resolve_subagents(sections.subagents, agents, names.agents)
        delegation = resolve_delegation(sections.delegation, sections.subagents, report)
        self._check_trust(sections)
        given = Given(source, report)
        plugins = Plugins(around, given, folder, report).resolve(sections.plugins)
        known = (names.plugins, around.known.bundled)
        channels = Channels(given, report, plugins, *known).resolve(sections.channels)
        self._check_mentions(sections, channels)
        self._check_mcp(sections)
        providers = Providers(around.known, source, report, agents.used)
        providers.resolve(sections.providers)
        access = Access(around, source, folder, report)
        gateway = access.settings(sections.gateway)
        grants = access.grants(sections.tokens, names.agents, gateway.token)
        is_meant = sections.gateway.token is not None or TOKEN in around.environment
        has_tokens = is_meant or bool(sections.tokens)
        access.check_door(gateway.bind, gateway.token, has_tokens=has_tokens)
        bindings = resolve_bindings(sections.bindings, names.agents, names.channels, report)
        rules, rule_folder = self._rules(sections, folder)
        if self.document.can_others_read and any(
            n.code == "literal-secret" for n in report.notices
        ):
            message = f"others can read {self.document.name}, and it holds secrets"
            report.note("readable-file", (), message, f"chmod 600 {path}")
        if why := self.document.why_writable():
            message = f"{why}, and so decide what the gateway does: {self.document.name}"
            report.note("writable-file", (), message, f"chmod go-w {path}")
        return GatewayConfig(
            gateway=gateway,
            agents=with_results(definitions, delegation),
            default_agent=AgentId(sections.agent.id) if sections.agent else None,
            providers=providers.definitions,
            key_origins=providers.key_origins,
            origin=path,
            tokens=grants,
            plugins=plugins,
            sandbox=SandboxSettings(**dict(sections.sandbox)),
            mcp_servers=McpServers(source, report).resolve(sections.mcp.servers),
            channels=channels,
            bindings=bindings,
            projects=resolve_projects(sections.projects, report),
            subagents=subagents,
            delegation=delegation,
            rules=tuple(rules.values()),
            rule_folder=rule_folder,
            budgets=self._budgets(sections, agents, (definitions, subagents), providers),
            store=StoreSettings(**dict(sections.store)),
            queue=QueueSettings(**dict(sections.queue)),
            mcp_serving=resolve_serving(sections.mcp.serve, names.plugins, report),
            observability=ObservabilitySettings(**dict(sections.observability)),
            notices=tuple(report.notices),
        )

    def _check_mentions(self, sections: ConfigFile, channels: Sequence[ChannelDef]) -> None:
        """A room whose adapter knows no mention stays silent until somebody answers the bot."""
        paths = {one.name: one.path.removeprefix(BUNDLED) for one in sections.plugins}
        for channel in channels:
            bundled = self.around.known.bundled.get(paths.get(channel.plugin, ""))
            key = bundled.mention_key if bundled else None
            if key is None or channel.config.get(key) not in (None, ""):
                continue
            for room, rule in channel.groups.items():
                asked = rule.require_mention
                if channel.require_mention if asked is None else asked:
                    message = f"rooms need a mention, and config.{key} is missing to know one"
                    fix = f"add {key} to config of [channels.{channel.name}], or require_mention = false"
                    where = ("channels", channel.name, "groups", room)
                    self.report.note("no-mentions", where, message, fix)

    def _check_mcp(self, sections: ConfigFile) -> None:
        if self.around.known.has_mcp:
            return
        places: list[KeyPath] = [("mcp", "servers", name) for name in sections.mcp.servers]
        if sections.mcp.serve.enabled:
            places.append(("mcp", "serve", "enabled"))
        for place in places:
            error = McpNotInstalled()
            message, _, fix = str(error).partition(": ")
            self.report.wrong(Code.NOT_INSTALLED, place, message, fix, at="table")

    def _check_trust(self, sections: ConfigFile) -> None:
        """A file that only lies in the current folder starts no program for whoever else wrote it."""
        programs = [name for name, one in sections.mcp.servers.items() if one.command is not None]
        why = self.document.why_untrusted() if programs and not self.around.is_named else None
        if why is None:
            return
        message = f"{self.document.name} was found, not named, and starts a program, but {why}"
        fix = f"read it, then chown or chmod 600 it, or name it: --config {self.document.name}"
        for name in programs:
            where = ("mcp", "servers", name, "command")
            self.report.wrong(Code.UNTRUSTED_FILE, where, message, fix)

    def _budgets(
        self,
        sections: ConfigFile,
        agents: Agents,
        asked: tuple[Sequence[AgentDef], Sequence[SubagentDef]],
        providers: Providers,
    ) -> Budgets:
        """The limits, each of which can hold."""
        budgets = resolve_budgets(sections.budgets, self.names.agents, self.report)
        reader = sections.delegation.subagent if sections.delegation.enabled else None
        is_priced = self.around.known.is_priced
        check = PriceCheck(budgets, providers.definitions, is_priced, self.report, reader)
        check.agents(agents.places(), *asked)
        return budgets

    def _rules(
        self, sections: ConfigFile, folder: Path
    ) -> tuple[dict[str, RuleDef], RuleFolder | None]:
        known, report, rule_folder = self.around.known, self.report, None
        reader = RuleReader(known.rule_problems, self.around.name)
        core = reader.file(known.core_rules, {}) if known.core_rules else ()
        rules = {rule.id: rule for rule in core}
        own = reader.rules(sections.rules, self.document, report, rules)
        rules |= {rule.id: rule for rule in own}
        if sections.rules_dir:
            path = self.around.path(sections.rules_dir, folder).absolute()
            if not path.is_dir():
                message, fix = (
                    f"there is no folder {quoted(str(path))}",
                    "create it, or remove this",
                )
                report.wrong(Code.MISSING_FILE, ("rules_dir",), message, fix)
            rule_folder = reader.folder(path, rules)
        if (
            rule_folder is None or not rule_folder.refused
        ):  # else it may be there once that is mended
            more = rule_folder.rules if rule_folder else ()
            check_agents(sections, [*rules, *(rule.id for rule in more)], report)
        return rules, rule_folder


def _add_usual_agent(content: dict[str, Any], around: Surroundings, report: Report) -> Choice:
    """The agent of a configuration without any: it has the usual plugins and all of the file that
    are no channel's."""
    choice = usual_choice(around.environment, around.known)
    if "agent" not in content and "agents" not in content:
        _add_usual_plugins(content, around.known)
        add_usual_budget(content, choice)
        names = _plugin_names(content).items()
        taken = {*_adapters(content), RESULT}  # it is there where something is kept for it
        tools = [name for name, is_enabled in names if name and is_enabled and name not in taken]
        content["agent"] = {"id": choice.agent_id, "tools": [*tools, *_variable_tools(around)]}
        if choice.others:
            message = f"{choice.variable} is used; set as well: {', '.join(choice.others)}"
            fix = "choose with [agent] provider"
            report.note("several-keys", ("agent", "provider"), message, fix)
    return choice


def _adapters(content: Mapping[str, Any]) -> Collection[object]:
    channels = content.get("channels", {})
    tables = channels.values() if isinstance(channels, dict) else ()
    return [one.get("plugin") for one in tables if isinstance(one, dict)]


def _add_usual_plugins(content: dict[str, Any], known: Known) -> None:
    """Behind those of the file, so that a position in the list is one in the file."""
    own = content.get("plugins", [])
    if not isinstance(own, list):
        return  # the schema will say so
    tables = [one for one in own if isinstance(one, dict)]
    # Under another name it is the same plugin, whose tools nobody may have twice.
    taken = [one.get("name") for one in tables] + [one.get("path") for one in tables]
    usual = [
        {"name": name, "path": f"{BUNDLED}{name}", "capabilities": list(plugin.needs)}
        for name, plugin in known.bundled.items()
        if plugin.is_usual and name not in taken and f"{BUNDLED}{name}" not in taken
    ]
    content["plugins"] = [*own, *usual]


def _add_variables(
    content: dict[str, Any], around: Surroundings, choice: Choice, report: Report
) -> dict[KeyPath, str]:
    """Adds what variables say; which they are, by path."""
    variables: dict[KeyPath, str] = {}
    if value_of(around.environment, TOKEN):
        variables["gateway", "token"] = TOKEN
    agent = content.get("agent")
    if choice.variable and isinstance(agent, dict) and "provider" not in agent:
        variables["agent", "provider"] = choice.variable
    if _variable_tools(around) and isinstance(agent, dict) and "tools" not in agent:
        content["agent"] = {**agent, "tools": [*_variable_tools(around)]}
        variables["agent", "tools"] = MCP_URL
    return variables | _put_variables(content, around, report)


def _put_variables(
    content: dict[str, Any], around: Surroundings, report: Report
) -> dict[KeyPath, str]:
    variables: dict[KeyPath, str] = {}
    if value_of(around.environment, ENCODING):
        message = f"{ENCODING} is set, but there is no tokenizer: tokens are estimated"
        report.note("unused-variable", ("agent",), message, "unset it")
    for variable, (path, kind) in AGENT_KEYS.items():
        text, (needed, told) = value_of(around.environment, variable), _NEEDED[path[0]]
        if text and variable != MCP_URL and not _is_there(content, needed):
            message = f"{variable} is set, but there is no {told}"
            report.note("unused-variable", path, message, f"add [{'.'.join(needed)}], or unset it")
        elif text and _put(content, path, kind, text):
            variables[path] = variable
    return variables


def _variable_tools(around: Surroundings) -> Collection[str]:
    """The tools of the server that a variable adds, for an agent whose list says nothing else."""
    return (f"{FAMILY}{MCP_SERVER}",) if value_of(around.environment, MCP_URL) else ()


def _is_there(content: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def _put(content: dict[str, Any], path: tuple[str, ...], kind: Any, text: str) -> bool:
    """Sets a value below tables; not where something else stands."""
    for part in path[:-1]:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            return False
    try:
        content[path[-1]] = kind(text)
    except ValueError:  # the schema will say so
        content[path[-1]] = text
    return True


def _agent_ids(content: Mapping[str, Any]) -> tuple[str, ...]:
    more = content.get("agents")
    tables = [content.get("agent"), *(more if isinstance(more, list) else ())]
    return tuple(str(table.get("id", "main")) for table in tables if isinstance(table, dict))


def _provider_names(content: Mapping[str, Any], known: Known) -> tuple[str, ...]:
    own = content.get("providers")
    names = (*known.presets, DEMO, *(own if isinstance(own, dict) else ()))
    return tuple(dict.fromkeys(names))


def _channel_names(content: Mapping[str, Any]) -> tuple[str, ...]:
    own = content.get("channels")
    return tuple(own) if isinstance(own, dict) else ()


def _plugin_names(content: Mapping[str, Any]) -> dict[str, bool]:
    """With the tools that are there without a plugin."""
    own = content.get("plugins")
    tables = own if isinstance(own, list) else ()
    return {
        table["name"]: table.get("enabled", True) is not False
        for table in tables
        if isinstance(table, dict) and isinstance(table.get("name"), str)
    } | dict.fromkeys(OWN_TOOLS, True)
