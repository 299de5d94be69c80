"""From a file to a configuration: what several rooms say about it comes out together."""

import pytest

from gateway.config.problems import ConfigInvalid
from tests.config.arena import Arena


def test_schema_references_and_secrets_are_told_at_once_in_the_order_of_the_file(
    arena: Arena,
) -> None:
    arena.write(
        "[gateway]\nprot = 1\ntoken = '${env:NOWHERE}'\n"
        "[agent]\nprovider = 'demo'\nmodel = 'demo'\n"
        "[[bindings]]\nagent_id = 'nobody'\nchannel = 'c'\n"
    )

    with pytest.raises(ConfigInvalid) as caught:
        arena.load()

    found = [(problem.line, str(problem.code)) for problem in caught.value.problems]
    assert found == [(2, "CFG002"), (3, "CFG010"), (8, "CFG009")]
