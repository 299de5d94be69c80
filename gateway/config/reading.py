"""The input of a configuration: the tree of the file with the values of variables and the built-in agent, and the
names that it defines. A wrong definition also counts as a name, so that its uses are not reported again."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.document import Document
from gateway.config.environment import (
    AGENT_KEYS,
    ENCODING,
    MCP_SERVER,
    MCP_URL,
    key_variables,
    value_of,
)
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.secrets import SecretProblem, is_sendable, resolve
from gateway.config.values import Inputs, Known
from gateway.domain.agents import OPEN_PROJECT, OWN_TOOLS, RESULT
from gateway.domain.ids import Secret
from gateway.domain.mcp import FAMILY
from gateway.domain.text import quoted

BUNDLED = "bundled:"
DEMO = "demo"  # the built-in provider, which has no settings
DEMO_DAILY = 20_000
DEMO_TURNS = 4  # turns in the context; a small number leaves budget for more messages
USUAL_DAILY = 200_000
# The section that the key of a variable needs, and its name in messages.
_NEEDED = {
    "agent": (("agent",), "default agent"),
    "mcp": (("mcp", "servers", MCP_SERVER), f"MCP server {quoted(MCP_SERVER)}, nor {MCP_URL}"),
}


@dataclass(frozen=True, slots=True)
class UsualProvider:
    """The provider of an agent that names none: the first preset with a key, else the demo.

    `variable` holds the key; `others` are variables with unused keys.
    """

    provider: str = DEMO
    variable: str | None = None
    others: tuple[str, ...] = ()

    @property
    def agent_id(self) -> str:
        """The id of the built-in agent."""
        return DEMO if self.provider == DEMO else "main"


def usual_choice(environment: Mapping[str, str], known: Known) -> UsualProvider:
    found = [
        (name, variable)
        for name, preset in known.presets.items()
        for variable in key_variables(name, preset.key_variable)
        if value_of(environment, variable)
    ]
    if not found:
        return UsualProvider()
    (provider, variable), *rest = found
    return UsualProvider(provider, variable, tuple(v for name, v in rest if name != provider))


def default_model(provider: str, known: Known) -> str | None:
    if provider == DEMO:
        return DEMO
    preset = known.presets.get(provider)
    return preset.default_model if preset else None


@dataclass(slots=True)
class Reading(Report):
    """The state of reading one configuration."""

    inputs: Inputs
    document: Document
    tree: dict[str, Any] = field(init=False)
    choice: UsualProvider = field(init=False)
    # The variables in use, by the path of the key that they set.
    variables: dict[KeyPath, str] = field(default_factory=dict)
    # Providers, with the path of their first use.
    used: dict[str, KeyPath] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = dict(self.document.content)
        self.choice = usual_choice(self.inputs.environment, self.known)
        if "agent" not in self.tree and "agents" not in self.tree:
            self._add_usual_agent()
        self._add_variables()
        tree, known = self.tree, self.known
        agents = [tree.get("agent"), *_list(tree.get("agents"))]
        self.names = {
            "agent": [str(one.get("id", "main")) for one in agents if isinstance(one, dict)],
            "provider": list(dict.fromkeys([*known.presets, DEMO, *_table(tree.get("providers"))])),
            "channel": list(_table(tree.get("channels"))),
            "MCP server": list(_table(_table(tree.get("mcp")).get("servers"))),
            "plugin": list(self.plugins),
            "project": [OPEN_PROJECT, *_names(tree.get("projects"), "id")],
            "subagent": _names(tree.get("subagents"), "name"),
            "decision tree": known.decisions,
            "tree": known.trees,
        }

    @property
    def known(self) -> Known:
        return self.inputs.known

    @property
    def folder(self) -> Path:
        """The folder where relative paths start."""
        path = self.document.path
        return path.absolute().parent if path else self.inputs.cwd

    @property
    def plugins(self) -> dict[str, bool]:
        """The names of all plugins; True if the plugin is enabled."""
        tables = _list(self.tree.get("plugins"))
        return {
            table["name"]: table.get("enabled", True) is not False
            for table in tables
            if isinstance(table, dict) and isinstance(table.get("name"), str)
        }

    def value_at(self, path: Sequence[str | int]) -> Any:
        """Returns the value at a path, from the file or a variable; None if it is absent."""
        here: Any = self.tree
        for part in path:
            is_known = isinstance(here, dict) and part in here
            if not is_known and not (isinstance(here, list) and isinstance(part, int)):
                return None
            here = here[part]
        return here

    def resolve(
        self, path: KeyPath, text: str, *, is_needed: bool = True, is_open: bool = False
    ) -> str | None:
        """Returns a text with its references resolved; None after a problem is reported.

        A reference that is not needed may be missing. A text that is not secret (`is_open`) may be literal.
        """
        if "${" not in text and not is_open:
            fix = 'write "${env:NAME}" or "${file:name}" instead'
            self.note("literal-secret", path, "the configuration contains a secret", fix)
        try:
            inputs = self.inputs
            return resolve(text, inputs.environment, inputs.home, inputs.pending)
        except SecretProblem as problem:
            if is_needed or problem.code == Code.MALFORMED:
                self.wrong(problem.code, path, problem.message, problem.fix)
            else:
                self.note("unused-secret", path, problem.message, problem.fix)
            return None

    def secret(
        self, path: KeyPath, written: Secret | None, *, is_needed: bool = True
    ) -> Secret | None:
        """Like `resolve`, for a secret that may be absent."""
        if written is None:
            return None
        value = self.resolve(path, written.reveal(), is_needed=is_needed)
        return None if value is None else Secret(value)

    def variable(self, path: KeyPath, name: str) -> Secret | None:
        """Returns the secret in a variable that sets the key; None after a problem is reported."""
        value, self.variables[path] = self.inputs.environment[name], name
        if is_sendable(value):
            return Secret(value)
        message, fix = "a header cannot carry this value", "use ASCII characters on one line"
        self.wrong(Code.MALFORMED, path, message, fix)
        return None

    def file(self, where: KeyPath, written: str, fix: str) -> str:
        """Returns the absolute path of a file, and reports a file that cannot be read."""
        found = self.inputs.path(written, self.folder).absolute()
        if not found.is_file() or not os.access(found, os.R_OK):
            message = f"the file {quoted(str(found))} does not exist or cannot be read"
            self.wrong(Code.MISSING_FILE, where, message, fix)
        return str(found)

    def _add_usual_agent(self) -> None:
        """Adds the built-in agent with the usual plugins and those of the file that are not adapters. A daily limit
        prevents a surprising bill."""
        choice, tree = self.choice, self.tree
        self._add_usual_plugins()
        is_demo = choice.provider == DEMO
        usual = [("budgets", "daily", DEMO_DAILY if is_demo else USUAL_DAILY)]
        usual += [("context", "recent_turns", DEMO_TURNS)] if is_demo else []
        for section, key, value in usual:
            own = tree.get(section, {})
            if isinstance(own, dict):  # the reader reports other values
                tree[section] = {key: value, **own}
        channels = _table(tree.get("channels")).values()
        adapters = {one.get("plugin") for one in channels if isinstance(one, dict)}
        plugins = {**self.plugins, **dict.fromkeys(OWN_TOOLS, True)}
        # The tool `result` is added where delegation is enabled.
        tools = [name for name, is_on in plugins.items() if is_on and name not in {RESULT, ""}]
        tools = [name for name in tools if name not in adapters]
        tree["agent"] = {"id": choice.agent_id, "tools": [*tools, *self._variable_tools()]}
        if choice.others:
            message = f"{choice.variable} is used; also set: {', '.join(choice.others)}"
            fix = "choose one: [agent] provider"
            self.note("several-keys", ("agent", "provider"), message, fix)

    def _add_usual_plugins(self) -> None:
        """Adds the usual plugins after those of the file, so that an index is the same in the file."""
        own = self.tree.get("plugins", [])
        if not isinstance(own, list):
            return  # the reader reports it
        tables = [one for one in own if isinstance(one, dict)]
        # A plugin of the file may be a usual one under another name.
        taken = [one.get("name") for one in tables] + [one.get("path") for one in tables]
        usual = [
            {"name": name, "path": f"{BUNDLED}{name}", "capabilities": list(plugin.needs)}
            for name, plugin in self.known.bundled.items()
            if plugin.is_usual and name not in taken and f"{BUNDLED}{name}" not in taken
        ]
        self.tree["plugins"] = [*own, *usual]

    def _variable_tools(self) -> list[str]:
        """Returns the tools of the MCP server that a variable adds, if the agent lists no tools."""
        is_set = value_of(self.inputs.environment, MCP_URL)
        return [f"{FAMILY}{MCP_SERVER}"] if is_set else []

    def _add_variables(self) -> None:
        """Adds the values of variables, which override the file."""
        environment, variables = self.inputs.environment, self.variables
        agent = self.tree.get("agent")
        if self.choice.variable and isinstance(agent, dict) and "provider" not in agent:
            variables["agent", "provider"] = self.choice.variable
        if self._variable_tools() and isinstance(agent, dict) and "tools" not in agent:
            self.tree["agent"] = {**agent, "tools": self._variable_tools()}
            variables["agent", "tools"] = MCP_URL
        if value_of(environment, ENCODING):
            message = f"{ENCODING} has no effect: the gateway estimates tokens"
            self.note("unused-variable", ("agent",), message, "unset it")
        self._add_agent_keys()

    def _add_agent_keys(self) -> None:
        """Adds the values of variables that set one key each."""
        for variable, (path, kind) in AGENT_KEYS.items():
            text, (needed, name) = value_of(self.inputs.environment, variable), _NEEDED[path[0]]
            if text and variable != MCP_URL and self.value_at(needed) is None:
                message = f"{variable} is set, but there is no {name}"
                fix = f"add [{'.'.join(needed)}], or unset it"
                self.note("unused-variable", path, message, fix)
            elif text and self._put(path, kind, text):
                self.variables[path] = variable

    def _put(self, path: tuple[str, ...], kind: Any, text: str) -> bool:
        """Sets a value in copies of its tables. Returns False if a part of the path is not a table."""
        here: Any = self.tree
        for part in path[:-1]:
            below = here.get(part, {})
            if not isinstance(below, dict):
                return False
            here[part] = dict(below)
            here = here[part]
        try:
            here[path[-1]] = kind(text)
        except ValueError:  # the reader reports it
            here[path[-1]] = text
        return True


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(tables: object, key: str) -> list[str]:
    return [str(one[key]) for one in _list(tables) if isinstance(one, dict) and key in one]
