"""What a configuration is read from: the tree of the file with what variables and a start without any
agent add to it, and the names in it, also wrong ones: whoever uses such is not wrong a second time."""

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
    TOKEN,
    key_variables,
    value_of,
)
from gateway.config.problems import Code, KeyPath, Report
from gateway.config.secrets import SecretProblem, is_sendable, resolve
from gateway.config.values import Known, Surroundings
from gateway.domain.agents import OPEN_PROJECT, OWN_TOOLS, RESULT
from gateway.domain.mcp import FAMILY
from gateway.domain.text import quoted

BUNDLED = "bundled:"
DEMO = "demo"  # the provider in this process: no address, no key, nothing to configure
DEMO_DAILY = 20_000
DEMO_TURNS = 4  # older ones are recalled; so that a day is long enough to try things
USUAL_DAILY = 200_000
# What a variable's key has to belong to, and how that is called.
_NEEDED = {
    "agent": (("agent",), "default agent"),
    "mcp": (("mcp", "servers", MCP_SERVER), f"MCP server {quoted(MCP_SERVER)}, nor {MCP_URL}"),
}


@dataclass(frozen=True, slots=True)
class UsualProvider:
    """The provider of an agent that names none: the one whose key is at hand, else the demo.

    `variable` is where the key comes from; `others` are keys that are left unused.
    """

    provider: str = DEMO
    variable: str | None = None
    others: tuple[str, ...] = ()

    @property
    def agent_id(self) -> str:
        """What the agent of a start without any is called."""
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
    """One configuration while it is read."""

    around: Surroundings
    document: Document
    tree: dict[str, Any] = field(init=False)
    choice: UsualProvider = field(init=False)
    variables: dict[KeyPath, str] = field(default_factory=dict)  # what they gave, by path
    used: dict[str, KeyPath] = field(default_factory=dict)  # providers, with the first place

    def __post_init__(self) -> None:
        self.tree = dict(self.document.content)
        self.choice = usual_choice(self.around.environment, self.known)
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
        return self.around.known

    @property
    def folder(self) -> Path:
        """What relative paths are relative to."""
        path = self.document.path
        return path.absolute().parent if path else self.around.cwd

    @property
    def plugins(self) -> dict[str, bool]:
        """Whether each is enabled."""
        tables = _list(self.tree.get("plugins"))
        return {
            table["name"]: table.get("enabled", True) is not False
            for table in tables
            if isinstance(table, dict) and isinstance(table.get("name"), str)
        }

    def given(self, path: Sequence[str | int]) -> Any:
        """What the file or a variable says; None for nothing."""
        here: Any = self.tree
        for part in path:
            is_known = isinstance(here, dict) and part in here
            if not is_known and not (isinstance(here, list) and isinstance(part, int)):
                return None
            here = here[part]
        return here

    def follow(
        self, path: KeyPath, text: str, *, is_needed: bool = True, is_open: bool = False
    ) -> str | None:
        """What a text leads to by its references; None once its problem is reported.

        What nothing needs may be missing; a text that is no secret (`is_open`) may be literal.
        """
        if "${" not in text and not is_open:
            fix = 'write "${env:NAME}" or "${file:name}" instead'
            self.note("literal-secret", path, "the configuration contains a secret", fix)
        try:
            around = self.around
            return resolve(text, around.environment, around.home, around.pending)
        except SecretProblem as problem:
            if is_needed or problem.code == Code.MALFORMED:
                self.wrong(problem.code, path, problem.message, problem.fix)
            else:
                self.note("unused-secret", path, problem.message, problem.fix)
            return None

    def variable(self, path: KeyPath, name: str) -> str | None:
        """What a variable holds that stands for a secret; None once its problem is reported."""
        value = self.around.environment[name]
        if is_sendable(value):
            return value
        message, fix = "a header cannot carry it", "use plain characters, on one line"
        self.wrong(Code.MALFORMED, path, message, fix, variable=name)
        return None

    def file(self, where: KeyPath, written: str, fix: str) -> str:
        """The path of a file; reported if it cannot be read."""
        found = self.around.path(written, self.folder).absolute()
        if not found.is_file() or not os.access(found, os.R_OK):
            message = f"there is no file {quoted(str(found))} that can be read"
            self.wrong(Code.MISSING_FILE, where, message, fix)
        return str(found)

    def _add_usual_agent(self) -> None:
        """It has the usual plugins, and all of the file that are no channel's. A day has a limit, so that
        nobody is surprised by a bill."""
        choice, tree = self.choice, self.tree
        self._add_usual_plugins()
        is_demo = choice.provider == DEMO
        usual = [("budgets", "daily", DEMO_DAILY if is_demo else USUAL_DAILY)]
        usual += [("context", "recent_turns", DEMO_TURNS)] if is_demo else []
        for section, key, value in usual:
            own = tree.get(section, {})
            if isinstance(own, dict):  # else the reader will say so
                tree[section] = {key: value, **own}
        channels = _table(tree.get("channels")).values()
        adapters = {one.get("plugin") for one in channels if isinstance(one, dict)}
        plugins = {**self.plugins, **dict.fromkeys(OWN_TOOLS, True)}
        # the tool `result` is there where something is kept for it
        tools = [name for name, is_on in plugins.items() if is_on and name not in {RESULT, ""}]
        tools = [name for name in tools if name not in adapters]
        tree["agent"] = {"id": choice.agent_id, "tools": [*tools, *self._variable_tools()]}
        if choice.others:
            message = f"{choice.variable} is used; also set: {', '.join(choice.others)}"
            fix = "choose with [agent] provider"
            self.note("several-keys", ("agent", "provider"), message, fix)

    def _add_usual_plugins(self) -> None:
        """Behind those of the file, so that a position in the list is one in the file."""
        own = self.tree.get("plugins", [])
        if not isinstance(own, list):
            return  # the reader will say so
        tables = [one for one in own if isinstance(one, dict)]
        # Under another name it is the same plugin, whose tools nobody may have twice.
        taken = [one.get("name") for one in tables] + [one.get("path") for one in tables]
        usual = [
            {"name": name, "path": f"{BUNDLED}{name}", "capabilities": list(plugin.needs)}
            for name, plugin in self.known.bundled.items()
            if plugin.is_usual and name not in taken and f"{BUNDLED}{name}" not in taken
        ]
        self.tree["plugins"] = [*own, *usual]

    def _variable_tools(self) -> list[str]:
        """The tools of the server that a variable adds, for an agent whose list says nothing else."""
        is_set = value_of(self.around.environment, MCP_URL)
        return [f"{FAMILY}{MCP_SERVER}"] if is_set else []

    def _add_variables(self) -> None:
        """What variables say comes before the file."""
        environment, variables = self.around.environment, self.variables
        agent = self.tree.get("agent")
        if value_of(environment, TOKEN):
            variables["gateway", "token"] = TOKEN
        if self.choice.variable and isinstance(agent, dict) and "provider" not in agent:
            variables["agent", "provider"] = self.choice.variable
        if self._variable_tools() and isinstance(agent, dict) and "tools" not in agent:
            self.tree["agent"] = {**agent, "tools": self._variable_tools()}
            variables["agent", "tools"] = MCP_URL
        if value_of(environment, ENCODING):
            message = f"{ENCODING} is set, but there is no tokenizer: tokens are estimated"
            self.note("unused-variable", ("agent",), message, "unset it")
        self._add_agent_keys()

    def _add_agent_keys(self) -> None:
        """The variables that stand for one key each."""
        for variable, (path, kind) in AGENT_KEYS.items():
            text, (needed, called) = value_of(self.around.environment, variable), _NEEDED[path[0]]
            if text and variable != MCP_URL and self.given(needed) is None:
                message = f"{variable} is set, but there is no {called}"
                fix = f"add [{'.'.join(needed)}], or unset it"
                self.note("unused-variable", path, message, fix)
            elif text and self._put(path, kind, text):
                self.variables[path] = variable

    def _put(self, path: tuple[str, ...], kind: Any, text: str) -> bool:
        """Sets a value below tables, which are the tree's own then; not where something else stands."""
        here: Any = self.tree
        for part in path[:-1]:
            below = here.get(part, {})
            if not isinstance(below, dict):
                return False
            here[part] = dict(below)
            here = here[part]
        try:
            here[path[-1]] = kind(text)
        except ValueError:  # the reader will say so
            here[path[-1]] = text
        return True


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _names(tables: object, key: str) -> list[str]:
    return [str(one[key]) for one in _list(tables) if isinstance(one, dict) and key in one]
