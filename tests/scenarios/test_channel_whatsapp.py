"""A person writes to a number in WhatsApp, by calls that Meta signs."""

import hashlib
import hmac
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.api import ApiCall, Told
from tests.fakes.client import http
from tests.fakes.model_server import scripted_server
from tests.scenarios.chats import (
    CalledChat,
    is_answered_once_over_a_restart,
    is_heard_in_a_room_by_name_alone,
    is_told_what_came_with_a_message,
    keeps_a_room_from_a_direct_chat_of_the_same_id,
    loses_what_nobody_can_encode_and_nothing_else,
    opened,
    pairs_and_is_answered,
    reads_all_of_a_long_answer,
    script,
)

pytestmark = pytest.mark.shared_store(only_long=True)

ACCESS, APP_SECRET, VERIFY = "EAAG-token-of-a-number", "secret-of-the-app", "word-to-verify-with"
NUMBER, SHOWN = "106540352242922", "15550783881"


@dataclass
class WhatsApp(CalledChat):
    made: int = 0
    name: str = "Ada"

    @property
    def toml(self) -> str:
        return f"""
[[plugins]]
name = "whatsapp"
path = "bundled:whatsapp"
capabilities = ["http:{self.api}"]

[channels.whatsapp]
plugin = "whatsapp"
config = {{ phone_number_id = "{NUMBER}", api_base = "{self.api}" }}
{self.rules}

[channels.whatsapp.secrets]
access_token = "{ACCESS}"
app_secret = "{APP_SECRET}"
verify_token = "{VERIFY}"
"""

    @property
    def address(self) -> str:
        return "whatsapp"

    def signed(self, body: bytes) -> Mapping[str, str]:
        proof = hmac.digest(APP_SECRET.encode(), body, hashlib.sha256).hex()
        return {"x-hub-signature-256": f"sha256={proof}"}

    async def say(self, text: str, *, room: str = "", mention: bool = False) -> None:
        self.made += 1
        message = {
            "from": "16505551234",
            "from_user_id": self.person,
            "id": f"wamid.{self.made}",
            "timestamp": "4000000000",
            "type": "text",
            "text": {"body": f"@{SHOWN} {text}" if mention else text},
        }
        message |= ({"group_id": room} if room else {}) | self.attached
        value = {
            "messaging_product": "whatsapp",
            "metadata": {"display_phone_number": SHOWN, "phone_number_id": NUMBER},
            "contacts": [
                {
                    "wa_id": "16505551234",
                    "user_id": self.person,
                    "profile": {"name": self.name},
                }
            ],
            "messages": [message],
        }
        changes = [{"field": "messages", "value": value}]
        entry = [{"id": "102290129340398", "changes": changes}]
        await self.call({"object": "whatsapp_business_account", "entry": entry})

    async def answer(self, call: ApiCall) -> Told:
        assert call.headers["authorization"] == f"Bearer {ACCESS}"
        assert call.path == f"/{NUMBER}/messages"
        if call.body.get("status") == "read":
            return Told({"success": True})
        if self.to_refuse:
            self.to_refuse -= 1
            return Told({"error": {"message": "Rate limit hit", "code": 130429}}, 400)
        to = call.body.get("to") or call.body["recipient"]
        name = self.show(to, call.body["text"]["body"])
        return Told({"messaging_product": "whatsapp", "messages": [{"id": name}]})


@pytest.fixture
async def chat() -> AsyncIterator[WhatsApp]:
    person = "US.13491208655302741918"
    chat = WhatsApp(person, person, "Y2FwaV9ncm91cDoxNz")
    async with chat.open():
        yield chat


async def test_a_stranger_is_paired_and_answered(chat: WhatsApp, tmp_path: Path) -> None:
    await pairs_and_is_answered(chat, tmp_path)


async def test_a_long_answer_comes_whole_in_parts(chat: WhatsApp, tmp_path: Path) -> None:
    parts = await reads_all_of_a_long_answer(chat, tmp_path, 200)

    assert len(parts) > 1


async def test_the_bot_is_meant_by_its_name(chat: WhatsApp, tmp_path: Path) -> None:
    await is_heard_in_a_room_by_name_alone(chat, tmp_path)


async def test_nothing_is_lost_or_doubled_over_a_restart(chat: WhatsApp, tmp_path: Path) -> None:
    await is_answered_once_over_a_restart(chat, tmp_path)


async def test_meta_is_told_that_the_address_is_ours_if_it_knows_the_word(
    chat: WhatsApp, tmp_path: Path
) -> None:
    given = "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token="

    async with scripted_server(script) as model, opened(chat, model, tmp_path):
        url = f"{chat.gateway}/webhooks/whatsapp?{given}"
        answers = [await http(f"{url}{word}") for word in (VERIFY, "another")]

    assert [(one.status, one.body == b"1158201444") for one in answers] == [
        (200, True),
        (403, False),
    ]


async def test_a_text_that_cannot_be_encoded_costs_no_other_message(
    chat: WhatsApp, tmp_path: Path
) -> None:
    await loses_what_nobody_can_encode_and_nothing_else(chat, tmp_path)


async def test_a_room_never_sees_the_direct_chat_that_has_its_id(tmp_path: Path) -> None:
    chat = WhatsApp("US.1", "US.1", "US.1")
    async with chat.open():
        await keeps_a_room_from_a_direct_chat_of_the_same_id(chat, tmp_path)


async def test_the_model_is_told_of_a_file_that_it_cannot_see(
    chat: WhatsApp, tmp_path: Path
) -> None:
    chat.attached = {
        "type": "image",
        "image": {"id": "1", "mime_type": "image/jpeg", "caption": "look"},
    }

    asked = await is_told_what_came_with_a_message(chat, tmp_path, "")

    told = "[With this message came a file that you cannot see yet: image (image/jpeg).]"
    assert asked == [f"look\n\n{told}"]


async def test_a_name_that_whatsapp_cut_within_a_character_costs_no_message(
    chat: WhatsApp, tmp_path: Path
) -> None:
    chat.name = "Ada \ud83d"

    assert await is_told_what_came_with_a_message(chat, tmp_path, "hello") == ["hello"]
