"""What a host offers to trees: functions by name, with what each reads and writes, and names to look up."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from gateway.control.trees.types import KeyType, read_type

# Takes a Call; gives a bool, a Status, None (done), or a Pending for what takes time.
Act = Callable[..., object]
Keys = Mapping[str, str]  # key of the blackboard -> type as text


@dataclass(frozen=True, slots=True)
class Offered:
    """A function that leaves and decorators may name."""

    name: str
    act: Act
    reads: Mapping[str, KeyType]
    writes: Mapping[str, KeyType]
    options: frozenset[str]


@dataclass(slots=True)
class Registry:
    """`roots`: names that expressions may use besides keys -> their own keys, or None for any.

    `(config x)` looks into the root `config`, `(env-flag "X")` into the root `flags`.
    """

    roots: Mapping[str, Collection[str] | None] = field(default_factory=dict)
    models: Mapping[str, type] = field(default_factory=dict)
    offered: dict[str, Offered] = field(default_factory=dict)

    def action(
        self,
        name: str,
        *,
        reads: Keys | None = None,
        writes: Keys | None = None,
        options: Collection[str] = (),
    ) -> Callable[[Act], Act]:
        """Offers the decorated function to `:fn "name"` and to nodes called so."""

        def offer(act: Act) -> Act:
            self.offered[name] = Offered(
                name,
                act,
                {key: read_type(text, self.models) for key, text in (reads or {}).items()},
                {key: read_type(text, self.models) for key, text in (writes or {}).items()},
                frozenset(options),
            )
            return act

        return offer
