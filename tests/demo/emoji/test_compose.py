"""Pictures of the demo."""

import numpy as np
from PIL import Image

from capro.demo.emoji import background, recolour, scene


def test_recolour_keeps_grey_and_alpha():
    grey = Image.new("RGBA", (2, 2), (100, 100, 100, 7))
    turned = np.asarray(recolour(grey, hue=1.0, brightness=1.0))
    assert np.abs(turned[..., :3].astype(int) - 100).max() <= 1
    assert (turned[..., 3] == 7).all()
    red = Image.new("RGBA", (2, 2), (200, 0, 0, 255))
    assert np.asarray(recolour(red, hue=0.0, brightness=0.5))[0, 0, 0] in (99, 100)


def test_emoji_cover_a_fair_part_of_the_picture():
    rng_pairs = [(np.random.default_rng(i), np.random.default_rng(i)) for i in range(40)]
    covered = [
        (np.asarray(scene(a, ["1f357"], [])) != background(b)).any(axis=2).mean() for a, b in rng_pairs
    ]
    assert min(covered) > 0.02
    assert max(covered) < 0.6
