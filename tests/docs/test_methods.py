"""The table of methods is that of the declarations; `python tools/publish_methods.py` writes it."""

from typing import get_args, get_origin, get_type_hints

from gateway.api.methods import METHODS
from tools.publish_methods import FILE, page


def test_the_table_of_methods_is_published_as_it_is() -> None:
    assert FILE.read_text(encoding="utf-8") == page()


def test_a_table_shows_only_what_there_is() -> None:
    for method, verb in ((one, one.verb) for one in METHODS if one.verb and one.verb.columns):
        result = method.result
        inside = get_type_hints(result).values() if isinstance(result, type) else [result]
        kinds = [kind for kind in inside if get_origin(kind) in {list, tuple}]
        for kind, columns in zip(kinds, verb.columns.split("|"), strict=False):
            shown = get_type_hints(get_args(kind)[0])
            names = {name.partition(".")[0] for name in columns.split()}
            assert names <= set(shown), method.name
