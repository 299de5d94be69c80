"""The table of methods is that of the declarations; `python tools/publish_methods.py` writes it."""

from typing import get_args, get_origin, get_type_hints

from gateway.api.errors import ERROR_TYPES, FAILURES, INTERNAL
from gateway.api.methods import METHODS
from tools.publish_methods import FILE, page


def test_the_table_of_methods_is_published_as_it_is() -> None:
    assert FILE.read_text(encoding="utf-8") == page()


def test_every_type_of_error_has_a_meaning_and_a_remedy_and_no_other() -> None:
    assert set(ERROR_TYPES) == {one.type for one in (*FAILURES.values(), INTERNAL)}


def test_a_table_shows_only_what_there_is() -> None:
    for method in (one for one in METHODS if one.columns):
        result = method.result
        inside = get_type_hints(result).values() if isinstance(result, type) else [result]
        rows = next(kind for kind in inside if get_origin(kind) is list)
        shown = {name for name, _ in get_args(rows)[0].defaults}
        assert set(method.columns.split()) <= shown, method.name
