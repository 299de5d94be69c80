"""pair.list, pair.approve, pair.deny, pair.block, pair.unblock, pair.revoke: who may talk to agents in direct chats of channels."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.errors import Forbidden, InvalidParams
from gateway.domain.channels import Approvals, Pairing
from gateway.web.given import Whole
from gateway.web.methods.chat import Text
from gateway.web.published.channels import Paired, PairingList, PairingRevoked
from gateway.web.rpc import Call, Method
from gateway.web.shapes import stamp


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class List(_Params):
    channel: Text | None = None
    limit: Whole = Field(default=100, ge=1, le=500)


class Approve(_Params):
    code: Text
    owner: bool = False


class Deny(_Params):
    code: Text | None = None
    channel: Text | None = None
    account: Text = "default"
    person: Text | None = None


class WhoIsPaired(_Params):
    channel: Text
    account: Text = "default"
    person: Text


@dataclass(frozen=True, slots=True)
class PairMethods:
    approvals: Approvals

    def all(self) -> Sequence[Method]:
        return (
            Method("pair.list", List, ("admin",), self.list),
            Method("pair.approve", Approve, ("admin",), self.approve),
            Method("pair.deny", Deny, ("admin",), self.deny),
            Method("pair.block", WhoIsPaired, ("admin",), self.block),
            Method("pair.unblock", WhoIsPaired, ("admin",), self.unblock),
            Method("pair.revoke", WhoIsPaired, ("admin",), self.revoke),
        )

    async def list(self, call: Call, params: List) -> PairingList:
        """Who may talk in direct chats, and who waits for it."""
        _require_all(call)
        found = await self.approvals.listed(channel=params.channel, limit=params.limit)
        return {"pairings": [_shown(one) for one in found]}

    async def approve(self, call: Call, params: Approve) -> Paired:
        """Lets in whoever has a code."""
        _require_all(call)
        by = call.principal.name
        return _shown(await self.approvals.approve(params.code, by=by, is_owner=params.owner))

    async def deny(self, call: Call, params: Deny) -> Paired | PairingRevoked:
        """Turns away whoever has a code, waits or was let in."""
        _require_all(call)
        by = call.principal.name
        if params.code is not None and params.channel is None and params.person is None:
            return _shown(await self.approvals.deny(params.code, by=by))
        if params.code is not None or params.channel is None or params.person is None:
            raise InvalidParams("give either code, or channel and person")
        channel, account, person = params.channel, params.account, params.person
        denied = await self.approvals.turn_away(channel, account, person, by=by)
        if denied is not None:
            return _shown(denied)
        return {"channel": channel, "account": account, "person": person, "state": "revoked"}

    async def block(self, call: Call, params: WhoIsPaired) -> Paired:
        """Never answers a person in direct chats, known or not."""
        _require_all(call)
        who = (params.channel, params.account, params.person)
        return _shown(await self.approvals.block(*who, by=call.principal.name))

    async def unblock(self, call: Call, params: WhoIsPaired) -> PairingRevoked:
        """Makes a person who was blocked a stranger again."""
        _require_all(call)
        who = (params.channel, params.account, params.person)
        await self.approvals.unblock(*who, by=call.principal.name)
        return {**params.model_dump(), "state": "unblocked"}  # type: ignore[typeddict-item]  # its three fields

    async def revoke(self, call: Call, params: WhoIsPaired) -> PairingRevoked:
        """Makes a person who was let in a stranger again."""
        _require_all(call)
        who = (params.channel, params.account, params.person)
        await self.approvals.revoke(*who, by=call.principal.name)
        return {**params.model_dump(), "state": "revoked"}  # type: ignore[typeddict-item]  # its three fields


def _require_all(call: Call) -> None:
    if call.principal.agents is not None:
        raise Forbidden("who is paired may talk to any agent, and your token reaches some only")


def _shown(one: Pairing) -> Paired:
    return {
        "channel": one.channel,
        "account": one.account,
        "person": one.person,
        "name": one.name,
        "state": one.state,
        "owner": one.is_owner,
        "asked_at": stamp(one.asked_at),
        "expires_at": stamp(one.expires_at) if one.state == "asked" else None,
    }
