"""Leases on partitions in a SurrealDB database, which decides by its own clock: the port Leases.

Only writes of the same record conflict. Each statement changes the leases that it depends on, so
that the second of two competing nodes has to repeat it and then finds the partition owned.
"""

import contextlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from secrets import token_hex
from typing import Any

from gateway.domain.cluster import (
    ClusterState,
    Lease,
    LeaseState,
    Member,
    Presence,
    Renewal,
    StoreInUse,
)
from gateway.store.surreal_connection import (
    RecordExists,
    RecordID,
    StatementRefused,
    SurrealConnection,
)
from gateway.store.surreal_schema import define

TABLES = ";\n".join(
    (
        define("cluster", partitions="int", joins="int", key="option<string>"),
        define("lease", node="option<string>", epoch="int", expires_at="option<datetime>"),
        define("member", **dict.fromkeys(("seen_at", "expires_at"), "datetime")),
        define("member", **dict.fromkeys(("alone", "ready", "leaving"), "bool"), config="string"),
    )
)
_FIRST = """{
  CREATE cluster:main SET partitions = $partitions, joins = 0, key = $key RETURN NONE;
  FOR $number IN 0..$partitions { CREATE type::record('lease', $number) SET epoch = 0 RETURN NONE };
}"""
_FORGET = "DELETE member WHERE seen_at < time::now() - 1d RETURN NONE"
_SEEN = """UPSERT $member SET seen_at = time::now(), expires_at = time::now() + $ttl, alone = $alone,
    ready = $ready, config = $config, leaving = $leaving RETURN NONE"""
# Two joining nodes change the same counter, so the second has to repeat the statement.
_JOIN = f"""{{
  LET $others = (SELECT VALUE id FROM member
    WHERE id != $member AND expires_at > time::now() AND (alone OR $alone));
  IF $others != [] {{ {{ owner: $others[0] }} }} ELSE {{
    LET $c = (UPDATE ONLY cluster:main SET joins += 1 RETURN partitions);
    {_SEEN};
    {{ partitions: $c.partitions }} }}
}}"""
# A node holds the store alone until it expires; then another may have joined.
_STILL_ALONE = """
  LET $end = (SELECT VALUE expires_at FROM ONLY $member);
  IF $end == NONE OR $end <= time::now() { THROW 'exogate:late' };
  UPDATE cluster:main SET joins += 1 RETURN NONE;"""
_RENEW = f"""
  {_SEEN};
  LET $mine = (UPDATE lease SET expires_at = time::now() + $ttl
    WHERE node = $me AND expires_at > time::now() RETURN id, epoch);
  {{ mine: $mine,
    free: (SELECT VALUE id FROM lease WHERE node = NONE OR expires_at <= time::now()),
    members: (SELECT VALUE id FROM member WHERE !leaving AND expires_at > time::now()) }}"""
_TAKE = """
UPDATE $leases SET node = $me, epoch += 1, expires_at = time::now() + $ttl
  WHERE node = NONE OR expires_at <= time::now() RETURN id, epoch
"""
_RELEASE = """{
  FOR $one IN $leases {
    LET $lease = $one.id;
    UPDATE $lease SET node = NONE WHERE node = $me AND epoch = $one.epoch RETURN NONE
  };
}"""
_LEAVE = "DELETE $member RETURN NONE"
_BURY = """{
  DELETE $member RETURN NONE;
  UPDATE lease SET node = NONE WHERE node = $me RETURN NONE;
}"""
_STATE = "SELECT * FROM member WHERE expires_at > time::now(); SELECT * FROM lease ORDER BY id"
_ALIVE = "SELECT VALUE id FROM member WHERE expires_at > time::now() - $late"
_KEY = "RETURN cluster:main.key"


class SurrealLeases:
    """Implements the port Leases. Every call ends within `deadline_s`."""

    def __init__(self, connection: SurrealConnection, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s

    async def join(self, presence: Presence, partitions: int, lease_s: float) -> int:
        # Definitions conflict like writes.
        await self._connection.commit(TABLES, deadline_s=self._deadline_s)
        with contextlib.suppress(RecordExists):
            await self._commit(_FIRST, {"partitions": partitions, "key": token_hex(32)})
        await self._commit(_FORGET, {})
        return await self._join(presence, lease_s)

    async def _join(self, presence: Presence, lease_s: float) -> int:
        found = await self._commit(_JOIN, _params(presence, lease_s))
        if "owner" in found:
            raise StoreInUse(found["owner"].id)
        return int(found["partitions"])

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        text = f"{{ {_STILL_ALONE if presence.is_alone else ''} {_RENEW} }}"
        params = _params(presence, lease_s)
        try:
            found = await self._commit(text, params)
        except StatementRefused:
            await self._join(presence, lease_s)
            found = await self._commit(text, params)
        free, members = ([one.id for one in found[name]] for name in ("free", "members"))
        return Renewal([*map(_lease, found["mine"])], free, members)

    async def acquire(
        self, node: str, partitions: Sequence[int], lease_s: float
    ) -> Sequence[Lease]:
        leases = [RecordID("lease", number) for number in partitions]
        params = {"me": node, "leases": leases, "ttl": timedelta(seconds=lease_s)}
        return [*map(_lease, await self._commit(_TAKE, params))]

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        rows = [{"id": RecordID("lease", one.partition), "epoch": one.epoch} for one in leases]
        await self._commit(_RELEASE, {"me": node, "leases": rows})

    async def leave(self, node: str) -> None:
        await self._commit(_LEAVE, {"member": RecordID("member", node)})

    async def bury(self, node: str) -> None:
        """Releases the leases of a node that has ended."""
        await self._connection.commit(TABLES, deadline_s=self._deadline_s)
        await self._commit(_BURY, {"member": RecordID("member", node), "me": node})

    async def alive(self, late_s: float) -> set[str]:
        """Returns the nodes that expired less than `late_s` ago, or not at all: they may only be
        slow."""
        late = {"late": timedelta(seconds=late_s)}
        [found] = await self._connection.query(_ALIVE, late, deadline_s=self._deadline_s)
        return {one.id for one in found}

    async def key(self) -> bytes:
        """Returns a secret that only readers of the store know."""
        [found] = await self._connection.query(_KEY, deadline_s=self._deadline_s)
        return bytes.fromhex(found or "")

    async def state(self) -> ClusterState:
        members, leases = await self._connection.query(_STATE, deadline_s=self._deadline_s)
        return ClusterState(
            [Member(_presence(row), row["seen_at"]) for row in members],
            [LeaseState(_lease(row), row.get("node"), row.get("expires_at")) for row in leases],
        )

    async def _commit(self, text: str, params: dict[str, object]) -> Any:
        [result] = await self._connection.commit(text, params, deadline_s=self._deadline_s)
        return result


def _params(presence: Presence, lease_s: float) -> dict[str, object]:
    return {
        "me": presence.node,
        "member": RecordID("member", presence.node),
        "alone": presence.is_alone,
        "ready": presence.is_ready,
        "config": presence.config,
        "leaving": presence.is_leaving,
        "ttl": timedelta(seconds=lease_s),
    }


def _presence(row: Mapping[str, Any]) -> Presence:
    return Presence(row["id"].id, row["alone"], row["ready"], row["config"], row["leaving"])


def _lease(row: Mapping[str, Any]) -> Lease:
    return Lease(row["id"].id, row["epoch"])
