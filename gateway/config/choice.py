"""Which provider is asked when nobody says: the one whose key is at hand, else the demo."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.environment import key_variables, value_of
from gateway.config.values import Known

DEMO = "demo"  # in this process: no address, no key, nothing to configure


@dataclass(frozen=True, slots=True)
class Choice:
    """`variable` is where the key comes from; `others` are keys that are left unused."""

    provider: str = DEMO
    variable: str | None = None
    others: tuple[str, ...] = ()


def usual_choice(environment: Mapping[str, str], known: Known) -> Choice:
    found = [
        (name, variable)
        for name, preset in known.presets.items()
        for variable in key_variables(name, preset.key_variable)
        if value_of(environment, variable)
    ]
    if not found:
        return Choice()
    (provider, variable), *rest = found
    return Choice(provider, variable, tuple(v for name, v in rest if name != provider))


def default_model(provider: str, known: Known) -> str | None:
    if provider == DEMO:
        return DEMO
    preset = known.presets.get(provider)
    return preset.default_model if preset else None
