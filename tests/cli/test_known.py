"""What the rooms know, as the configuration is told it."""

from gateway.cli.known import DEFAULT_MODELS, known
from gateway.providers.presets import PRESETS


def test_every_preset_is_known_and_one_that_needs_a_key_has_a_model_to_start_with() -> None:
    presets = known().presets

    assert set(presets) == set(PRESETS)
    assert set(DEFAULT_MODELS) == {name for name, one in presets.items() if one.key_variable}
    assert known().tools == ("clock",)
