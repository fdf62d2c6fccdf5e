"""Cards: what a model or a data set is, what it was made from, what was measured; for people and for model hubs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from capro.data.manifest import manifest_of
from capro.errors import ConfigError
from capro.models.folders import on_hub
from capro.pipeline.run import Run
from capro.wording import plain, some

SHOWN_NAMES = 30  # classes named


TAGS = ["capro", "noisy-labels", "webly-supervised"]
TASK = "image-classification"
METRICS = {
    "top1": "accuracy",
    "top5": "accuracy",
    "P": "precision",
    "R": "recall",
    "F1": "f1",
    "mAP": "mean_average_precision",
}
SIZES = {
    1_000: "n<1K",
    10_000: "1K<n<10K",
    100_000: "10K<n<100K",
    1_000_000: "100K<n<1M",
    10_000_000: "1M<n<10M",
}


def check_license(name: str | None) -> None:
    """Refuse what cannot be the name of a licence on the hub, such as apache-2.0.

    >>> check_license("cc-by-4.0"), check_license(None)
    (None, None)
    """
    if name is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]{1,40}", name):
        raise ConfigError(
            f"--license {name[:80]!r}: not a name as the Hugging Face hub has them",
            hint="for example apache-2.0, mit, cc-by-4.0, or other",
        )


def size_category(count: int) -> str:
    """The hub's word for a number of samples.

    >>> size_category(999), size_category(1000), size_category(10**7)
    ('n<1K', '1K<n<10K', '10M<n<100M')
    """
    return next((name for most, name in SIZES.items() if count < most), "10M<n<100M")


def _front(values: dict[str, Any]) -> str:
    """The YAML block at the top of a card, without what is empty."""
    given = {key: value for key, value in values.items() if value not in (None, [], "")}
    return "---\n" + yaml.safe_dump(given, sort_keys=False, allow_unicode=True).rstrip() + "\n---"


def _hub_name(source: str | None) -> str | None:
    """The name on the hub of data that come from there.

    >>> _hub_name("hub:cifar10@plain_text"), _hub_name("crawl")
    ('cifar10', None)
    """
    found = (source or "").partition("hub:")[2] if (source or "").startswith("hub:") else ""
    return found.partition("@")[0] or None


def _measured(run: Run, name: str) -> list[dict[str, Any]]:
    """The figures of the exported model on the test split, in the hub's form; nothing where nothing was measured."""
    figures = (run.result("evaluate") if run.finished("evaluate") else {}).get("capro", {})
    source = run.settings.data.test or run.settings.data.source or ""
    shown = _plain(without_folders(source)) or "data"
    metrics = [
        {
            "type": METRICS.get(key.removeprefix("C-").removeprefix("O-"), key.lower()),
            "name": key,
            "value": round(value, 6),
        }
        for key, value in figures.items()
        if math.isfinite(value)
    ]
    if not metrics:
        return []
    data_set = {"type": _hub_name(source) or shown, "name": shown, "split": "test"}
    return [{"name": name, "results": [{"task": {"type": TASK}, "dataset": data_set, "metrics": metrics}]}]


def model_card(run: Run, config: dict[str, Any], *, license: str | None = None) -> str:
    """README.md of a model folder, in Markdown with the front matter of model hubs."""
    settings, manifest = run.settings, manifest_of(run)
    hub_data = _hub_name(settings.data.source)
    index = _measured(run, "CAPro image classifier")
    metrics = index[0]["results"][0]["metrics"] if index else []
    began_with = settings.net.weights or settings.net.backbone  # the former replace the backbone's own
    front = {
        "license": license,
        "base_model": began_with if on_hub(began_with) else None,
        "library_name": "capro",
        "pipeline_tag": TASK,
        "tags": TAGS,
        "datasets": [hub_data] if hub_data else [],
        "metrics": sorted({metric["type"] for metric in metrics}),
        "model-index": index,
    }
    names = list(config["id2label"].values())
    shown = ", ".join(_plain(name) for name in names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    several = manifest.task == "multi"
    where = config["preprocessing"]
    counts, verdicts = manifest.samples["split"].value_counts(), run.issues()["decision"].value_counts()
    parts = [
        _front(front),
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
        "ways that cleaning does not correct; measure on your own images before you rely on it.",
        "## Settings\n\n```yaml\n"
        + yaml.safe_dump(without_folders(settings.model_dump()), sort_keys=False, width=math.inf).rstrip()
        + "\n```",
        f"Made by capro {config['capro_version']}.",
    ]
    return "\n\n".join(parts) + "\n"


def data_card(note: dict[str, Any], *, license: str | None = None) -> str:
    """README.md of an exported data set in Hugging Face's form.

    Args:
        note: The export's export.json.
        license: As its user named it.
    """
    front = {
        "license": license,
        "task_categories": [TASK],
        "size_categories": [size_category(note["samples"])],
        "tags": TAGS,
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": "train-*.parquet"}]}
        ],
    }
    several = note["task"] == "multi"
    label, given = ("labels", "given_labels") if several else ("label", "given_label")
    names = [_plain(name) for name in note["classes"]]
    parts = [
        _front(front),
        "# Data set cleaned by CAPro",
        f"Web pictures with {'any number of labels' if several else 'one label'} each, "
        f"{len(names)} classes: {some(names, SHOWN_NAMES)}.",
        f"`{label}` is the corrected label, `{given}` the one it came with; `decision`, `label_score` and "
        "`evidence` say why. Samples that were dropped are in `dropped.csv`, without their pictures.",
        _table(("decision", "samples"), [(name, f"{count:,}") for name, count in note["decisions"].items()]),
        "## Limits\n\nPictures, labels and texts come from the web; the licence of each picture is its owner's. "
        "Labels were corrected by a method that makes mistakes of its own.",
        f"Made by capro {note['capro']} from data with the fingerprint `{note['data']}`.",
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
        return "This model has no open-set threshold, since there were no samples to choose it on."
    known = found["known"]
    kept, rejected = (
        "-" if share is None else f"{share:.1%}" for share in (known["kept"], found["open"]["rejected"])
    )
    return (
        f"An image is open when its highest probability is below {found['threshold']:.2f}. Chosen on "
        f"{known['samples']:,} {known['from']}; rule: {found['rule']}. On these it keeps "
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
