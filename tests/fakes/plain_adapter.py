"""A channel plugin without a sandbox: what it is sent is what it has read."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.channels.adapters import Description, Verify, Webhook
from gateway.domain.plugins import PluginDef

SIGNED = Description(
    "fake", (Webhook("webhook"),), verify=Verify("hmac_sha256", "x-signature", secret="key")
)


@dataclass
class PlainAdapter:
    """Its calls hold, as JSON, what `parse-incoming` answers."""

    description: Description = SIGNED
    plugin: PluginDef = PluginDef("fake", Path("fake.wasm"))
    events: list[dict[str, Any]] = field(default_factory=list)

    async def parse(self, event: str) -> str:
        told = json.loads(event)
        self.events.append(told)
        return str(told["body"])

    async def format(self, reply: str) -> str:
        raise AssertionError(reply)
