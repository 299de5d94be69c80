"""The keys of `[channels]`, `[[bindings]]`, `[[projects]]` and `[[subagents]]`: who is answered, and
by whom."""

from typing import Any

from gateway.config.kinds import (
    Id,
    PathText,
    PluginName,
    PluginSecretText,
    SecretName,
    Section,
    SubagentName,
    Text,
    key,
)
from gateway.domain.agents import SubagentDef
from gateway.domain.channels import ChannelDef, DmPolicy, OnUnknown, TransportKind

_CHANNEL = ChannelDef("", "")
_SUBAGENT = SubagentDef("", "")


class GroupSection(Section):
    """Who may talk in one room."""

    allow_from: list[Text] = key([], "Ids of those who may talk there. Empty: whoever is in it.")
    require_mention: bool | None = key(None, "Absent: as the channel has it.")


class ChannelSection(Section):
    """A place where people write: an adapter with its account."""

    plugin: PluginName = key(..., "Its adapter: the name of one of [[plugins]].")
    account: Text = key(_CHANNEL.account, "What the account is called in bindings and sessions.")
    transport: TransportKind | None = key(None, "Absent: the first that the adapter offers.")
    secrets: dict[SecretName, PluginSecretText] = key(
        {}, "What the adapter names; the host uses it, and the adapter never has it."
    )
    config: dict[str, Any] = key({}, "Given to the adapter as it is.")
    dm_policy: DmPolicy = key(
        _CHANNEL.dm_policy, "Who may write directly: paired, allow_from alone, anybody, nobody."
    )
    allow_from: list[Text] = key([], "Ids of people who may write without pairing.")
    groups: dict[Text, GroupSection] = key({}, "Rooms by their id, * for any; others are closed.")
    require_mention: bool = key(
        _CHANNEL.require_mention, "In rooms it only answers who speaks to it."
    )
    on_unknown_send: OnUnknown = key(
        _CHANNEL.on_unknown_send, "Of a message that may have arrived: send it again, or hold it."
    )
    max_age_s: float = key(
        _CHANNEL.max_age_s, "Seconds after which a message is too old.", ge=60, le=604_800
    )


class BindingSection(Section):
    """Messages from there are answered by this agent; every field that is given must match."""

    agent_id: Text = key(..., "The agent that answers.")
    channel: Text | None = key(None, "The channel's name.")
    account_id: Text | None = key(None, "The account on that channel.")
    peer_id: Text | None = key(None, "The person or room.")
    guild_id: Text | None = key(None, "The server or guild.")
    team_id: Text | None = key(None, "The team or workspace.")


class ProjectSection(Section):
    """Its agents answer only its users."""

    id: Id = key(..., "Its name: letters, digits and hyphens.")
    users: list[Text] = key(..., "Names of tokens; local, operator; channel:account:person.")


class SubagentSection(Section):
    """An agent that works for agents; what is not said here is as its parent has it."""

    name: SubagentName = key(..., "Its name: letters, digits and hyphens, 55 at most.")
    prompt_path: PathText = key(..., "What it is told to be, a Markdown file.")
    description: str = key("", "What it is good for; the model of its parent reads it.")
    tools: list[Text] = key([], "Names of plugins, or of their tools: PLUGIN/TOOL.")
    max_turns: int = key(_SUBAGENT.max_turns, "Model calls of one task.", ge=1, le=50)
    timeout_seconds: int = key(
        _SUBAGENT.timeout_seconds, "Seconds of one task, if its parent has them.", ge=1, le=86_400
    )
    provider: Text | None = key(None, "Absent: its parent's.")
    model: Text | None = key(None, "Absent: its parent's, or the usual one of its provider.")
