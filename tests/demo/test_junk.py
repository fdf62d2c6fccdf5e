"""Banners and screenshots of the demo."""

import numpy as np
import pytest

from capro.demo import junk


@pytest.mark.parametrize("kind", junk.JUNK)
def test_junk_is_drawn_again_the_same_and_another_draw_differs(kind):
    first, again, other = (
        np.asarray(junk.junk_picture(np.random.default_rng(seed), kind, "tiger cat")) for seed in (3, 3, 4)
    )
    assert (first == again).all()
    assert (first != other).any()


def test_a_banner_is_wide_and_mostly_of_one_colour_with_letters_in_it():
    for seed in range(30):
        image = junk.banner(np.random.default_rng(seed), "drumstick")
        assert image.width > 3 * image.height
        pixels = np.asarray(image).reshape(-1, 3)
        flat = (pixels == pixels[0]).all(axis=1).mean()
        assert 0.6 < flat < 0.99
        assert (np.asarray(image)[:, [0, -1]] == pixels[0]).all()  # no letter is cut off


def test_a_screenshot_has_a_title_bar_and_text_lines():
    for seed in range(10):
        grey = np.asarray(junk.screenshot(np.random.default_rng(seed)).convert("L")).astype(int)
        assert (grey[9, 30:] == grey[9, -1]).all()
        lines = (grey[10:] != grey[11, -1]).any(axis=1)
        assert (np.diff(lines.astype(int)) == 1).sum() >= 4


@pytest.mark.parametrize("kind", junk.JUNK)
def test_its_page_is_about_the_query(kind):
    pages = [junk.junk_page(np.random.default_rng(seed), kind, "palm") for seed in range(50)]
    assert all("palm" in str(text["tags"]) and text["title"] for text in pages)
    assert not any("{" in text["title"] + text["description"] for text in pages)
