"""The keys of `[[bindings]]` and `[[projects]]`: who is answered by whom."""

from gateway.config.kinds import Id, Section, Text, key


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
