"""Generated conversations for a benchmark: many sittings, paraphrases, updates and distractors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

from gateway.domain.messages import Role

BEGIN = datetime(2025, 1, 6, 18, 0, tzinfo=UTC)
TOPICS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("dog", "puppy"), ("Bruno", "Luna", "Biscuit", "Otis", "Waffles")),
    (("job", "employer"), ("Northwind", "Halden Freight", "the Vesper Clinic", "Orrery Labs")),
    (("apartment", "flat"), ("Ghent", "Lisbon", "Tromso", "Valparaiso", "Graz")),
    (("car", "vehicle"), ("a grey Corolla", "an old Saab", "a Fiat Panda", "a Leaf")),
    (("allergy", "allergic reaction"), ("peanuts", "birch pollen", "shellfish", "penicillin")),
    (("instrument", "music lessons"), ("the cello", "the oboe", "the banjo", "the accordion")),
    (("doctor", "physician"), ("Dr. Amari", "Dr. Voss", "Dr. Lindqvist", "Dr. Okafor")),
    (("holiday", "vacation"), ("the Azores", "Shetland", "Kyoto", "Patagonia")),
    (("course", "evening class"), ("pottery", "welding", "Portuguese", "bookbinding")),
    (("wedding", "ceremony"), ("the ninth of May", "late September", "the second of June")),
    (("bicycle", "bike"), ("a Brompton", "a red tandem", "a gravel frame", "a cargo trike")),
    (("garden", "allotment"), ("quinces", "runner beans", "dahlias", "artichokes")),
    (("landlord", "letting agency"), ("Mr. Petrov", "Mrs. Adeyemi", "the Hartmann brothers")),
    (("novel", "book"), ("the lighthouse one", "a saga about salt", "the detective in Trieste")),
    (("dinner", "recipe"), ("ramen", "moussaka", "a beetroot risotto", "jollof")),
    (("bank", "savings account"), ("Triodos", "the credit union", "a building society")),
    (("marathon", "race"), ("four hours ten", "three fifty-five", "just under five hours")),
    (("sister", "sibling"), ("Adelaide", "Bergen", "Montreal", "Nairobi")),
    (("school", "kindergarten"), ("the Waldorf one", "Elm Street", "the bilingual one")),
    (("phone", "mobile"), ("a Fairphone", "a second-hand Pixel", "my aunt's Nokia")),
)
REASONS = (
    "It was cheaper than I had feared, and my brother swears by it.",
    "We talked it over for weeks and then simply tossed a coin.",
    "Somebody at the market recommended it, and I trust her taste.",
    "It reminds me of the summers at my grandmother's.",
    "Honestly, nothing else was left by the time we made up our minds.",
    "I wanted something calm after that dreadful spring.",
    "The other one fell through at the last minute.",
    "Everybody advised against it, which settled the matter.",
)
CHATTER = (
    "The rain has not stopped since Sunday, the cellar smells of wet cardboard.",
    "Work was endless today, three meetings about other meetings.",
    "I slept badly, the neighbours had people over until two.",
    "We watched that film everybody talks about; I dozed off halfway.",
    "The train was late again, so I walked along the canal.",
    "My back is better, the stretching seems to help.",
    "I tried the new bakery at the corner, the rye loaf is superb.",
    "The power was out for an hour, we lit candles and played cards.",
    "I finally cleaned the windows, now I see how dusty the shelves are.",
    "There was a fox in the yard this morning, quite unafraid.",
)
REPLIES = (
    "That sounds like quite a day. What happened then?",
    "I see! And how did you feel about it?",
    "Good to hear from you. Anything else on your mind?",
    "Understood. Shall we make a plan for tomorrow?",
    "Ha, I can picture that. Tell me more when you like.",
)
OTHERS = (
    "My colleague's {noun} was all she talked about at lunch.",
    "I read an article about how a {noun} changes people, hm.",
    "The radio had a long piece on {noun} prices, of all things.",
    "An old friend asked whether a {noun} was worth the trouble.",
    "They showed {value} on television, and I thought of you.",
)
ASKS = (
    "What is my {noun} now?",
    "Which {noun} did I end up with?",
    "Remind me what we settled on for the {noun}.",
    "What did I tell you about my {noun} last?",
)


@dataclass(frozen=True, slots=True)
class Said:
    role: Role
    text: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    evidence: frozenset[int]  # numbers of the turns with the answer


@dataclass(slots=True)
class Conversation:
    turns: list[Said] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)


def conversation(seed: int, *, sittings: int = 40) -> Conversation:
    """Generates a conversation, equal for equal seeds."""
    dice, made = Random(seed), Conversation()
    topics = dice.sample(TOPICS, len(TOPICS))
    told: dict[int, tuple[str, int, int]] = {}  # topic -> its current value and its place
    for sitting in range(sittings):
        at = BEGIN + timedelta(days=sitting * 3, minutes=dice.randrange(180))
        number = sitting % len(topics)
        spoken = [*_chatter(dice), *_elsewhere(dice, topics)]
        before = len(made.turns) + len(spoken)
        nouns, values = topics[number]
        value = dice.choice([one for one in values if one not in told.get(number, ())])
        lines, answer, reason = _news(dice, dice.choice(nouns), value, told.get(number))
        told[number] = (value, before + answer, before + reason)
        spoken += [*lines, *_chatter(dice), *_elsewhere(dice, topics)]
        for place, (role, text) in enumerate(spoken):
            made.turns.append(Said(role, text, at + timedelta(seconds=40 * place)))
    for number, (value, answer, reason) in told.items():
        noun = dice.choice(topics[number][0])
        ask = dice.choice(ASKS).format(noun=noun)
        made.questions.append(Question(ask, frozenset({answer})))
        why = f"Why did I go for {value} with the {noun}?"
        made.questions.append(Question(why, frozenset({reason})))
    return made


Lines = Sequence[tuple[Role, str]]


def _news(
    dice: Random, noun: str, value: str, old: tuple[str, int, int] | None
) -> tuple[Lines, int, int]:
    """Returns the lines, and the places of the value and of the reason among them."""
    reason = dice.choice(REASONS)
    gone = f" No more {old[0]}!" if old and dice.random() < 0.5 else ""
    shape = dice.randrange(3)
    if shape == 0:  # both in one line
        return (
            (("user", f"About my {noun}: it is {value} now.{gone} {reason}"), _reply(dice)),
            0,
            0,
        )
    opening: Lines = (
        ("user", f"Finally there is news about my {noun}!"),
        ("assistant", "Oh, do tell. What did you decide?"),
        ("user", f"{value[0].upper()}{value[1:]}.{gone}"),
    )
    if shape == 1:
        return (*opening, ("assistant", "Why that one?"), ("user", reason), _reply(dice)), 2, 4
    late: Lines = (
        ("user", "You will never guess."),
        ("assistant", "Then put me out of my misery."),
    )
    asked: Lines = (("assistant", "What made you choose it?"), ("user", reason))
    return (*opening[:2], *late, opening[2], *asked), 4, 6


def _reply(dice: Random) -> tuple[Role, str]:
    return "assistant", dice.choice(REPLIES)


def _chatter(dice: Random) -> Iterator[tuple[Role, str]]:
    for text in dice.sample(CHATTER, dice.randrange(1, 3)):
        yield "user", text
        yield _reply(dice)


def _elsewhere(dice: Random, topics: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Lines:
    """Returns lines with the same words about other people."""
    nouns, values = dice.choice(topics)
    text = dice.choice(OTHERS).format(noun=dice.choice(nouns), value=dice.choice(values))
    return (("user", text), _reply(dice))
