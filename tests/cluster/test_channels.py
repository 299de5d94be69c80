"""Channels of gateways that share one store: one of them asks a platform and delivers, at a time."""

from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

pytest.importorskip("cbor2", reason="the extra `surrealdb` is not installed")

from tests.fakes.api import ApiCall, Told
from tests.fakes.clock import now_about
from tests.fakes.fleet import SHARED_S, TAKE_OVER_S, fleet
from tests.fakes.surreal import SurrealDatabase
from tests.scenarios.chats import script
from tests.scenarios.test_channel_telegram import Telegram


@dataclass
class WatchedTelegram(Telegram):
    asking: int = 0  # gateways
    most: int = 0

    async def answer(self, call: ApiCall) -> Told:
        if "getUpdates" not in call.path:
            return await super().answer(call)
        self.asking += 1
        self.most = max(self.most, self.asking)
        try:
            return await super().answer(call)
        finally:
            self.asking -= 1


async def test_one_gateway_asks_a_platform_and_another_one_goes_on_when_it_is_killed(
    tmp_path: Path, surreal_database: SurrealDatabase
) -> None:
    chat = WatchedTelegram("1111", "1111", "-100222", listed=True)
    async with (
        chat.open(),
        fleet(tmp_path, script, surreal_database, None, "a", "b", rest=chat.toml) as nodes,
    ):
        await anyio.sleep(SHARED_S)
        with anyio.fail_after(60):
            for number in range(3):
                await chat.say(f"first{number}")
            for number in range(3):
                await chat.sees(f"answer to first{number}")
        assert chat.most == 1
        await anyio.sleep(0.5)  # the receipts are stored

        nodes.nodes["a"].kill()
        await chat.say("second")
        with anyio.fail_after(now_about(TAKE_OVER_S + 10)):
            await chat.sees("answer to second")
        assert chat.texts().count("answer to second") == 1
        assert sorted(chat.texts()) == sorted(set(chat.texts()))
