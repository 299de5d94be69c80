"""Where `exogate plugin` reads and writes: the configuration file in force."""

from dataclasses import dataclass
from pathlib import Path

from gateway.cli.context import CliContext, config_path, loaded, surroundings
from gateway.config.editing import current
from gateway.config.problems import ConfigInvalid
from gateway.config.values import GatewayConfig, Surroundings


@dataclass(frozen=True, slots=True)
class Place:
    """The configuration file that an edit goes to, as it is."""

    path: Path
    text: str
    around: Surroundings

    @property
    def name(self) -> str:
        return self.around.name(self.path)


def config_place(context: CliContext) -> Place:
    """The file in force, else the usual one, which is yet to be made.

    Raises ConfigInvalid if it is no TOML.
    """
    around = surroundings(context)
    usual = around.home / ".config" / "exogate" / "config.toml"
    path = (config_path(context) or usual).absolute()
    return Place(path, current(path, around), around)


def config_in_force(context: CliContext) -> GatewayConfig | None:
    """None if it is not valid: whoever only looks at a file does without."""
    try:
        return loaded(context)
    except ConfigInvalid:
        return None
