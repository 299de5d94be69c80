"""What a plugin says of itself: checked, cut to size, and never trusted with a name of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.codec import encode
from gateway.domain.model import ToolSpec
from gateway.domain.plugins import AdapterSaid, PluginDef, PluginKind

LARGEST = 256 * 1024  # characters of all that it describes
LONGEST_DESCRIPTION = 4096
MOST_TOOLS = 64

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Sentence = Annotated[str, Field(max_length=LONGEST_DESCRIPTION)]


class _Said(BaseModel):
    """More keys may be there; they are not looked at."""

    model_config = ConfigDict(strict=True)


class ToolSaid(_Said):
    """One tool of a plugin."""

    name: Name
    description: Sentence = ""
    parameters: dict[str, Any] = Field(default_factory=dict, description="JSON Schema")
    category: str | None = Field(None, max_length=64)
    agent_scope: list[str] = Field(default_factory=list, max_length=64)
    annotations: dict[str, Any] = Field(default_factory=dict)


class ToolPluginSaid(_Said):
    """What `describe` of a tool plugin answers."""

    name: str = Field(max_length=64)
    version: str = Field("", max_length=64)
    description: Sentence = ""
    tools: list[ToolSaid] = Field(min_length=1, max_length=MOST_TOOLS)


@dataclass(frozen=True, slots=True)
class Described:
    """`names` are the plugin's own, by the name that a model knows."""

    version: str
    description: str
    tools: tuple[ToolSpec, ...]
    names: dict[str, str]
    adapter: Any = None  # of a channel adapter: what `read_adapter` gave


def described(
    plugin: PluginDef,
    kind: PluginKind,
    answer: str,
    read_adapter: Callable[[str], AdapterSaid],
) -> Described:
    """Raises ValueError with what is wrong, on one line."""
    if len(answer) > LARGEST:
        raise ValueError(f"what it describes is larger than {LARGEST // 1024} KiB")
    if kind == "channel":
        adapter = read_adapter(answer)
        version, about = adapter.version[:64], adapter.description[:LONGEST_DESCRIPTION]
        return Described(plain(version), plain(about), (), {}, adapter)
    try:
        said = ToolPluginSaid.model_validate_json(answer)
    except ValidationError as error:
        raise ValueError(f"what it describes cannot be used: {_first(error)}") from error
    names = {_tool_name(plugin, tool.name): tool for tool in said.tools}
    if len(names) < len(said.tools):
        raise ValueError("what it describes cannot be used: two of its tools have the same name")
    tools = tuple(
        ToolSpec(
            name,
            plain(tool.description),
            encode({"type": "object", **tool.parameters}).decode(),
            family=plugin.name,
            category=None if tool.category is None else plain(tool.category),
            agent_scope=tuple(tool.agent_scope),
        )
        for name, tool in names.items()
    )
    own = {name: tool.name for name, tool in names.items()}
    return Described(plain(said.version), plain(said.description), tools, own)


def _tool_name(plugin: PluginDef, own: str) -> str:
    """A foreign plugin cannot take the name of another's tool; the shipped ones are known."""
    return own if plugin.is_bundled or own == plugin.name else f"{plugin.name}__{own}"


def plain(text: str) -> str:
    """No control characters: it is shown in terminals."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def _first(error: ValidationError) -> str:
    """Where and what; never the value, which may be of any size."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
