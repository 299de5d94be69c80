"""The way from a path (or none) to the one frozen GatewayConfig."""

from collections.abc import Mapping
from pathlib import Path

from gateway.config.environment import CONFIG, value_of
from gateway.config.values import GatewayConfig, Known, Overrides, Surroundings

NO_OVERRIDES = Overrides()


def load(
    path: Path | None,
    *,
    environment: Mapping[str, str],
    home: Path,
    cwd: Path,
    known: Known,
    overrides: Overrides = NO_OVERRIDES,
) -> GatewayConfig:
    """Reads and checks everything; raises ConfigInvalid with every problem at once."""
    # Most of the command line does without pydantic.
    from gateway.config.reading import read  # noqa: PLC0415  # pydantic is slow to import

    found = find_file(path, environment=environment, home=home, cwd=cwd)
    return read(found, Surroundings(environment, home, cwd, known, overrides)).config


def find_file(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path
) -> Path | None:
    """The file that counts: a named one even if it is missing, then the usual places."""
    named = path or value_of(environment, CONFIG)
    if named is not None:
        return cwd / named
    usual = (cwd / "config.toml", home / ".config" / "exogate" / "config.toml")
    return next((file for file in usual if file.exists()), None)
