"""What the demo model knows of people: said here, or remembered, and never made up."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.facts import CLOSING, OPENING, Fact, Recalled, memory_line
from gateway.domain.ids import AgentId, SessionKey
from gateway.domain.messages import Message, ToolCall, ToolResult
from gateway.domain.model import ToolSpec
from gateway.memory.tool import SPEC
from gateway.providers.demo import DEFAULT, NO_MEMORY, NOT_TOLD
from tests.providers.test_demo import ask

KEY = SessionKey(AgentId("demo"), "websocket", "local")
SINCE, TOLD = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 11, 18, 9, tzinfo=UTC)


def remembered(predicate: str, value: str, subject: str = "user") -> Recalled:
    names = ("f", str(KEY), "fact", subject, predicate, value)
    fact = Fact(*names, True, 1.0, KEY, TOLD, SINCE)  # type: ignore[arg-type]  # a literal
    return Recalled("fact", "f", value, 1.0, "", KEY, TOLD, fact=fact)


def block(*facts: Recalled) -> str:
    return "\n".join([OPENING, *map(memory_line, facts), CLOSING])


@pytest.mark.parametrize(
    ("predicate", "value", "question", "answer"),
    [
        ("dog_name", "Luna", "What is my dog called?", "Your dog is called Luna."),
        ("dog_name", "Luna", "what's the name of my dog?", "Your dog is called Luna."),
        ("dog_name", "Luna", "Do you remember my dog's name?", "Your dog is called Luna."),
        ("name", "Ann", "What is my name?", "Your name is Ann."),
        ("name", "Ann", "Who am I?", "Your name is Ann."),
        ("location", "LA (west)", "Where do I live?", "You live in LA (west)."),
        ("employer", "the zoo", "Where do I work?", "You work at the zoo."),
        ("age", "41", "How old am I?", "You are 41."),
        ("birthday", "3 May", "When is my birthday?", "Your birthday is 3 May."),
        ("favourite_color", "blue", "What is my favorite colour?", "Your favourite color is blue."),
    ],
)
async def test_what_is_in_its_memory_is_known(
    predicate: str, value: str, question: str, answer: str
) -> None:
    memory = block(remembered("tea", "green"), remembered(predicate, value))

    assert (await ask(memory, question)).text == answer


@pytest.mark.parametrize(
    "question",
    ["When did I tell you where I live?", "Since when do I live there?", "when did I move?"],
)
async def test_asked_when_it_says_since_when_and_when_it_was_told(question: str) -> None:
    memory = block(remembered("dog_name", "Luna"), remembered("location", "LA"))

    answer = (await ask(memory, question)).text

    assert answer == "You told me on 2026-11-18 that you live in LA, since 2026-03-01."


@pytest.mark.parametrize(
    "question", ["What is my cat called?", "Since when do I live here?", "Where do I work?"]
)
async def test_what_nobody_told_is_not_known(question: str) -> None:
    anothers = remembered("cat_name", "Tom", subject="Bob")

    assert (await ask(block(remembered("dog_name", "Luna"), anothers), question)).text == NOT_TOLD
    assert (await ask(question)).text == NOT_TOLD


async def test_a_day_that_it_does_not_know_is_not_made_up() -> None:
    answer = (await ask("my dog is called Luna", "when did I tell you of my dog?")).text

    assert answer == "You told me that your dog is called Luna, but I do not know when."


async def test_what_is_remembered_knows_what_was_put_right() -> None:
    memory = block(remembered("dog_name", "Nala"))
    answer = await ask(
        "My dog is called Luna.", "No, I meant Nala.", memory, "What is my dog called?"
    )

    assert answer.text == "Your dog is called Nala."


@pytest.mark.parametrize(
    "said",
    [
        "I moved from NYC to LA.",
        "I moved to LA last month.",
        "I live in LA since 2020",
        "I live in LA",
    ],
)
async def test_what_is_said_now_goes_before_what_is_remembered(said: str) -> None:
    answer = await ask(block(remembered("location", "NYC")), said, "Where do I live?")

    assert answer.text == "You live in LA."


async def test_only_the_newest_memory_counts_and_it_is_nothing_that_was_asked() -> None:
    old, new = block(remembered("dog_name", "Rex")), block(remembered("dog_name", "Luna"))

    answered = await ask(old, "hi", Message("assistant", "hello"), new, "what is my dog called?")
    behind = await ask("what is my dog called?", new)

    assert answered.text == behind.text == "Your dog is called Luna."


async def test_where_somebody_lived_before_is_looked_up_in_the_history() -> None:
    memory = ToolSpec(SPEC.name, SPEC.description, SPEC.parameters)
    first = await ask("Where did I live before?", tools=(memory,))
    call = first.tool_calls[0]
    past = {"object": "NYC", "since": "2024-01-01", "until": "2025-06-01"}
    found = {"facts": [past, {"object": "LA", "since": "2025-06-01"}]}

    async def told(result: object) -> str:
        said = Message("assistant", first.text, first.tool_calls)
        answer = Message("tool", result=ToolResult(call.id, call.name, json.dumps(result)))
        return (await ask("Where did I live before?", said, answer, tools=(memory,))).text

    assert json.loads(call.arguments) == {"operation": "history", "predicate": "location"}
    assert await told(found) == "You told me: NYC, 2024-01-01 to 2025-06-01."
    assert await told({"facts": []}) == NOT_TOLD
    assert (await ask("Where did I live before?")).text == NO_MEMORY


async def test_what_the_memory_tool_says_otherwise_is_repeated() -> None:
    call = ToolCall("c", "memory", '{"operation":"recall","query":"x"}')
    said = Message("assistant", "", (call,))
    answer = Message("tool", result=ToolResult("c", "memory", '{"erased":1}'))

    assert (await ask("use it", said, answer)).text == "My memory says: erased: 1"


@given(st.text(max_size=200), st.text(max_size=200))
async def test_no_text_makes_it_fail(memory: str, question: str) -> None:
    answer = await ask(f"{OPENING}\n- user {memory}\n{CLOSING}", f"when did i {question}")

    assert answer.text or answer.tool_calls


async def test_a_memory_alone_is_no_question() -> None:
    assert (await ask(block(remembered("dog_name", "Luna")))).text == DEFAULT
