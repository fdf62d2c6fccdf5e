"""Cards: what a model or a dataset is, what it was made from, what was measured; for people and for model hubs.

Their sentences are in model_card.md and dataset_card.md; the metadata is huggingface_hub's.
"""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from capro.data.labels import MULTI_LABEL
from capro.data.manifest import manifest_of
from capro.errors import ConfigError
from capro.models.folders import on_hub
from capro.pipeline.run import Run
from capro.results.store import VerdictStore
from capro.wording import many, plain, some

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
SIZES = (
    "n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B", "10B<n<100B",
    "100B<n<1T", "n>1T",
)  # fmt: skip


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
    return SIZES[bisect([10**power for power in range(3, 13)], count)]


def _hub_name(source: str | None) -> str | None:
    """The name on the hub of data that come from there.

    >>> _hub_name("hub:cifar10@plain_text"), _hub_name("crawl")
    ('cifar10', None)
    """
    scheme, _, name = (source or "").partition(":")
    return name.partition("@")[0] or None if scheme == "hub" else None


def _results(run: Run, figures: Mapping[str, float]) -> list[Any]:
    """The figures of the exported model on the test split, in the hub's form."""
    from huggingface_hub import EvalResult

    source = run.settings.data.test or run.settings.data.source or ""
    name = _plain(without_folders(source)) or "data"
    return [
        EvalResult(
            task_type=TASK,
            dataset_type=_hub_name(source) or name,
            dataset_name=name,
            dataset_split="test",
            metric_type=METRICS.get(key.removeprefix("C-").removeprefix("O-"), key.lower()),
            metric_name=key,
            metric_value=round(value, 6),
        )
        for key, value in figures.items()
        if math.isfinite(value)
    ]


def model_card(run: Run, config: dict[str, Any], *, license: str | None = None) -> str:
    """README.md of a model folder, in Markdown with the front matter of model hubs."""
    from huggingface_hub import ModelCard, ModelCardData

    run.refuse_damaged("evaluate")
    settings, manifest = run.settings, manifest_of(run)
    measured = run.result("evaluate") if run.finished("evaluate") else None
    hub_data, results = _hub_name(settings.data.source), _results(run, (measured or {}).get("capro", {}))
    began_with = settings.net.weights or settings.net.backbone  # the former replace the backbone's own
    data = ModelCardData(
        license=license,
        base_model=began_with if on_hub(began_with) else None,
        library_name="capro",
        pipeline_tag=TASK,
        tags=TAGS,
        datasets=[hub_data] if hub_data else None,
        metrics=sorted({each.metric_type for each in results}) or None,
        model_name="CAPro image classifier" if results else None,
        eval_results=results or None,
    )
    splits = manifest.samples["split"].value_counts()
    verdicts = VerdictStore(run).verdict_columns("decision")["decision"].to_pandas().value_counts()
    counts = [*splits.items(), *((f"verdict: {name}", count) for name, count in verdicts.items())]
    values = without_folders(settings.model_dump())
    card = ModelCard.from_template(
        data,
        str(Path(__file__).with_name("model_card.md")),
        labels=manifest.kind.words.capitalize(),
        classes=_classes(config["id2label"].values()),
        backbone=_plain(config["backbone"]["name"]),
        learnt="frozen, with a classifier of its own" if settings.net.mode == "frozen" else "trained",
        preprocessing=config["preprocessing"],
        counts=counts,
        source=_plain(without_folders(settings.data.source or "")),
        fingerprint=run.identity("scan"),
        measured=measured,
        open_set=config["open_set"],
        percent=lambda share: "-" if share is None else f"{share:.1%}",
        settings=yaml.safe_dump(values, sort_keys=False, width=math.inf).rstrip(),
        version=config["capro_version"],
    )
    return f"{card}\n"


def data_card(export: Mapping[str, Any], *, license: str | None = None) -> str:
    """README.md of an exported dataset in Hugging Face's form.

    Args:
        export: The export's export.json.
        license: As its user named it.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    files = {"config_name": "default", "data_files": [{"split": "train", "path": "train-*.parquet"}]}
    data = DatasetCardData(
        license=license,
        task_categories=[TASK],
        size_categories=[size_category(export["samples"])],
        tags=TAGS,
        configs=[files],
    )
    multi_label = export["task"] == MULTI_LABEL.task
    card = DatasetCard.from_template(
        data,
        str(Path(__file__).with_name("dataset_card.md")),
        labels="any number of labels" if multi_label else "one label",
        classes=_classes(export["classes"]),
        label="labels" if multi_label else "label",
        decisions=export["decisions"].items(),
        version=export["capro"],
        fingerprint=export["data"],
    )
    return f"{card}\n"


def _classes(names: Iterable[str]) -> str:
    """How many classes there are, and the first of them."""
    safe = [_plain(name) for name in names]
    return f"{many(len(safe), 'class', 'classes')}: {some(safe, SHOWN_NAMES)}"


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
