"""Hostile bytes meet the server on the loop of production."""

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return ("asyncio", {"use_uvloop": True})
