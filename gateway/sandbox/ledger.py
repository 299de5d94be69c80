"""What each plugin used of its grants, and what it was denied, since the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_NAMES = 100  # distinct ones of one plugin; the rest is counted together
OTHERS = "others"
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Uses:
    """How often, by what was asked for."""

    granted: Mapping[str, int]
    denied: Mapping[str, int]


@dataclass(slots=True)
class UseLedger:
    _granted: dict[str, dict[str, int]] = field(default_factory=dict)
    _denied: dict[str, dict[str, int]] = field(default_factory=dict)

    def used(self, plugin: str, capability: str) -> None:
        _count(self._granted.setdefault(plugin, {}), capability)

    def denied(self, plugin: str, capability: str) -> None:
        """`capability` is what would have allowed it; a plugin may ask for anything."""
        _count(self._denied.setdefault(plugin, {}), capability)

    def of(self, plugin: str) -> Uses:
        return Uses(dict(self._granted.get(plugin, {})), dict(self._denied.get(plugin, {})))


def _count(counts: dict[str, int], capability: str) -> None:
    """What a plugin asked for may be its own words."""
    name = "".join(c if c.isprintable() else "?" for c in capability[:_LONGEST])
    if name not in counts and len(counts) >= MOST_NAMES:
        name = OTHERS
    counts[name] = counts.get(name, 0) + 1
