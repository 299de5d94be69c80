"""events.subscribe: what happens in runs, to whoever may see it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from gateway.api import operating as api
from gateway.api.errors import InvalidParams
from gateway.control.notices import Bus
from gateway.domain.events import Event, kind_named
from gateway.domain.ids import SessionKey
from gateway.web.identity import Principal, may, sees_session, visible_key
from gateway.web.responses import encode
from gateway.web.rpc import Call, Handler, Peer, did_you_mean


@dataclass(frozen=True, slots=True)
class EventMethods:
    bus: Bus
    _stops: dict[int, Callable[[], None]] = field(default_factory=dict)  # by connection

    def handlers(self) -> Mapping[str, Handler]:
        return {"events.subscribe": self.subscribe}

    def subscribe(self, call: Call, params: api.EventsSubscribe) -> api.Subscribed:
        types = None if params.types is None else frozenset(map(_type_named, params.types))
        text = params.session_key
        key = None if text is None else visible_key(call.principal, text)
        hear = partial(_tell, call.peer, call.principal, key)
        call.after_answer.append(lambda: self._begin(call.peer, hear, types))
        shown = None if types is None else sorted(types)
        return api.Subscribed(types=shown, session_key=text)

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
        what = f"no event is called {name[:64]!r}{did_you_mean(name, api.EVENT_NAMES)}"
        raise InvalidParams(f"types: {what}", [("types", what)])
    return kind.type


def _tell(peer: Peer, principal: Principal, only: SessionKey | None, event: Event) -> None:
    if (only is None or event.session_key == only) and _sees(principal, event.session_key):
        peer.notify("event", encode(event))


def _sees(principal: Principal, key: SessionKey | None) -> bool:
    """What belongs to no session is for those who may read everything."""
    if key is None:
        return may(principal, "read") and principal.agents is None
    return sees_session(principal, key)
