"""A secret is found in every encoding that an echo gives it, and nothing else is touched."""

import html
import json
import random
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.domain.scrubbing import STARS, SecretScanner
from tests.forms import examples

MARK = "[MARK]"
TEXT = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
ANY = st.text(TEXT, min_size=4, max_size=40)
ODD = st.text(r'\%&;25ampu0x+" /aA', min_size=4, max_size=12)  # what encodings are made of
AROUND = st.text(max_size=10)

Encode = Callable[[str], str]


def each(encode: Encode) -> Encode:
    return lambda value: "".join(map(encode, value))


def escaped(char: str) -> str:
    units = char.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def decimal(char: str) -> str:
    return f"&#{ord(char)};"


def hexadecimal(char: str) -> str:
    return f"&#x{ord(char):X};"


WAYS = (escaped, percent, decimal, hexadecimal)
ENCODINGS: dict[str, Encode] = {
    "plain": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json of unicode": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "json with slashes": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "json in json": lambda value: json.dumps(json.dumps(value)[1:-1])[1:-1],
    "json in full": each(escaped),
    "json in full, upper": lambda value: each(escaped)(value).upper().replace("\\U", "\\u"),
    "percent": lambda value: quote(value, safe=""),
    "percent in a path": quote,
    "percent of a form": quote_plus,
    "percent in full": each(percent),
    "percent in full, lower": lambda value: each(percent)(value).lower(),
    "percent twice": lambda value: quote(quote(value, safe=""), safe=""),
    "html": html.escape,
    "html twice": lambda value: html.escape(html.escape(value)),
    "decimal": each(decimal),
    "decimal with zeros": each(lambda char: f"&#{ord(char):07d};"),
    "decimal without an end": each(lambda char: f"&#{ord(char)}"),
    "hexadecimal": each(hexadecimal),
    "hexadecimal with zeros": each(lambda char: f"&#X{ord(char):06x};"),
    "hexadecimal without an end": each(lambda char: f"&#x{ord(char):x}"),
    "hex": lambda value: value.encode().hex(),
    "hex, upper": lambda value: value.encode().hex().upper(),
    "base64": lambda value: b64encode(value.encode()).decode(),
    "base64 in a url": lambda value: quote(b64encode(value.encode()).decode(), safe=""),
    "base64 for urls": lambda value: urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "base64 after one": lambda value: b64encode(b"x" + value.encode() + b"y").decode(),
    "base64 after two": lambda value: b64encode(b"xx" + value.encode() + b"y").decode(),
}


def found(value: str, text: str) -> bool:
    return MARK in SecretScanner({value: MARK}).text(text)


@pytest.mark.parametrize("name", ENCODINGS)
@given(st.one_of(ANY, ODD), AROUND, AROUND)
def test_any_secret_is_found_in_this_encoding_wherever_it_stands(
    name: str, value: str, before: str, after: str
) -> None:
    encoded = ENCODINGS[name](value)
    assume("base64" not in name or len(value.encode()) >= 6)
    scanner = SecretScanner({value: MARK})

    assert MARK in scanner.text(before + encoded + after)
    assert MARK in scanner.data((before + encoded + after).encode("utf-8", "replace")).decode()


@given(st.one_of(ANY, ODD), AROUND, AROUND, st.randoms(use_true_random=False))
def test_a_secret_is_found_whichever_of_its_characters_are_encoded_and_how(
    value: str, before: str, after: str, chance: random.Random
) -> None:
    """The signs that encodings begin with are encoded, as every encoder does it."""
    ways = [chance.choice(WAYS if char in "\\%&" else (*WAYS, str)) for char in value]
    encoded = "".join(way(char) for way, char in zip(ways, value, strict=True))

    assert found(value, before + encoded + after)


@settings(deadline=None, max_examples=examples(50))  # the patterns of a long secret are made once
@given(st.text(TEXT, min_size=200, max_size=600), st.sampled_from([*WAYS, str]), AROUND)
def test_nothing_of_a_long_secret_is_left(value: str, way: Encode, around: str) -> None:
    scrubbed = SecretScanner({value: "|"}).text(f"<{each(way)(value)}>")

    assert scrubbed.strip("|<>") == ""


@given(st.text(max_size=200), ANY)
def test_a_text_without_the_secret_comes_back_as_it_was(text: str, value: str) -> None:
    readings = (text, html.unescape(text))
    assume(not any(value[:4] in one for one in readings))
    scanner = SecretScanner({value: MARK})
    likely = f'{text} {{"a": "b\\n\\u0041 \\/"}} %20%41 &amp; &#65; c2VjcmV0 736563726574'

    assert scanner.text(text) is text
    assert scanner.text(likely) == likely


def test_of_what_is_kept_by_its_length_the_length_stays() -> None:
    scanner = SecretScanner({"s3cret-of-b": STARS})

    for text in ("a s3cret-of-b c", "a %733cret-of-b c", "a \\u0073\\u0033cret-of-b c"):
        assert scanner.text(text) == f"a {'*' * (len(text) - 4)} c"


@pytest.mark.parametrize("value", ["sk-4bc_/+=%&\\;xyz" + "q" * 40, "%" * 30, "&" * 30, "\\" * 30])
def test_no_text_takes_longer_than_its_length_says(value: str) -> None:
    almost = each(escaped)(value[:-1])
    signs = ("\\", "%25", "&amp;", "&#59;", "&#", "%", "&", "\\u00", "0", value[:-1], almost)
    scanner = SecretScanner({value: MARK})
    for sign in signs:
        began = time.process_time()
        scanner.data((sign * 300_000)[:300_000].encode())
        assert time.process_time() - began < 2.0, sign[:10]


def test_a_longer_secret_goes_before_one_that_it_holds() -> None:
    scanner = SecretScanner({"swordfish": "[a]", "swordfish-2": "[b]"})

    assert scanner.text("%73wordfish-2 swordfish sword&#102;ish-2") == "[b] [a] [b]"
