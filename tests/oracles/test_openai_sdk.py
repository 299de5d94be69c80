"""The official openai SDKs, for Python and for Node, speak with the gateway as with OpenAI."""

import json
import subprocess

import anyio
import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.fakes.model_server import Asked, Reply
from tests.oracles.conftest import NODE, OpenSite, Site, echo

HERE = NODE.parents[2]
HI = [{"role": "user", "content": "hi"}]


def client(site: Site, **more: object) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{site.url}/v1", api_key=site.token, **more)


def failing(asked: Asked) -> Reply:
    return Reply(status=401)


def breaking(asked: Asked) -> Reply:
    return Reply(["half", " of", " it"], stop_after=3, ending="reset")


def ask(site: Site, **more: object) -> ChatCompletion:
    with client(site) as one:
        return one.chat.completions.create(model="main", messages=HI, **more)


def test_agents_are_models(site: Site) -> None:
    with client(site) as one:
        assert [model.id for model in one.models.list()] == ["main"]
        assert one.models.retrieve("main").owned_by == "exogate"
        with pytest.raises(openai.NotFoundError) as caught:
            one.models.retrieve("nobody")

    assert caught.value.code == "model_not_found"


def test_an_answer_has_its_text_its_reason_and_its_usage(site: Site) -> None:
    answer = ask(site)

    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "to hi")
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.total_tokens > 0


def test_a_conversation_and_instructions_reach_the_model(site: Site) -> None:
    said = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "two"},
        *HI,
    ]
    with client(site) as one:
        one.chat.completions.create(model="main", messages=said, temperature=0.5, max_tokens=7)

    asked = site.model.requests[-1].body
    assert asked["messages"][0]["content"].endswith("Be brief.")
    assert [one["content"] for one in asked["messages"][1:]] == ["one", "two", "hi"]
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 7)


def test_a_stream_is_the_whole_text_and_its_usage(site: Site) -> None:
    with client(site) as one:
        told = list(
            one.chat.completions.create(
                model="main", messages=HI, stream=True, stream_options={"include_usage": True}
            )
        )

    pieces = [chunk.choices[0].delta.content or "" for chunk in told if chunk.choices]
    assert "".join(pieces) == ask(site).choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in told[:-1]].count("stop") == 1
    assert told[-1].usage.total_tokens > 0


def test_the_helper_of_the_sdk_puts_a_stream_together(site: Site) -> None:
    with client(site) as one, one.chat.completions.stream(model="main", messages=HI) as stream:
        answer = stream.get_final_completion()

    assert answer.choices[0].message.content == "to hi"


@pytest.mark.anyio
async def test_the_client_that_waits_for_nobody_hears_the_same(site: Site) -> None:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.token) as one:
        stream = await one.chat.completions.create(model="main", messages=HI, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert "".join(pieces) == "to hi"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("more", "kind", "param"),
    [
        ({"n": 2}, openai.BadRequestError, "n"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"stop": ["."]}, openai.BadRequestError, "stop"),
        ({"model": "nobody"}, openai.NotFoundError, None),
    ],
)
def test_a_refusal_is_the_error_that_the_sdk_has_for_it(
    site: Site, more: dict[str, object], kind: type[openai.APIStatusError], param: str | None
) -> None:
    with client(site) as one, pytest.raises(kind) as caught:
        one.chat.completions.create(**{"model": "main", "messages": HI, **more})

    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def test_a_wrong_key_is_an_authentication_error(site: Site) -> None:
    wrong = client(site).with_options(api_key="wrong")
    with wrong as one, pytest.raises(openai.AuthenticationError) as caught:
        one.models.list()

    assert caught.value.type == "authentication_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failing_model_service_is_told_once(site: Site, stream: bool) -> None:
    site.script = failing
    before = len(site.model.requests)

    with pytest.raises(openai.InternalServerError) as caught:
        ask(site, stream=stream)

    assert (caught.value.status_code, caught.value.code) == (502, "provider_error")
    assert len(site.model.requests) == before + 1


def test_a_stream_that_breaks_raises(site: Site) -> None:
    site.script = breaking
    with client(site) as one, pytest.raises(openai.APIError):
        list(one.chat.completions.create(model="main", messages=HI, stream=True))


def test_a_spent_budget_is_a_rate_limit_that_is_not_tried_again(open_site: OpenSite) -> None:
    with open_site(rest="[budgets.daily]\ntokens = 1\n") as site:
        with pytest.raises(openai.RateLimitError) as caught:
            ask(site)

        assert (caught.value.type, caught.value.code) == ("insufficient_quota", "budget_exceeded")
        assert not site.model.requests


def test_a_busy_gateway_is_asked_again_and_has_room_when_another_caller_leaves(
    open_site: OpenSite,
) -> None:
    def stalling(asked: Asked) -> Reply:
        return Reply(["a", "b"], gates={2: anyio.Event()})

    with open_site(rest="[queue]\nmax_running = 1\n") as site:
        site.script = stalling
        with client(site) as first:
            stream = first.chat.completions.create(model="main", messages=HI, stream=True)
            refusals: list[int] = []

            def leave(response: httpx2.Response) -> None:
                if response.status_code == 503:
                    refusals.append(int(response.headers["retry-after"]))
                    site.script = echo
                    stream.close()

            hooked = openai.DefaultHttpxClient(event_hooks={"response": [leave]})
            with client(site, http_client=hooked) as second:
                answer = second.chat.completions.create(model="main", messages=HI)

    assert refusals == [1]
    assert answer.choices[0].message.content == "to hi"


def test_the_sdk_for_node_hears_the_same(site: Site) -> None:
    def script(asked: Asked) -> Reply:
        return failing(asked) if asked.last_text == "fail" else Reply(["to ", asked.last_text])

    site.script = script
    ran = subprocess.run(
        [NODE, HERE / "openai_sdk.mjs", f"{site.url}/v1", site.token],
        capture_output=True,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr.decode()
    assert json.loads(ran.stdout) == {
        "models": ["main"],
        "whole": "to hi",
        "streamed": "to hi",
        "usage": True,
        "unknown": [404, "model_not_found"],
        "refused": [400, "n"],
        "failed": [502, "provider_error"],
        "unauthorized": 401,
    }


def test_without_any_token_a_key_is_as_none(open_site: OpenSite) -> None:
    with (
        open_site(token="") as free,
        openai.OpenAI(base_url=f"{free.url}/v1", api_key="unused") as one,
    ):
        answer = one.chat.completions.create(model="main", messages=HI)

    assert answer.choices[0].message.content == "to hi"
