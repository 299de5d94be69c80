"""What facts are called: one name for one thing, and which of them have one object at a time."""

import re
from collections.abc import Sequence

LONGEST = 40  # characters

# Of these another object takes the place of the one before.
_FUNCTIONAL = re.compile(
    r"(?:nick|user)?name|location|hometown|address|employer|occupation|age|birthday|birth_date"
    r"|birthplace|nationality|spouse|marital_status|email|phone|phone_number|timezone|language"
    r"|native_language|blood_type|zodiac_sign|diet|pronouns|religion|salary|height|weight|shoe_size"
    r"|vet|doctor|dentist|therapist|teacher|boss|manager|landlord|owner|breed|color|school"
    r"|university|major|degree|favourite_\w+"
    r"|\w+_(?:name|color|age|birthday|address|email|phone|breed|size|vet|location)"
)
_PLURAL = re.compile("(?:dis)?likes|allergic_to|speaks|studies|has|started|is|knows")
_SAME = {
    "job": "occupation",
    "profession": "occupation",
    "workplace": "employer",
    "company": "employer",
    "home": "location",
    "residence": "location",
    "city": "location",
    "lives_in": "location",
    "works_at": "employer",
    "works_for": "employer",
    "bday": "birthday",
    "date_of_birth": "birth_date",
    "time_zone": "timezone",
    "e_mail": "email",
    "mother_tongue": "native_language",
    "veterinarian": "vet",
}


def predicate_of(words: str) -> str:
    """In lower case with underscores; empty if nothing is left."""
    name = "_".join(re.findall(r"[^\W_]+", words.lower()[: 2 * LONGEST]))
    name = name.replace("favorite", "favourite").replace("colour", "color")[:LONGEST].rstrip("_")
    return _SAME.get(name, name)


def kept_under(predicate: str) -> str:
    """What somebody calls it on purpose, in the word that extraction uses; whole, whatever it is."""
    return (predicate_of(predicate) if len(predicate) <= LONGEST else "") or predicate


def is_functional(predicate: str, *, otherwise: bool = False) -> bool:
    """`otherwise`: what holds for a predicate that nobody here knows."""
    if _FUNCTIONAL.fullmatch(predicate):
        return True
    return otherwise and not _PLURAL.fullmatch(predicate)


# What people ask in another word than it is kept under.
_ASKED = {
    **dict.fromkeys(("live", "lives", "living", "lived", "reside", "home"), ("location",)),
    **dict.fromkeys(("work", "works", "working", "worked"), ("employer", "occupation")),
    **dict.fromkeys(("job", "profession"), ("occupation", "employer")),
    "old": ("age",),
    "born": ("birthday", "birthplace"),
}


def asked_of(words: Sequence[str]) -> tuple[str, ...]:
    """What else to look for among facts."""
    return tuple(dict.fromkeys(name for word in words for name in _ASKED.get(word, ())))
