"""Long polling: the next question goes out only after the answer to the last one is committed."""

import anyio

from gateway.channels.adapters import Poll
from gateway.channels.live import LiveChannel
from gateway.channels.translating import Said

_SHORTEST_S = 0.2  # from question to question, also where a platform answers at once


async def poll(live: LiveChannel, recipe: Poll) -> None:
    """For ever. Raises LineLost, HttpFailed, Denied, RecipeUnfilled, and as WayIn.take."""
    while True:
        began = live.clock.monotonic()
        # Nothing is asked for what is not committed: the state moves with the messages.
        answer = await live.ask(recipe.request, live.values(), recipe.timeout_s)
        said = Said("poll", answer.body, answer.headers, status=answer.status)
        with anyio.CancelScope(shield=True):  # what is committed is also begun
            await live.way_in.take(said)
        live.health.worked("in")
        took = live.clock.monotonic() - began
        rest = max(recipe.interval_s, _SHORTEST_S - took)
        if rest > 0:
            await live.clock.sleep(rest)
