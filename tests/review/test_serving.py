"""Starting and stopping: the link works from the moment it is shown."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from capro.errors import RunError
from capro.pipeline.run import Run
from capro.review.serving import Review


def test_the_link_works_before_the_server_runs(run: Run) -> None:
    review = Review(run)
    with socket.create_connection(("127.0.0.1", review.port), timeout=5):
        pass
    review.start()
    with urllib.request.urlopen(review.link) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://127.0.0.1:{review.port}/")
    review.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", review.port), timeout=5)


def test_a_port_that_is_taken_is_named(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RunError, match=r"127\.0\.0\.1:\d+: "):
            Review(run, port=taken.getsockname()[1])


def test_a_notebook_shows_the_link_escaped(run: Run) -> None:
    review = Review(run)
    shown = review._repr_html_()
    assert f'<a href="http://127.0.0.1:{review.port}/open?token=' in shown
    assert 'target="_blank"' in shown
    assert f":{review.port}/open?token=" in repr(review)
    review.stop()
