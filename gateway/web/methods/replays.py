"""run.replay: a run that has ended, told once more what it was told."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from gateway.api.errors import Forbidden
from gateway.domain.errors import Conflict
from gateway.sessions.intake import Front
from gateway.sessions.journal import Difference
from gateway.sessions.replay import Replayed, Replayer
from gateway.sessions.runs import LiveRun
from gateway.web.identity import READS, may
from gateway.web.methods.chat import Text, find_run
from gateway.web.published.runs import Divergence, RunReplay
from gateway.web.rpc import Call, Method


class Replay(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    run_id: Text
    model: Text | None = None


@dataclass(frozen=True, slots=True)
class ReplayMethods:
    front: Front
    replays: Replayer

    def all(self) -> Sequence[Method]:
        return (Method("run.replay", Replay, READS, self.replay),)

    async def replay(self, call: Call, params: Replay) -> RunReplay:
        """Tells a run once more what it was told."""
        run = await find_run(self.front, call.principal, params.run_id)
        if isinstance(run, LiveRun):
            raise Conflict("the run has not ended yet")
        if params.model is None:
            return self._shown(params, await self.replays.replay(run))
        if not may(call.principal, "admin"):  # whoever may talk has only the models of their agents
            raise Forbidden("to ask another model takes the scope 'admin'")
        return self._shown(params, await self.replays.compare(run, params.model))

    def _shown(self, params: Replay, replayed: Replayed) -> RunReplay:
        parted = replayed.divergence
        shown: RunReplay = {
            "run_id": params.run_id,
            "identical": parted is None,
            "divergence": None if parted is None else _divergence(parted),
            "chunks": replayed.chunks,
            "calls": replayed.calls,
        }
        if params.model is not None:
            shown["response"] = replayed.response
            shown["tokens_used"] = replayed.tokens_used
        return shown


def _divergence(parted: Difference) -> Divergence:
    return {
        "at": parted.at,
        "recorded": parted.recorded,
        "now": parted.now,
        "seq": parted.seq,
    }
