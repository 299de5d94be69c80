"""What plugins keep and whole results of tools, in dictionaries."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.domain.agents import Original
from gateway.domain.ids import SessionKey
from gateway.domain.ports import PluginSpace
from gateway.store.plugins import filled, key_form, require_kept
from tests.fakes.ports import PartOfToolStore


@dataclass
class Space:
    values: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0


class FakePlugins(PartOfToolStore):
    """Passes the suite of plugin stores."""

    def __init__(self) -> None:
        self.spaces: dict[PluginSpace, Space] = {}

    async def get(self, space: PluginSpace, key: str) -> str | None:
        value = self._space(space).values.get(key_form(key))
        return None if value is None else value.decode()

    async def set(self, space: PluginSpace, key: str, value: str) -> None:
        name, form = require_kept(key, value)
        kept = self._space(space)
        old = kept.values.get(name)
        held = (len(kept.values), kept.size)
        _, kept.size = filled(held, name, form, None if old is None else len(old))
        kept.values[name] = form
        self.spaces[space] = kept

    async def delete(self, space: PluginSpace, key: str) -> None:
        kept, name = self._space(space), key_form(key)
        old = kept.values.pop(name, None)
        if old is not None:
            kept.size -= len(name) + len(old)

    async def list(self, space: PluginSpace, prefix: str) -> Sequence[str]:
        start = key_form(prefix)
        return [key.decode() for key in sorted(self._space(space).values) if key.startswith(start)]

    def _space(self, space: PluginSpace) -> Space:
        return self.spaces.get(space) or Space()


class FakeOriginals(PartOfToolStore):
    """Passes the suite of originals, but for what only erasure and sweeping show."""

    def __init__(self) -> None:
        self.kept: dict[str, Original] = {}

    async def keep_original(self, original: Original) -> None:
        self.kept.setdefault(original.reference, original)

    async def read_original(self, session_key: SessionKey, reference: str) -> Original | None:
        found = self.kept.get(reference)
        return found if found is not None and found.session_key == session_key else None

    async def forget_originals(self, session_key: SessionKey) -> None:
        self.kept = {name: one for name, one in self.kept.items() if one.session_key != session_key}
