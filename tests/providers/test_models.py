"""A request is answered by the provider that it names."""

import pytest

from gateway.domain.errors import ModelFailed
from gateway.providers.client import Models
from tests.fakes.model import ScriptedModel, says
from tests.providers.asking import Heard, a_request


async def test_the_named_provider_is_asked_and_no_other() -> None:
    one, two = ScriptedModel(says("one")), ScriptedModel(says("two"))

    reply = await Models({"one": one, "two": two}).reply(a_request(provider="two"), Heard())

    assert reply.text == "two"
    assert (len(one.asked), len(two.asked)) == (0, 1)


async def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    models = Models({"b": ScriptedModel(says("")), "a": ScriptedModel(says(""))})

    with pytest.raises(ModelFailed, match="known: a, b") as failed:
        await models.reply(a_request(provider="c"), Heard())

    assert not failed.value.retryable
