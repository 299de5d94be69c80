"""What is remembered of tools, within bounds."""

from gateway.mcp.tools import MOST_NAMES, Pins
from tests.fakes.store import open_memory


async def test_a_server_that_always_has_other_names_is_not_followed_for_ever() -> None:
    async with open_memory() as stores:
        pins = Pins("books", stores.tools)
        seen = {await pins.check(f"tool-{number}", "digest") for number in range(MOST_NAMES)}

        assert seen == {"as before"}
        assert await pins.check("one-more", "digest") == "one too many"
        assert await pins.check("tool-0", "digest") == "as before"
        assert await pins.check("tool-0", "another") == "changed now"
