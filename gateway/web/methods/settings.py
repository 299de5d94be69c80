"""settings.get, settings.set: what a user sets for all of their own queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import BaseModel, ConfigDict, JsonValue

from gateway.api.errors import InvalidParams
from gateway.domain.errors import NotFound
from gateway.domain.ids import encode_part
from gateway.domain.sessions import Choosable, UserSettings, problem_with
from gateway.sessions.settings import SettingsBook
from gateway.web.identity import CHAT, Principal, may
from gateway.web.methods.chat import Text
from gateway.web.published.about import Settings
from gateway.web.rpc import Call, Method


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Get(_Params):
    user: Text | None = None


class Set(_Params):
    user: Text | None = None
    patch: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class SettingsMethods:
    book: SettingsBook
    choosable: Choosable  # what nobody has set is as its usual agent has it

    def all(self) -> Sequence[Method]:
        return (
            Method("settings.get", Get, CHAT, self.get),
            Method("settings.set", Set, CHAT, self.set),
        )

    async def get(self, call: Call, params: Get) -> Settings:
        """What a user has set."""
        return self._shown(await self.book.of(_user(call.principal, params.user)))

    async def set(self, call: Call, params: Set) -> Settings:
        """Changes what a user has set."""
        user = _user(call.principal, params.user)
        _require_settable(params.patch, self.choosable)
        return self._shown(await self.book.change(user, params.patch))

    def _shown(self, settings: UserSettings) -> Settings:
        return cast(Settings, settings.shown(self.choosable.usual))


def _user(principal: Principal, asked: str | None) -> str:
    """Raises NotFound for somebody else, whether there or not."""
    own = encode_part(principal.name)
    if asked in {None, own}:
        return own
    if not may(principal, "admin"):
        raise NotFound(f"user {asked[:64]!r}")
    return asked


def _require_settable(patch: Mapping[str, object], choosable: Choosable) -> None:
    """Raises InvalidParams with everything that is wrong, or would change nothing."""
    told = (
        (name, problem_with(name, one) or choosable.problem_with(name, one))
        for name, one in patch.items()
        if one is not None
    )
    problems = [(f"patch.{name}", why) for name, why in told if why is not None]
    if problems:
        raise InvalidParams("; ".join(f"{name}: {why}" for name, why in problems), problems)
