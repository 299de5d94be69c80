"""What ships with the gateway is found."""

from pathlib import Path

from gateway.host.shipped import shipped_folder


def test_in_a_checkout_it_stands_beside_the_package() -> None:
    assert shipped_folder("souls") == Path(__file__).parents[2] / "souls"
    assert (shipped_folder("souls") / "default.md").is_file()
