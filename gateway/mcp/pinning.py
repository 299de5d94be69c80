"""What each tool was when it was first seen: one that changes under our hands is not used."""

import json
import logging
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import mcp_types as types

from gateway.domain.errors import Denied
from gateway.domain.ports import PluginSpace, PluginStore

log = logging.getLogger(__name__)

MOST_NAMES = 1_024  # of one server while we run: some have new ones all the time

Seen = Literal["as before", "changed before", "changed now", "one too many"]


@dataclass(slots=True)
class Pins:
    """Of one server, by the tool's name here. What changed while we run is withheld until a new start."""

    server: str
    store: PluginStore
    _now: dict[str, str] = field(default_factory=dict)

    async def seen(self, name: str, digest: str) -> Seen:
        if name in self._now:
            return "as before" if self._now[name] == digest else "changed now"
        if len(self._now) >= MOST_NAMES:
            return "one too many"
        space = PluginSpace(f"mcp:{self.server}", "pins")
        kept = await self.store.get(space, name)
        self._now[name] = digest
        if kept == digest:
            return "as before"
        try:
            await self.store.set(space, name, digest)
        except Denied as error:
            log.warning("a tool cannot be pinned", extra={"tool": name, "why": str(error)})
        return "as before" if kept is None else "changed before"


def digest_of(tool: types.Tool) -> str:
    parts = [tool.name, tool.description, tool.input_schema, tool.output_schema]
    text = json.dumps(parts, sort_keys=True)
    return sha256(text.encode()).hexdigest()
