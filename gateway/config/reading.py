"""The thorough way: a document, the environment and the command line become one configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.config.access import Access, token_origins
from gateway.config.agent_defs import Agents, resolve_bindings
from gateway.config.checking import check
from gateway.config.choice import DEMO, Choice, usual_choice
from gateway.config.document import Document, read_document
from gateway.config.environment import AGENT_KEYS, value_of
from gateway.config.problems import Finding, KeyPath, Report
from gateway.config.provider_defs import Providers
from gateway.config.schema import AgentSection, ConfigFile
from gateway.config.secrets import SecretSource
from gateway.config.values import (
    GatewayConfig,
    Known,
    ObservabilitySettings,
    Overrides,
    QueueSettings,
    StoreSettings,
)
from gateway.config.zero import MAIN, usual_agent_id
from gateway.domain.ids import AgentId


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with what it was made of, for those who explain it."""

    config: GatewayConfig
    document: Document
    sections: ConfigFile
    variables: Mapping[KeyPath, str]  # paths whose values came from the environment
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a configuration is read in."""

    environment: Mapping[str, str]
    home: Path
    cwd: Path
    known: Known
    overrides: Overrides


def read(
    path: Path | None,
    *,
    environment: Mapping[str, str],
    home: Path,
    cwd: Path,
    known: Known,
    overrides: Overrides,
) -> Loaded:
    """`path` None: no file. Raises ConfigInvalid with every problem at once."""
    around = Surroundings(environment, home, cwd, known, overrides)
    document = read_document(path, _name(path, around)) if path else Document()
    report = Report()
    content, variables = _with_environment(document, around, report)
    checked = check(content)
    left_out = checked.left_out
    sections = checked.sections or _what_is_right(content, checked.findings)
    config = None
    if sections is not None:
        config = _Reading(around, document, content, report).resolve(sections)
    findings = [*checked.findings, *_new(report.findings, checked.findings)]
    if findings or config is None or sections is None:
        # tree-sitter and all that only errors need
        from gateway.config.placing import placed  # noqa: PLC0415

        raise placed(findings, document, variables, left_out=left_out)
    return Loaded(config, document, sections, variables, overrides)


def _what_is_right(
    content: Mapping[str, object], findings: tuple[Finding, ...]
) -> ConfigFile | None:
    # only errors need it
    from gateway.config.mending import mended  # noqa: PLC0415

    return mended(content, findings)


def _new(later: list[Finding], first: tuple[Finding, ...]) -> list[Finding]:
    """What follows from a mistake that is reported already is no news."""
    return [f for f in later if not any(_on_one_line(f.path, known.path) for known in first)]


def _on_one_line(one: KeyPath, other: KeyPath) -> bool:
    length = min(len(one), len(other))
    return one[:length] == other[:length]


def _name(path: Path, around: Surroundings) -> str:
    """The file as messages call it: as short as it is clear."""
    if path.is_relative_to(around.cwd):
        return str(path.relative_to(around.cwd))
    if path.is_relative_to(around.home):
        return f"~/{path.relative_to(around.home)}"
    return str(path)


def _with_environment(
    document: Document, around: Surroundings, report: Report
) -> tuple[dict[str, object], dict[KeyPath, str]]:
    """The content with the usual agent, if there is none, and what the environment says of it."""
    content = dict(document.content)
    variables: dict[KeyPath, str] = token_origins(around.environment)
    if "agent" not in content and "agents" not in content:
        choice = usual_choice(around.environment, around.known)
        content["agent"] = {"id": usual_agent_id(choice), "tools": list(around.known.tools)}
        _note_others(choice, report)
    for variable, path in AGENT_KEYS.items():
        value = value_of(around.environment, variable)
        if value is None:
            continue
        if "agent" not in content:
            message = f"{variable} is set, but there is no default agent"
            report.note("unused-variable", path, message, "add [agent], or unset it")
        elif _put(content, path, _typed(path, value)):
            variables[path] = variable
    return content, variables


def _note_others(choice: Choice, report: Report) -> None:
    if choice.others:
        message = f"{choice.variable} is used; set as well: {', '.join(choice.others)}"
        fix = "choose with [agent] provider"
        report.note("several-keys", ("agent", "provider"), message, fix)


def _typed(path: KeyPath, text: str) -> object:
    """A variable's text as the type that its key has; as it is, if it cannot be."""
    try:
        if path[-1] == "temperature":
            return float(text)
        if path[-1] == "token_budget":
            return int(text)
    except ValueError:
        return text
    return text


def _put(content: dict[str, object], path: KeyPath, value: object) -> bool:
    """Sets a value in copies of the tables above it; not where those are no tables."""
    here = content
    for part in path[:-1]:
        below = here.get(str(part), {})
        if not isinstance(below, dict):
            return False
        here[str(part)] = below = dict(below)
        here = below
    here[str(path[-1])] = value
    return True


@dataclass(frozen=True, slots=True)
class _Reading:
    around: Surroundings
    document: Document
    content: Mapping[str, object]
    report: Report

    def resolve(self, sections: ConfigFile) -> GatewayConfig:
        around, path = self.around, self.document.path
        folder = path.absolute().parent if path else around.cwd
        source = SecretSource(around.environment, around.home)
        agents = self._agents(sections, folder)
        definitions = agents.resolve(_entries(sections))
        ids = self._agent_ids()
        providers = Providers(around.known, source, self.report, agents.used)
        resolved = providers.resolve(sections.providers)
        access = Access(source, folder, self.report)
        gateway = access.settings(sections.gateway, around.overrides)
        grants = access.grants(sections.tokens, ids, gateway.token)
        wanted = bool(sections.gateway.token) or bool(sections.tokens)
        access.check_door(gateway, has_tokens=wanted)
        bindings = resolve_bindings(sections.bindings, ids, self.report)
        self._note_readable()
        return GatewayConfig(
            gateway=gateway,
            agents=definitions,
            default_agent=AgentId(sections.agent.id) if sections.agent else None,
            providers=resolved.definitions,
            key_origins=resolved.key_origins,
            origin=path,
            tokens=grants,
            bindings=bindings,
            store=StoreSettings(**dict(sections.store)),
            queue=QueueSettings(**dict(sections.queue)),
            observability=ObservabilitySettings(**dict(sections.observability)),
            notices=tuple(self.report.notices),
        )

    def _agents(self, sections: ConfigFile, folder: Path) -> Agents:
        known = self.around.known
        written = self.content.get("providers")
        own = tuple(written) if isinstance(written, dict) else ()
        names = tuple(dict.fromkeys((*known.presets, DEMO, *own)))
        return Agents(
            known,
            usual_choice(self.around.environment, known),
            names,
            sections.limits,
            sections.context,
            folder,
            self.around.home,
            self.report,
        )

    def _agent_ids(self) -> tuple[str, ...]:
        """As they are written, also wrong ones: whoever names such is not wrong a second time."""
        written = self.content.get("agents")
        tables = [self.content.get("agent"), *(written if isinstance(written, list) else ())]
        ids = [table.get("id", MAIN) for table in tables if isinstance(table, dict)]
        return tuple(dict.fromkeys(text for text in ids if isinstance(text, str)))

    def _note_readable(self) -> None:
        has_literals = any(notice.code == "literal-secret" for notice in self.report.notices)
        if has_literals and self.document.mode & 0o044:
            message = f"others can read {self.document.name}, and it holds secrets"
            self.report.note("readable-file", (), message, f"chmod 600 {self.document.path}")


def _entries(sections: ConfigFile) -> list[tuple[KeyPath, AgentSection]]:
    first: list[tuple[KeyPath, AgentSection]] = []
    if sections.agent is not None:
        first.append((("agent",), sections.agent))
    return [*first, *((("agents", i), agent) for i, agent in enumerate(sections.agents))]
