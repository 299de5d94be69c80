"""The front door runs on the loop that it runs on in production."""

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return ("asyncio", {"use_uvloop": True})
