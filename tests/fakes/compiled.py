"""What plugins are compiled to: once for all tests of a run, in whichever process they are."""

import os
import tempfile
from pathlib import Path

import pytest

NAME = "COMPILED_FOR_TESTS"


def register(config: pytest.Config) -> None:
    if NAME not in os.environ:  # noqa: TID251  # else of the process that started this one
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ[NAME] = folder.name  # noqa: TID251


def compiled_folder() -> Path:
    return Path(os.environ[NAME])  # noqa: TID251
