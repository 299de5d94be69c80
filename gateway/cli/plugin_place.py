"""Where `exogate plugin` reads and writes: the configuration file in force and the data directory."""

from dataclasses import dataclass
from pathlib import Path

from gateway.cli.context import CliContext, config_path, loaded
from gateway.cli.known import known
from gateway.config.editing import current
from gateway.config.environment import read_environment
from gateway.config.problems import ConfigInvalid
from gateway.config.values import GatewayConfig, GatewaySettings, Overrides, Surroundings


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
    around = _surroundings(context)
    usual = around.home / ".config" / "exogate" / "config.toml"
    path = (config_path(context) or usual).absolute()
    return Place(path, current(path, around), around)


def config_in_force(context: CliContext) -> GatewayConfig | None:
    """None if it is not valid: whoever only looks at a file does without."""
    try:
        return loaded(context)
    except ConfigInvalid:
        return None


def data_dir(context: CliContext) -> Path:
    config = config_in_force(context)
    if config is not None:
        return config.gateway.data_dir
    around = _surroundings(context)
    usual = around.path(str(GatewaySettings().data_dir), around.cwd)
    return (context.data_dir or usual).absolute()


def _surroundings(context: CliContext) -> Surroundings:
    overrides = Overrides(context.data_dir)
    return Surroundings(read_environment(), Path.home(), Path.cwd(), known(), overrides)
