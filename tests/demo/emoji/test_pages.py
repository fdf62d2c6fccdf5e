"""Web pages of the demo."""

import json

import numpy as np

from capro.demo.emoji import page


def test_pages_look_like_the_web():
    pages = [page(np.random.default_rng(i), ["mouse"], ["1f5b1-fe0f"]) for i in range(200)]
    text = json.dumps(pages)
    for sign in ("<p>", "&amp;", ".jpg", "https://", "\\n", "\\t", "computermouse"):
        assert sign in text
    assert all("mouse" in str(p) for p in pages)
    assert np.mean(["computer" in str(p) for p in pages]) > 0.9  # the sense can be told


def test_page_names_the_company():
    text = page(np.random.default_rng(0), ["bat", "corn"], ["1f987", "1f33d"])
    assert "With corn (ear of corn)." in text["description"]
    assert text["tags"][:2] == ["bat", "corn"]
