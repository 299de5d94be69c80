"""events.subscribe: what happens in runs, to whoever may see it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from gateway.api.errors import InvalidParams
from gateway.control.notices import Bus
from gateway.domain.events import KINDS, Event, kind_named
from gateway.domain.ids import SessionKey
from gateway.web.identity import READS, Principal, may, sees_session
from gateway.web.methods.chat import Text, visible_key
from gateway.web.methods.sessions import Key
from gateway.web.published.about import Happening, Subscribed
from gateway.web.rpc import Call, Method, Peer, did_you_mean
from gateway.web.shapes import stamp

_NAMES = tuple(name for kind in KINDS for name in (kind.type, kind.constant, kind.hook) if name)
# In whatever spelling; what is none is told what was meant.
Name = Annotated[Text, Field(json_schema_extra={"enum": list(_NAMES)})]


class Subscribe(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    types: Annotated[list[Name], Field(min_length=1, max_length=len(_NAMES))] | None = None
    session_key: Key | None = None


@dataclass(frozen=True, slots=True)
class EventMethods:
    bus: Bus
    _stops: dict[int, Callable[[], None]] = field(default_factory=dict)  # by connection

    def all(self) -> Sequence[Method]:
        return (Method("events.subscribe", Subscribe, READS, self.subscribe),)

    def subscribe(self, call: Call, params: Subscribe) -> Subscribed:
        """Hears what happens, until the connection ends."""
        types = None if params.types is None else frozenset(map(_type_named, params.types))
        text = params.session_key
        key = None if text is None else visible_key(call.principal, text)
        hear = partial(_tell, call.peer, call.principal, key)
        call.after_answer.append(lambda: self._begin(call.peer, hear, types))
        return {"types": None if types is None else sorted(types), "session_key": text}

    def _begin(
        self, peer: Peer, hear: Callable[[Event], None], types: frozenset[str] | None
    ) -> None:
        """A second subscription of a connection takes the place of the first."""
        if not peer.is_open:
            return
        if stop := self._stops.get(id(peer)):
            stop()
        else:
            peer.on_close(lambda: self._stops.pop(id(peer))())
        self._stops[id(peer)] = self.bus.subscribe(hear, types=types)


def _type_named(name: str) -> str:
    """Raises InvalidParams."""
    kind = kind_named(name)
    if kind is None:
        what = f"no event is called {name[:64]!r}{did_you_mean(name, _NAMES)}"
        raise InvalidParams(f"types: {what}", [("types", what)])
    return kind.type


def _tell(peer: Peer, principal: Principal, only: SessionKey | None, event: Event) -> None:
    if (only is None or event.session_key == only) and _sees(principal, event.session_key):
        peer.notify("event", to_json(_shown(event), inf_nan_mode="null"))


def _sees(principal: Principal, key: SessionKey | None) -> bool:
    """What belongs to no session is for those who may read everything."""
    if key is None:
        return may(principal, "read") and principal.agents is None
    return sees_session(principal, key)


def _shown(event: Event) -> Happening:
    return {
        "type": event.type,
        "severity": event.severity,
        "source": event.source,
        "at": stamp(event.at),
        "session_key": None if event.session_key is None else str(event.session_key),
        "run_id": event.run_id,
        "payload": dict(event.payload),
    }
