"""The way from a path (or none) to the one frozen GatewayConfig."""

from collections.abc import Mapping
from pathlib import Path

from gateway.config.document import written_data_dir
from gateway.config.environment import CONFIG, value_of
from gateway.config.values import (
    GatewayConfig,
    GatewaySettings,
    Known,
    Overrides,
    Surroundings,
    placed_at,
    shorter_name,
)

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
    is_named = is_named_file(path, environment)
    return read(found, Surroundings(environment, home, cwd, known, overrides, is_named)).config


def find_file(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path
) -> Path | None:
    """The file that counts: a named one even if it is missing, then the usual places."""
    named = path or value_of(environment, CONFIG)
    if named is not None:
        return cwd / named
    usual = (cwd / "config.toml", home / ".config" / "exogate" / "config.toml")
    return next((file for file in usual if file.exists()), None)


def is_named_file(path: Path | None, environment: Mapping[str, str]) -> bool:
    """Whether the operator says which file counts; else it is found."""
    return bool(path or value_of(environment, CONFIG))


def find_data_dir(
    path: Path | None, *, environment: Mapping[str, str], home: Path, cwd: Path, given: Path | None
) -> Path:
    """Where the gateway of this configuration keeps its data, however broken the rest of it is; `given`
    by the command line comes first. Raises ConfigInvalid for a file that cannot be read.
    """
    if given is not None:
        return given.absolute()
    found = find_file(path, environment=environment, home=home, cwd=cwd)
    written = written_data_dir(found, shorter_name(found, home=home, cwd=cwd)) if found else None
    folder = found.absolute().parent if found else cwd
    return placed_at(written or str(GatewaySettings().data_dir), folder, home=home).absolute()
