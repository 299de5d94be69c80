"""The lines of all channels to their platforms, once messages can be taken in."""

from functools import partial
from random import random

import anyio

from gateway.app.channels import ChannelRoom, OpenChannel
from gateway.channels.live import LiveChannel
from gateway.channels.supervision import supervise
from gateway.domain.dialling import Dialler
from gateway.domain.ports import Fetch
from gateway.domain.supervision import supervise as keep_at_it


async def keep_lines(room: ChannelRoom) -> None:
    """Until the room hangs up."""
    if not room.open:
        return
    # The HTTP client is slow to import.
    from gateway.outbound.dialling import open_dialler  # noqa: PLC0415
    from gateway.outbound.guard import open_guarded  # noqa: PLC0415

    with room.lines:
        async with (
            open_guarded() as fetch,
            open_dialler() as dialler,
            anyio.create_task_group() as group,
        ):
            for one in room.open:
                work = partial(supervise, _live(room, one, fetch, dialler), one.transport)
                name = f"channel:{one.way_in.channel.name}"
                group.start_soon(
                    partial(keep_at_it, name, work, room.clock, may_end=True), name=name
                )


def _live(room: ChannelRoom, opened: OpenChannel, fetch: Fetch, dialler: Dialler) -> LiveChannel:
    return LiveChannel(
        way_in=opened.way_in,
        leave=opened.leave,
        fetch=fetch,
        dialler=dialler,
        memos=room.memos,
        health=opened.health,
        clock=room.clock,
        jitter=random,
    )
