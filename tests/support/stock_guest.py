"""The image of a guest with a stock kernel, for a test."""

import pytest

from enkaku_lab.peers import guest_image


def image(recipe: guest_image.Recipe = guest_image.STOCK) -> guest_image.Image:
    """Where it cannot be had, the test is skipped, with the reason."""
    try:
        return guest_image.image(recipe)
    except guest_image.NoImage as missing:
        pytest.skip(f"no stock-kernel guest: {missing}")
