"""The way from a path (or none) to the one frozen GatewayConfig."""

from collections.abc import Mapping
from pathlib import Path

from gateway.config.environment import AGENT_KEYS, CONFIG, value_of
from gateway.config.values import GatewayConfig, Known, Overrides
from gateway.config.zero import zero_config

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
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    if found is None and not any(value_of(environment, name) for name in AGENT_KEYS):
        config = zero_config(environment, home, known, overrides)
        if config is not None:
            return config
    # pydantic takes longer to import than a start without a file takes in all
    from gateway.config.reading import read  # noqa: PLC0415

    return read(
        found, environment=environment, home=home, cwd=cwd, known=known, overrides=overrides
    ).config


def find_file(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path
) -> Path | None:
    """The file that counts: a named one even if it is missing, then the usual places."""
    named = path or value_of(environment, CONFIG)
    if named is not None:
        return cwd / named
    usual = (cwd / "config.toml", home / ".config" / "exogate" / "config.toml")
    return next((file for file in usual if file.exists()), None)
