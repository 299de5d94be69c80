"""An adapter that is a function, for channels whose platform is a script."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.channels.adapters import CallRecipe, Description, Outbound, Poll
from gateway.config.sections import parse_capability
from gateway.domain.errors import AdapterFailed
from gateway.domain.plugins import Capability, PluginDef

ORIGIN = "https://api.example"
Reply = dict[str, Any]


def posts(reply: Reply) -> object:
    """One request a reply; an edit leads to the message."""
    path = f"/{reply['do']}/{reply['edits'] or reply['peer']}"
    return {"requests": [{"url": ORIGIN + path, "body": reply["text"]}]}


def keyed(reply: Reply) -> object:
    request = {"url": f"{ORIGIN}/send/{reply['peer']}", "body": reply["text"]}
    return {"requests": [{**request, "idempotency": {"key": reply["key"], "header": "x-key"}}]}


@dataclass
class WritingAdapter:
    """`formats` may raise AdapterFailed, or give what is no answer."""

    formats: Callable[[Reply], object] = posts
    outbound: Outbound = Outbound(message_id="id", secrets=("token",))
    more: dict[str, Any] = field(default_factory=dict)
    replies: list[Reply] = field(default_factory=list)
    grant: Capability = parse_capability("http:api.example")  # it never changes

    @property
    def plugin(self) -> PluginDef:
        return PluginDef("fake", Path("fake"), (self.grant,))

    @property
    def description(self) -> Description:
        transports = (Poll("poll", CallRecipe(ORIGIN)),)
        return Description("fake", transports, outbound=self.outbound, **self.more)

    async def parse(self, event: str) -> str:
        raise AdapterFailed("this one only sends")

    async def format(self, reply: str) -> str:
        self.replies.append(json.loads(reply))
        return json.dumps(self.formats(self.replies[-1]))
