"""What was chosen for single sessions in their chat: it holds until a restart or a new conversation."""

from dataclasses import dataclass, field, replace

from gateway.domain.ids import SessionKey
from gateway.domain.inbox import QueueMode

MOST_KNOWN = 4096  # sessions; beyond it the oldest choice is forgotten


@dataclass(frozen=True, slots=True)
class Choice:
    """None: as it is configured."""

    model: str | None = None
    mode: QueueMode | None = None


NOTHING = Choice()


@dataclass(slots=True)
class Choices:
    _known: dict[SessionKey, Choice] = field(default_factory=dict)

    def of(self, key: SessionKey) -> Choice:
        return self._known.get(key, NOTHING)

    def choose_model(self, key: SessionKey, model: str | None) -> None:
        self._put(key, replace(self.of(key), model=model))

    def choose_mode(self, key: SessionKey, mode: QueueMode) -> None:
        self._put(key, replace(self.of(key), mode=mode))

    def forget(self, key: SessionKey) -> None:
        self._known.pop(key, None)

    def _put(self, key: SessionKey, choice: Choice) -> None:
        self._known[key] = choice
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
