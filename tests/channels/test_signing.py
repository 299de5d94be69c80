"""Calls that are signed here are genuine there."""

import json

import pytest

from gateway.channels.adapters import Description, Verify, Webhook
from gateway.channels.webhooks import NotGenuine, sign_headers, verifier
from gateway.domain.channels import ChannelDef, WebhookCall
from gateway.domain.ids import Secret
from gateway.domain.plugins import PluginSecret
from tests.fakes.clock import FakeClock

SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"  # RFC 8032, test 1
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
BODY = json.dumps({"text": "grüß dich"}).encode()
RECIPES = {
    "token": Verify("token", "X-Token", secret="key"),
    "hmac": Verify("hmac_sha256", "x-signature", secret="key", prefix="sha256="),
    "stamped": Verify(
        "hmac_sha256",
        "X-Signature",
        secret="key",
        prefix="v0=",
        signs="v0:{timestamp}:{body}",
        timestamp_header="X-Timestamp",
    ),
    "standard": Verify(
        "hmac_sha256",
        "webhook-signature",
        secret="key",
        prefix="v1,",
        encoding="base64",
        several=True,
        secret_form="whsec",
        signs="{id}.{timestamp}.{body}",
        id_header="webhook-id",
        timestamp_header="webhook-timestamp",
    ),
    "ed25519": Verify(
        "ed25519", "x-sig", key="public", signs="{timestamp}{body}", timestamp_header="x-stamp"
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_signed_is_genuine_and_only_that(name: str) -> None:
    recipe, clock = RECIPES[name], FakeClock()
    key = "whsec_c2VjcmV0" if name == "standard" else "a key"
    secret = PluginSecret("key", Secret(key), frozenset())
    channel = ChannelDef("c", "p", secrets=(secret,), config={"public": PUBLIC})
    description = Description("fake", (Webhook("webhook"),), verify=recipe)
    proves = verifier(description, channel, clock)

    headers = sign_headers(
        recipe, SEED if name == "ed25519" else key, {"X-Other": "1"}, BODY, now=clock.now()
    )

    assert headers["x-other"] == "1"
    proves.check(WebhookCall("c", "POST", "", "", tuple(headers.items()), BODY))
    if recipe.type != "token":
        with pytest.raises(NotGenuine):
            proves.check(WebhookCall("c", "POST", "", "", tuple(headers.items()), BODY + b" "))
    without = tuple(one for one in headers.items() if one[0] != recipe.header.lower())
    with pytest.raises(NotGenuine):
        proves.check(WebhookCall("c", "POST", "", "", without, BODY))
