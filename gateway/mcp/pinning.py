"""What each tool was when it was first seen: one that changes under our hands is not used."""

import json
import logging
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

import mcp_types as types

from gateway.domain.errors import Denied
from gateway.domain.ports import PluginSpace, ToolStore

log = logging.getLogger(__name__)

MOST_NAMES = 1_024  # of one server while we run: some have new ones all the time

Seen = Literal["as before", "changed before", "changed now", "one too many"]


@dataclass(slots=True)
class Pins:
    """Of one server, by the tool's name here. One that is not what it was, whether it changed while we
    run or before, is withheld until a start that finds what the start before has told."""

    server: str
    store: ToolStore
    _now: dict[str, str] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)  # what changed tools are now

    async def seen(self, name: str, digest: str) -> Seen:
        if name not in self._now:
            if len(self._now) >= MOST_NAMES:
                return "one too many"
            kept = await self.store.get(PluginSpace(self._owner, "pins"), name)
            self._now[name] = kept or digest
            if kept is None:
                await self._keep("pins", name, digest)
            elif kept != digest:
                next_ = PluginSpace(self._owner, "changed")
                if await self.store.get(next_, name) == digest:
                    self._now[name] = digest
                    await self._keep("pins", name, digest)
                    return "changed before"
        if self._now[name] == digest:
            return "as before"
        if self._told.get(name) != digest:
            self._told[name] = digest
            await self._keep("changed", name, digest)
        return "changed now"

    @property
    def _owner(self) -> str:
        return f"mcp:{self.server}"

    async def _keep(self, namespace: str, name: str, digest: str) -> None:
        try:
            await self.store.set(PluginSpace(self._owner, namespace), name, digest)
        except Denied as error:
            log.warning("a tool cannot be pinned", extra={"tool": name, "why": str(error)})


def digest_of(tool: types.Tool) -> str:
    parts = [tool.name, tool.description, tool.input_schema, tool.output_schema]
    text = json.dumps(parts, sort_keys=True)
    return sha256(text.encode()).hexdigest()
