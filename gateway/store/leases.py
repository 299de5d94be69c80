"""Leases on partitions in a SurrealDB database, which decides by its own clock: the port Leases.

Conflicts arise between writes of one record only. Each statement here changes the leases that it is about,
so of two nodes that want one partition the second is told to repeat, and then finds it taken.
"""

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gateway.domain.cluster import ClusterState, Lease, LeaseState, Member, Presence, Renewal
from gateway.store.surreal_connection import RecordExists, RecordID, SurrealConnection

TABLES = """
DEFINE TABLE IF NOT EXISTS cluster SCHEMAFULL;
DEFINE FIELD IF NOT EXISTS partitions ON cluster TYPE int;
DEFINE TABLE IF NOT EXISTS lease SCHEMAFULL;
DEFINE FIELD IF NOT EXISTS node ON lease TYPE option<string>;
DEFINE FIELD IF NOT EXISTS epoch ON lease TYPE int;
DEFINE FIELD IF NOT EXISTS expires_at ON lease TYPE option<datetime>;
DEFINE TABLE IF NOT EXISTS member SCHEMAFULL;
DEFINE FIELD IF NOT EXISTS seen_at ON member TYPE datetime;
DEFINE FIELD IF NOT EXISTS ready ON member TYPE bool;
DEFINE FIELD IF NOT EXISTS config ON member TYPE string;
DEFINE FIELD IF NOT EXISTS leaving ON member TYPE bool
"""
_FOUND = "SELECT VALUE partitions FROM ONLY cluster:main"
_FIRST = """{
  CREATE cluster:main SET partitions = $partitions RETURN NONE;
  FOR $number IN 0..$partitions { CREATE type::record('lease', $number) SET epoch = 0 RETURN NONE };
}"""
_FORGET = "DELETE member WHERE seen_at < time::now() - 1d RETURN NONE"
_RENEW = """{
  UPSERT $member SET seen_at = time::now(), ready = $ready, config = $config, leaving = $leaving RETURN NONE;
  LET $mine = (UPDATE lease SET expires_at = time::now() + $ttl
    WHERE node = $me AND expires_at > time::now() RETURN id, epoch);
  { mine: $mine,
    free: (SELECT VALUE id FROM lease WHERE node = NONE OR expires_at <= time::now()),
    members: (SELECT VALUE id FROM member WHERE !leaving AND seen_at > time::now() - $ttl) }
}"""
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
_STATE = "SELECT * FROM member; SELECT * FROM lease"


class SurrealLeases:
    """Every call has an answer within `deadline_s`, or none."""

    def __init__(self, connection: SurrealConnection, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s

    async def prepare(self, partitions: int) -> int:
        await self._connection.commit(
            TABLES, deadline_s=self._deadline_s
        )  # definitions conflict too
        [found] = await self._connection.query(_FOUND)
        if found is None:
            with contextlib.suppress(RecordExists):  # another node was quicker
                await self._connection.commit(_FIRST, {"partitions": partitions})
            [found] = await self._connection.query(_FOUND)
        await self._commit(_FORGET, {})
        return int(found)

    async def renew(self, presence: Presence, lease_s: float) -> Renewal:
        params = {
            "me": presence.node,
            "member": RecordID("member", presence.node),
            "ready": presence.is_ready,
            "config": presence.config,
            "leaving": presence.is_leaving,
            "ttl": timedelta(seconds=lease_s),
        }
        found = await self._commit(_RENEW, params)
        return Renewal(
            _leases(found["mine"]),
            [one.id for one in found["free"]],
            [one.id for one in found["members"]],
        )

    async def take(self, node: str, partitions: Sequence[int], lease_s: float) -> Sequence[Lease]:
        leases = [RecordID("lease", number) for number in partitions]
        params = {"me": node, "leases": leases, "ttl": timedelta(seconds=lease_s)}
        return _leases(await self._commit(_TAKE, params))

    async def release(self, node: str, leases: Sequence[Lease]) -> None:
        given_back = [
            {"id": RecordID("lease", lease.partition), "epoch": lease.epoch} for lease in leases
        ]
        await self._commit(_RELEASE, {"me": node, "leases": given_back})

    async def leave(self, node: str) -> None:
        await self._commit(_LEAVE, {"member": RecordID("member", node)})

    async def state(self) -> ClusterState:
        members, leases = await self._connection.query(_STATE, deadline_s=self._deadline_s)
        return ClusterState(
            [
                Member(
                    Presence(row["id"].id, row["ready"], row["config"], row["leaving"]),
                    row["seen_at"],
                )
                for row in members
            ],
            [
                LeaseState(
                    Lease(row["id"].id, row["epoch"]), row.get("node"), row.get("expires_at")
                )
                for row in leases
            ],
        )

    async def _commit(self, text: str, params: dict[str, object]) -> Any:
        [result] = await self._connection.commit(text, params, deadline_s=self._deadline_s)
        return result


def _leases(rows: Any) -> list[Lease]:
    return [Lease(row["id"].id, row["epoch"]) for row in rows]
