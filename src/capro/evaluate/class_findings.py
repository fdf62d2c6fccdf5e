"""Classes with something wrong, as the posterior shows them: sentences for terminal, doctor and report."""

from __future__ import annotations

from typing import Any

from capro.run.directory import Run

SENTENCES = {  # by the kinds of `capro.method.plus.diagnose`
    "anchors": "{share:.0%} of the anchors of {names} get another label: its sense or definition may be wrong",
    "one class": "{names} can hardly be separated: they may be one class",
    "sense": "hardly any text of {names} is nearest to its own class text: its sense may be wrong",
}


def class_findings(run: Run) -> list[dict[str, Any]]:
    """What the posterior stage found: kind, classes, share, samples; empty where it has not run."""
    return list(run.result("posterior")["findings"]) if run.finished("posterior") else []


def finding_text(finding: dict[str, Any]) -> str:
    """A finding as a sentence.

    >>> finding_text({"kind": "one class", "classes": ["bat", "club"], "share": 0.4})
    "'bat' and 'club' can hardly be separated: they may be one class"
    """
    names = " and ".join(f"'{name}'" for name in finding["classes"])
    return SENTENCES[finding["kind"]].format(names=names, share=finding["share"])
