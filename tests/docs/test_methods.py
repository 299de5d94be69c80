"""The table of methods is that of the declarations; `python tools/publish_methods.py` writes it."""

from gateway.api.errors import ERROR_TYPES, FAILURES, INTERNAL
from tools.publish_methods import FILE, page


def test_the_table_of_methods_is_published_as_it_is() -> None:
    assert FILE.read_text(encoding="utf-8") == page()


def test_every_type_of_error_has_a_meaning_and_a_remedy_and_no_other() -> None:
    assert set(ERROR_TYPES) == {one.type for one in (*FAILURES.values(), INTERNAL)}
