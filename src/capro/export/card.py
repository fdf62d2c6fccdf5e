"""The model card: what the model is, what it was made from, what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from capro.data.manifest import manifest_of
from capro.run.directory import Run
from capro.wording import plain

SHOWN_NAMES = 30  # classes named


def model_card(run: Run, config: dict[str, Any]) -> str:
    """README.md of a model folder, in Markdown with the front matter of model hubs."""
    settings, manifest = run.settings, manifest_of(run)
    front = {
        "library_name": "capro",
        "pipeline_tag": "image-classification",
        "tags": ["capro", "noisy-labels", "webly-supervised"],
    }
    names = list(config["id2label"].values())
    shown = ", ".join(_plain(name) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    several = manifest.task == "multi"
    where = config["preprocessing"]
    counts, verdicts = manifest.samples["split"].value_counts(), run.issues()["decision"].value_counts()
    parts = [
        "---\n" + yaml.safe_dump(front, sort_keys=False).rstrip() + "\n---",
        "# Image classifier trained by CAPro on noisy web data",
        f"{'Several labels' if several else 'One label'} per image, {len(names)} classes: {shown}{more}. "
        f"Backbone `{_plain(config['backbone']['name'])}`, "
        f"{'frozen, with a classifier of its own' if settings.net.mode == 'frozen' else 'trained'}.",
        "## Use\n\n```sh\ncapro predict MODEL IMAGES... --open-set\n```\n\n"
        "```python\nfrom capro import CAPro\nCAPro.load('MODEL').predict(['picture.jpg'])\n```",
        f"Preprocessing: {where['steps']}. Size {where['size']}, mean {where['mean']}, std {where['std']}.",
        "## Data\n\n"
        + _table(
            ("", "samples"),
            [(str(split), f"{n:,}") for split, n in counts.items()]
            + [(f"verdict: {name}", f"{n:,}") for name, n in verdicts.items()],
        )
        + f"\n\nSource: `{_plain(without_folders(settings.data.source or ''))}`, "
        f"fingerprint `{run.need('scan')}`. "
        "Labels and texts come from the web; the licence of the images is theirs.",
        "## Measured\n\n" + _results(run),
        "## Open set\n\n" + _open_set(config["open_set"]),
        "## Limits\n\nThe classes mean what their definitions in the run say. Web data is biased in "
        "ways that cleaning does not mend; measure on your own images before you rely on it.",
        "## Settings\n\n```yaml\n"
        + yaml.safe_dump(without_folders(settings.model_dump()), sort_keys=False, width=math.inf).rstrip()
        + "\n```",
        f"Made by capro {config['capro_version']}.",
    ]
    return "\n\n".join(parts) + "\n"


def _plain(text: str) -> str:
    """Web text in Markdown: no tags, no links, no code fences, no hidden characters, one line."""
    return plain("".join(" " if c in "`<>[]()|*_\\" else c for c in text))


def without_folders(value: Any) -> Any:
    """Values in which an absolute path is its last name: the folders of a machine are nobody else's business.

    >>> without_folders({"source": "/home/ann/crawl", "format": "auto", "also": ["~/x/y", "org/model"]})
    {'source': 'crawl', 'format': 'auto', 'also': ['y', 'org/model']}
    """
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(each) for each in value]
    if isinstance(value, str) and value.startswith(("/", "~", "../", "file://")):
        return PurePosixPath(value).name or value
    return value


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _open_set(found: dict[str, Any]) -> str:
    if found["threshold"] is None:
        return "This model has no threshold: there was nothing to choose it from."
    known = found["known"]
    kept, rejected = (
        "-" if share is None else f"{share:.1%}" for share in (known["kept"], found["open"]["rejected"])
    )
    return (
        f"An image is open when its highest probability is below {found['threshold']:.2f}. Chosen on "
        f"{known['samples']:,} {known['from']}; rule: {found['rule']}. There it keeps "
        f"{kept} of the known and rejects {rejected} of the others. "
        "No test sample was used."
    )


def _results(run: Run) -> str:
    run.refuse_damaged("evaluate")
    if not run.finished("evaluate"):
        return "Nothing was measured: the evaluate stage has not finished."
    results = run.result("evaluate")
    if not results:
        return "No test split: nothing was measured."
    rows = [(method, *(f"{100 * value:.1f}" for value in row.values())) for method, row in results.items()]
    return (
        "On the test split, in percent; `vanilla` is the same network trained on the web labels as "
        "they are.\n\n" + _table(("", *results["capro"]), rows)
    )
