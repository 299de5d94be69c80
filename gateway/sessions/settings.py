"""The book of users' settings: read once a user, written by compare-and-set."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from gateway.codec import decode, encode
from gateway.domain.ports import SessionStore
from gateway.domain.sessions import RECORD_BYTES, SettingsRefused, UserSettings

MOST_KNOWN = 4096  # users, of whom most have set nothing


@dataclass(slots=True)
class SettingsBook:
    """A user is a principal's name, or `channel:account:sender` with its parts encoded."""

    store: SessionStore
    known: dict[str, UserSettings] = field(default_factory=dict)

    async def of(self, user: str) -> UserSettings:
        """Raises StoreUnavailable."""
        known = self.known.get(user)
        if known is not None:
            return known
        read = await self.store.read_settings(user)
        # Whoever changed them meanwhile knows better than what was read before.
        return self.known.get(user) or self._remember(user, self._opened(read))

    async def change(self, user: str, patch: Mapping[str, object]) -> UserSettings:
        """From now on; a run that is at work keeps what it began with.

        Raises SettingsRefused if there would be too much to keep, and StoreUnavailable.
        """
        while True:
            before = await self.store.read_settings(user)
            after = self._opened(before).patched(patch)
            record = encode(after.kept)
            if len(record) > RECORD_BYTES:
                raise SettingsRefused(RECORD_BYTES)
            with anyio.CancelScope(shield=True):  # it is written even if nobody waits for it
                self.known.pop(user, None)
                if await self.store.write_settings(user, record.decode(), expected=before):
                    return self._remember(user, after)

    def _opened(self, record: str | None) -> UserSettings:
        kept = {} if record is None else decode(record)
        assert isinstance(kept, dict)
        return UserSettings(kept)

    def _remember(self, user: str, settings: UserSettings) -> UserSettings:
        self.known[user] = settings
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
        return settings
