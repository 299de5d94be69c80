"""What a channel needs of its operator: asked for on a terminal, refused where it is missing."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import click

from gateway.channels.adapters import Description, Verify, Webhook
from gateway.channels.room import require_openable, secrets_of
from gateway.config.secrets import REFERENCE
from gateway.config.values import GatewayConfig
from gateway.domain.channels import ChannelDef, TransportKind
from gateway.domain.errors import GatewayError
from gateway.host.clock import SystemClock


class ChannelIncomplete(GatewayError):
    """Nothing was written; the text names what is missing."""

    code = "channel_incomplete"


@dataclass(frozen=True, slots=True)
class Needs:
    """The names that are missing, in the order in which they are asked for."""

    secrets: Sequence[str]
    config: Sequence[str]

    def words(self) -> str:
        given = [f"--secret {name}='${{env:NAME}}'" for name in self.secrets]
        return " ".join([*given, *(f"--set {name}=VALUE" for name in self.config)])


@dataclass(frozen=True, slots=True)
class Wanted:
    """A channel as it is to be written: references of secrets, and texts of `config`."""

    secrets: Mapping[str, str]
    config: Mapping[str, object]
    transport: TransportKind | None = None

    def lacks(self, description: Description) -> Needs:
        offered = (one for one in description.transports if self.transport in {None, one.type})
        transport = next(offered, description.transports[0])
        recipes = tuple(self._recipes(description)) if isinstance(transport, Webhook) else ()
        secrets = [*description.secrets, *secrets_of(transport)]
        secrets += [one.secret for one in recipes if one.secret]
        config = [*description.needs, *(one.key for one in recipes if one.key)]
        return Needs(
            [name for name in dict.fromkeys(secrets) if not self.secrets.get(name, "").strip()],
            [name for name in dict.fromkeys(config) if self.config.get(name) in (None, "")],
        )

    def _recipes(self, description: Description) -> Iterator[Verify]:
        """Those of the calls that `config` chooses; none while it chooses none."""
        for one in description.recipes:
            if all(self.config.get(name) == value for name, value in one.when.items()):
                yield one


def complete(name: str, wanted: Wanted, description: Description, *, yes: bool) -> Wanted:
    """With what is missing asked for. Raises ChannelIncomplete where nobody can be asked."""
    while (lacks := wanted.lacks(description)).secrets or lacks.config:
        if yes or not sys.stdin.isatty():
            named = ", ".join([*lacks.secrets, *(f"config.{key}" for key in lacks.config)])
            raise ChannelIncomplete(
                f"channel {name} needs {named}; nothing was written. Add {lacks.words()}"
            )
        # One after the other: what a key of config says may decide what else is needed.
        for key in lacks.config[:1]:
            hint = _choices(key, description)
            value = click.prompt(f"config.{key}{hint}", err=True).strip()
            wanted = replace(wanted, config={**wanted.config, key: value})
        for key in lacks.secrets[: not lacks.config]:
            value = click.prompt(f"secret {key} (${{env:NAME}} or ${{file:NAME}})", err=True)
            if not REFERENCE.fullmatch(value.strip()):
                click.echo("write a reference, not the secret itself", err=True)
                continue
            wanted = replace(wanted, secrets={**wanted.secrets, key: value.strip()})
    return wanted


def _choices(key: str, description: Description) -> str:
    values = {one.when[key] for one in description.recipes if key in one.when}
    return f" ({', '.join(sorted(values))})" if values else ""


def require_working(name: str, config: GatewayConfig, description: Description) -> ChannelDef:
    """What the gateway would refuse at its start is refused now. Raises ChannelRefused."""
    channel = next(one for one in config.channels if one.name == name)
    require_openable(channel, description, SystemClock())
    return channel
