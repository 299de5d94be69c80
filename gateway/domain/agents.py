"""Agents with their limits, souls and prompts, subagents, and the bindings that choose an agent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Literal

from gateway.domain.ids import AgentId, RunId, SessionKey, encode_part
from gateway.domain.messages import READS
from gateway.domain.settings import Setting, setting

# What extracts facts. "auto": patterns after each turn, and a model whenever one compacts.
Extraction = Literal["auto", "model", "patterns", "off"]
FactScope = Literal["person", "agent"]  # "agent": all users of the agent share its facts
MEMORY, RESULT = "memory", READS
OWN_TOOLS = (MEMORY, RESULT)  # tools that an agent may list beside plugins


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run, and when to warn before they are reached."""

    max_iterations: int = setting(15, "Model calls of one run.", 1, 50)
    soft_warning_percent: int = setting(70, "Share of the limit that causes a warning.", 50, 90)
    token_budget: int = setting(50_000, "Tokens of one run.", 1_000, 200_000)
    token_warning_percent: int = setting(80, "Share of the limit that causes a warning.", 50, 95)
    timeout_seconds: int = setting(120, "Seconds of one run.", 10, 600)
    max_tool_calls_per_turn: int = setting(5, "Tool calls of one reply.", 1, 20)
    max_parallel_tools: int = setting(3, "Tools that run at the same time.", 1, 10)
    tool_timeout_s: float = setting(30.0, "Seconds of one tool call.", 0.1, 600)
    error_limit: int = setting(3, "Turns in a row in which every tool call failed.", 1, 20)
    loop_window: int = setting(6, "Number of turns in which repeated calls are counted.", 2, 20)
    loop_threshold: int = setting(3, "Repetitions in these turns that count as a loop.", 2, 10)
    no_progress_repeats: int = setting(
        3, "Identical calls with identical results in a row that count as a loop.", 2, 10
    )


# Least and greatest value of each limit, in the configuration and in the settings of users.
_LIMITS = {one.name: one.metadata["setting"] for one in fields(Limits)}
BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {name: (one.least, one.most) for name, one in _LIMITS.items()}
)
AUTO = 0  # `token_budget` is the usual share of the model's window


@dataclass(frozen=True, slots=True)
class ContextRules:
    """Settings for the part of a conversation that the model gets."""

    token_budget: int = setting(
        16_000,
        'Estimated tokens of the context; "auto" is 0.8 of the model\'s window.',
        4_000,
        128_000,
        words={"auto": AUTO},
    )
    recent_turns: int = setting(12, "Exchanges (question and answer) in the context.", 1, 1_000)
    warning_percent: int = setting(70, "Share of the model's window that causes a warning.", 50, 95)
    extraction: Extraction = setting(
        "auto",
        "How facts are extracted: patterns; model, asked after each turn; auto, patterns and "
        "a model that compacts anyway; off.",
    )
    fact_scope: FactScope = setting("person", "Facts in use: of the person, or of all users.")
    quiet_s: float = 5.0  # without a message, before a model extracts facts from the session
    facts: int = setting(12, "Most facts in the context.", 0, 100)
    semantic: bool = setting(True, "Search facts and earlier turns for the question.")
    compact_percent: int = setting(80, "Share of token_budget that triggers a summary.", 30, 95)
    max_nodes: int = setting(30, "Messages before inactive branches are archived.", 1, 10_000)
    expire_days: int | None = setting(
        None, "Unused time after which a session is closed. Absent: never.", 1, 36_500
    )


OPEN_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class ProjectDef:
    """A group of agents that answer only these users: principals by name, people on a channel as
    `speaker` names them."""

    id: Annotated[str, Setting("Its name: letters, digits and hyphens.", form="id")]
    users: Annotated[
        tuple[str, ...], Setting("Names of tokens; local, operator; channel:account:person.")
    ]


@dataclass(frozen=True, slots=True)
class AgentDef:
    """One agent. `fallback` answers when the agent's own provider fails."""

    id: Annotated[
        AgentId, Setting("Its name: letters, digits and hyphens.", form="id", usual="main")
    ]
    provider: Annotated[
        str, Setting("Absent: the preset whose key is at hand, else demo.", usual=None)
    ]
    model: Annotated[str, Setting("The model's name. Absent: the preset's own.", usual=None)]
    max_tokens: int = setting(4096, "Tokens of one reply, at most.", 1)
    temperature: float | None = setting(None, "From 0 to 2; sent only if set.", 0, 2)
    context_window: int = setting(
        128_000,
        "Tokens that the model can read. Absent: the known size.",
        1_024,
        100_000_000,
        usual=None,
    )
    thinking: bool = setting(False, "Ask the model to think first; an error where it cannot.")
    stream: bool = setting(True, "Stream the reply.")
    system_prompt: str = setting("", "Instructions after its soul.", form="any")
    soul_path: str | None = setting(
        None, "Its character, a Markdown file. Absent: the shipped one.", form="path"
    )
    prompt_template: str | None = setting(
        None, "Template of the system prompt, a Markdown file.", form="path"
    )
    tools: tuple[str, ...] = setting(
        (),
        "Plugins, each with all of its tools, or PLUGIN/TOOL; mcp:SERVER, or mcp:SERVER/TOOL.",
        unique="",
    )
    project: str = setting(
        OPEN_PROJECT,
        "default: it answers all users; else one of [[projects]].",
        form="id",
        refers="project",
    )
    tree: str = setting("default", "Its loop: default, oracle-agent, or a .bt file.", form="path")
    decision: str = setting(
        "default",
        "Policy that decides whether a run goes on: default, or an installed one.",
        refers="decision tree",
    )
    rules: tuple[str, ...] = setting((), "Ids of its rules besides the core rules. Empty: all.")
    fallback: "AgentDef | None" = setting(
        None,
        "The model that answers when this one cannot.",
        needs=("provider",),
        only=(
            *("provider", "model", "max_tokens", "temperature", "context_window"),
            *("thinking", "stream", "fallback"),
        ),
    )
    limits: Limits = setting(Limits(), "Its own limits; the rest is from [limits].")
    context: ContextRules = setting(ContextRules(), "Its own context; the rest is from [context].")
    subagents: tuple[str, ...] = setting((), "[[subagents]] that it may call.", refers="subagent")

    @property
    def chain(self) -> "tuple[AgentDef, ...]":
        """The agent and its fallbacks, in the order in which they are asked."""
        return (self, *(self.fallback.chain if self.fallback else ()))


@dataclass(frozen=True, slots=True)
class Soul:
    agent_id: AgentId
    content: str
    token_count: int
    loaded_from: str
    loaded_at: datetime


PLACES = ("soul", "system_prompt", "notes", "threads", "tools", "facts", "summary")
_PART = re.compile(r"\{\{|\}\}|\{([^{}\n]*)\}|[{}]")


class TemplateInvalid(ValueError):
    """`line` and `column` count from 1; `name` is the unknown placeholder, if there is one."""

    def __init__(self, text: str, at: int, problem: str, name: str | None = None) -> None:
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        self.problem, self.name = problem, name
        super().__init__(f"{self.line}:{self.column}: {problem}")


@dataclass(frozen=True, slots=True)
class Template:
    """Texts, each with the placeholder that follows it; the last text has none."""

    parts: tuple[tuple[str, str], ...]

    @property
    def places(self) -> frozenset[str]:
        return frozenset(name for _, name in self.parts)

    def render(self, values: Mapping[str, str]) -> str:
        """Inserts the values without parsing them again; a placeholder without a value is empty."""
        return "".join(text + values.get(name, "") for text, name in self.parts)


def compile_prompt(text: str) -> Template:
    """Parses a prompt template. Raises TemplateInvalid."""
    parts: list[tuple[str, str]] = []
    before, end = "", 0
    for found in _PART.finditer(text):
        before, end = before + text[end : found.start()], found.end()
        name = found[1]
        if name is None:
            if len(found[0]) == 1:
                raise TemplateInvalid(text, found.start(), "write {{ or }} for a single brace")
            before += found[0][0]
            continue
        if name not in PLACES:
            problem = f"there is no placeholder {found[0][:64]}"
            raise TemplateInvalid(text, found.start(), problem, name)
        if any(name == known for _, known in parts):
            raise TemplateInvalid(text, found.start(), f"placeholder {found[0]} is used twice")
        parts.append((before, name))
        before = ""
    return Template((*parts, (before + text[end:], "")))


DELEGATE = "delegate_"  # prefix of the tools that call subagents
MOST_DEPTH = 2  # a subagent may call a subagent, which may call none


@dataclass(frozen=True, slots=True)
class SubagentDef:
    """A subagent. A field that is absent has the value of its parent."""

    name: Annotated[
        str, Setting("Its name: letters, digits and hyphens, 55 at most.", form="subagent")
    ]
    prompt_path: Annotated[str, Setting("Its instructions, a Markdown file.", form="path")]
    description: str = setting("", "Its purpose, for the model of its parent.", form="any")
    tools: tuple[str, ...] = setting((), "Names of plugins, or PLUGIN/TOOL.", unique="")
    max_turns: int = setting(10, "Model calls of one task.", 1, 50)
    timeout_seconds: int = setting(1_200, "Seconds of one task, if its parent has them.", 1, 86_400)
    provider: str | None = setting(None, "Absent: its parent's.")
    model: str | None = setting(None, "Absent: its parent's, or the usual one of its provider.")
    context_window: int | None = None  # of the subagent's own model
    output_limit: int | None = None  # tokens of a reply of the subagent's own model

    @property
    def tool(self) -> str:
        """The name of the tool by which its parent calls it."""
        return f"{DELEGATE}{self.name}"


@dataclass(frozen=True, slots=True)
class Delegation:
    """Settings for summaries of large tool results by a subagent. `items` is keyed by a tool's bare
    name."""

    is_enabled: bool = setting(False, "Whether large results are summarized.", key="enabled")
    subagent: str = setting("librarian", "Name of one of [[subagents]].")
    token_estimate: int = setting(4_000, "Summarize results above this many estimated tokens.", 100)
    items: Mapping[str, int] = setting(
        {"vault_search": 6, "search_code": 6, "vault_list": 10, "thread_read": 20},
        "Entries beyond which a result is summarized, by tool name.",
        0,
    )
    score_similarity: float = setting(0.1, "Least difference in score of entries that are kept.", 0)


@dataclass(frozen=True, slots=True)
class Original:
    """A tool's full result, of which the model got an excerpt. `reference` is derived from the run
    and the call, so that a second attempt finds it."""

    reference: str
    session_key: SessionKey
    run_id: RunId
    tool: str
    content: str
    at: datetime


MatchedBy = Literal["peer", "guild", "team", "account", "channel", "default", "request"]
OWN_CHANNELS = frozenset({"websocket", "api"})  # the account is the principal's name

# A token or a channel's account, between which turns are divided; and a person within it.
Share = tuple[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class Address:
    """The place where a message was sent. `sender` is the person; in a direct chat this is the
    peer."""

    channel: str
    account: str
    peer: str = "main"
    guild: str | None = None
    team: str | None = None
    thread: str | None = None
    sender: str | None = None
    is_foreign: bool = False  # on a platform, where other people choose the names of rooms
    is_room: bool = False  # of a channel: `peer` is the id of a room, not of a direct chat


@dataclass(frozen=True, slots=True)
class Binding:
    """Chooses an agent; every field that is set must match."""

    agent_id: Annotated[AgentId, Setting("The agent that answers.", refers="agent")]
    channel: str | None = setting(None, "The channel's name.")
    account_id: str | None = setting(None, "The account on that channel.")
    peer_id: str | None = setting(None, "The person or room.")
    guild_id: str | None = setting(None, "The server or guild.")
    team_id: str | None = setting(None, "The team or workspace.")


def peer_of(room: str, thread: str | None = None, *, is_foreign: bool = False) -> str:
    """Returns the peer of a session key, as `room/thread`. On a platform `~1` encodes a slash and
    `~0` a tilde, so that no room name reads as another room's thread."""
    parts: tuple[str, ...] = (room,) if thread is None else (room, thread)
    if is_foreign:
        parts = tuple(part.replace("~", "~0").replace("/", "~1") for part in parts)
    return "/".join(parts)


_ROOM, _DIRECT = "room:", "direct:"


def key_peer(raw: str, *, is_room: bool) -> str:
    """Returns the peer of a channel's session. The prefixes keep apart rooms and people that have
    the same id on the platform."""
    if is_room:
        return _ROOM + raw
    return _DIRECT + raw if raw.startswith((_ROOM, _DIRECT)) else raw


def raw_peer(peer: str) -> tuple[str, bool]:
    """Inverts `key_peer`: returns the platform's id, and whether it is a room's."""
    if peer.startswith(_ROOM):
        return peer.removeprefix(_ROOM), True
    return peer.removeprefix(_DIRECT), False


def place_in(key: SessionKey) -> tuple[str, str | None]:
    """Returns the platform's ids of the room or direct chat, and of the thread."""
    if key.channel in OWN_CHANNELS:
        return key.peer, None
    room, is_thread, thread = peer_in(key).partition("/")
    place = [part.replace("~1", "/").replace("~0", "~") for part in (room, thread)]
    return place[0], place[1] if is_thread else None


def peer_in(key: SessionKey) -> str:
    """Returns the peer as the platform knows it. Principals choose the names of their own
    conversations freely."""
    return key.peer if key.channel in OWN_CHANNELS else raw_peer(key.peer)[0]


def person_in(key: SessionKey, sender: str | None) -> str:
    """Returns the speaker as the peer of a key. On a channel no person has the same peer as a
    room."""
    if not sender or sender == key.peer or key.channel in OWN_CHANNELS:
        return sender or key.peer
    return key_peer(sender, is_room=False)


def address_in(channel: str, account: str, peer: str, *, is_raw: bool = True) -> Address:
    """Returns the address of a peer that a caller named; on a channel `room:ID` is the room with
    that id. Unless `is_raw`, any other peer is already encoded as in a session key."""
    if channel in OWN_CHANNELS:
        return Address(channel, account, peer)
    raw, is_room = raw_peer(peer)
    return Address(channel, account, raw, is_foreign=is_raw or is_room, is_room=is_room)


def of_person(key: SessionKey, sender: str | None) -> str:
    """Returns the key of an agent and a person, under which facts, plugin stores and notes are
    kept: in a room the person is the sender, else the peer."""
    if not sender or sender == key.peer:
        return str(key)
    return str(key._replace(peer=person_in(key, sender)))


def person_key(key: SessionKey, sender: str | None = None) -> str:
    """Returns `channel:account:peer`, which names a person for every agent."""
    return of_person(key, sender).partition(":")[2]


def speaker(channel: str, account: str, person: str) -> str:
    """Names a speaker: a principal by its name, a person on a channel by the address."""
    if channel in OWN_CHANNELS:
        return encode_part(account)
    return ":".join(map(encode_part, (channel, account, person)))


def speaker_in(key: SessionKey, sender: str | None) -> str:
    """Names the speaker of a session, as `speaker` does."""
    if key.channel in OWN_CHANNELS:
        return encode_part(key.account)
    return speaker(key.channel, key.account, person_in(key, sender))


def share_of(key: SessionKey, sender: str | None) -> Share:
    """Returns the share of turns that a session uses. Each principal has a share of its own. The
    people of a channel's account divide one share, so that a channel gains no turns by having more
    people."""
    if key.channel in OWN_CHANNELS:
        return (key.account,), ""
    return (key.channel, key.account), sender or key.peer
