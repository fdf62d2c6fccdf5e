"""The plan of a run: every stage once, in order, with what it reads and what decides it. Read this first.

Stages meet only through artefacts in the run directory. A stage is declared here and works in the file of its
name: its ``work``, and its ``check`` if it has one, are imported when they are called. So a command that only
asks what is fresh (`capro export`, `report`, `review`) does not wait for torch, and nothing imported at the top of
this file may bring it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any, Literal

from capro.config import Settings
from capro.models.classes import IN_RUN, given_ambiguous, given_classes
from capro.models.folders import has_text_tower, input_size
from capro.pipeline.artefacts import MODELS, PUBLISHED_CLASSES, VISUAL
from capro.pipeline.checksums import fingerprint
from capro.pipeline.plan import Plan
from capro.pipeline.run import Run
from capro.pipeline.stage import Stage

StepName = Literal["pretrain", "train", "finetune"]


def _of(module: str, name: str = "work") -> Callable[..., Any]:
    """A function of a stage's file, which is imported when it is called."""

    def imported(*arguments: Any) -> Any:
        return resolve_name(f"capro.stages.{module}:{name}")(*arguments)

    return imported


# --- questions about settings ---------------------------------------------------------------------


def classifier_steps(settings: Settings) -> tuple[str, str]:
    """The steps whose schedules made the last classifier."""
    return ("train" if settings.has_step2 else "pretrain", "finetune")


def threshold_name(method: str) -> str:
    """The stage that chooses the open-set threshold of ``vanilla`` or ``capro``, when it is asked for."""
    return f"threshold/{method}"


def augmented_views(settings: Settings) -> tuple[int, int]:
    """How many augmented views are cached: query views, and key views, which step 2 alone looks at."""
    step2 = settings.has_step2
    views = settings.net.frozen_views
    if views is None:
        views = 3 if step2 else 0  # plus gains nothing from more than the plain view: docs/plus.md
    keys = max(1, views // 2) if step2 else 0
    return max(0, views - keys), keys


def _is_frozen(settings: Settings) -> bool:
    return settings.net.mode == "frozen"


def _if(condition: bool, *names: str) -> Sequence[str]:
    return names if condition else ()


# --- what decides a stage -------------------------------------------------------------------------


def _person(run: Run) -> str:
    """What a person has decided."""
    from capro.review import decisions  # brings pandas, which `capro --help` need not wait for

    return decisions.decisions_hash(run)


def _classes(run: Run) -> dict[str, Any]:
    given, embed = given_classes(run), run.settings.embed
    known = bool(given) or bool(run.find(PUBLISHED_CLASSES))
    ambiguous = given_ambiguous(run)
    return {
        **({"ambiguous": ambiguous} if ambiguous else {}),
        "classes": [asdict(spec) for spec in given] or None,
        "encoder": None if known else [embed.text_encoder, embed.max_tokens],
    }


def _own_meanings(run: Run) -> str:
    """What a person has said in the review that classes mean: the file has the same name after every change."""
    own = (run.settings.data.classes or "").startswith(IN_RUN)
    return fingerprint([asdict(spec) for spec in given_classes(run)]) if own else ""


def _pixels(run: Run) -> dict[str, Any]:
    views = run.settings.views
    return {"size": views.size or input_size(run.settings.net.backbone), "cache_gb": views.cache_gb}


def _views(settings: Settings) -> dict[str, Any]:
    return settings.views.model_dump(exclude={"cache_gb"})


def _features(run: Run) -> dict[str, Any]:
    settings = run.settings
    query, keys = augmented_views(settings)
    return {
        "net": settings.net.model_dump(include={"backbone", "weights"}),
        "views": _views(settings),
        "query views": query,
        "key views": keys,
    }


def _embed(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        "method": settings.method,  # plus also embeds each field of the text alone
        "embed": settings.embed.model_dump(exclude={"batch_size", "shard_size"}),
        "net": settings.net.model_dump(include={"mode"}),
        "views": settings.views.model_dump(include={"size"}),
    }


def _graph(run: Run) -> dict[str, Any]:
    match = run.settings.match
    exact = match.enhancer == "none" or len(run.read(VISUAL)) < match.exact_below
    return {
        **match.model_dump(include={"enhancer", "k", "own_neighbour", "exact_below", "index", "recall"}),
        "seed": None if exact else run.settings.seed,  # an exact search has nothing random
    }


def _match(run: Run) -> dict[str, Any]:
    return {"match": run.settings.match.model_dump(exclude={"memory_gb"}), "seed": run.settings.seed}


def _joint(run: Run) -> dict[str, Any]:
    return {
        "net": run.settings.net.model_dump(include={"backbone", "weights", "mode"}),
        "views": run.settings.views.model_dump(include={"size"}),
    }


def _posterior(run: Run) -> dict[str, Any]:
    plus = run.settings.plus.model_dump(include={"folds", "rounds", "memory_gb"})
    return {"plus": plus, "seed": run.settings.seed}


def _clean(run: Run) -> dict[str, Any]:
    if run.settings.by_posterior:
        return {"plus": run.settings.plus.model_dump(), "seed": run.settings.seed}
    return run.settings.train.model_dump(include={"gamma", "alpha", "policy"})


def _training(run: Run, name: StepName) -> dict[str, Any]:
    """The settings that decide a training."""
    settings = run.settings
    return {
        # frozen_views decides the features, and by them the training; the runtime gives the same features
        "net": settings.net.model_dump(exclude={"runtime", "frozen_views"}),
        name: getattr(settings, name).model_dump(),
        "views": _views(settings),
        "seed": settings.seed,
    }


def _train(run: Run) -> dict[str, Any]:
    settings = run.settings
    reference = settings.reference.of(settings.train.reference)
    doubt = {"ask_below": settings.plus.ask_below} if settings.by_posterior else {}
    return {**_training(run, "train"), "reference": reference, **doubt}


def _finetune(run: Run) -> dict[str, Any]:
    return {**_training(run, "finetune"), "method": run.settings.method}  # plus also calibrates


# --- the stages -----------------------------------------------------------------------------------


STAGES = [
    Stage(
        "scan",
        _of("scan"),
        summary="reading and checking images",
        settings=_of("scan", "settings"),
        sources=_of("scan", "Sources.of_run"),
        subject=True,
        check=_of("scan", "check"),
    ),
    Stage(
        "classes",
        _of("classes"),
        summary="what each class means",
        settings=_classes,
        decisions=_own_meanings,
        subject=True,
        reads=["scan"],
        check=_of("classes", "check"),
    ),
    Stage(
        "pixels",
        _of("features", "decode_pixels"),
        summary="decoding images once",
        settings=_pixels,
        reads=["scan"],
    ),
    Stage(
        "features",
        _of("features"),
        summary="image encoder: features of all views (frozen mode)",
        settings=_features,
        reads=["scan"],
        uses=["pixels"],
        when=_is_frozen,
    ),
    Stage(
        "pretrain",
        _of("training", "pretrain"),
        summary="step 1 (vanilla)",
        settings=lambda run: _training(run, "pretrain"),
        reads=lambda settings: ["scan", "classes", *_if(_is_frozen(settings), "features")],
        uses=["pixels"],
        ranks="train",
    ),
    Stage(
        "embed",
        _of("embed"),
        summary="text encoder: texts and class texts",
        settings=_embed,
        reads=lambda settings: [
            "scan",
            "classes",
            *_if(settings.embed.visual == "step1", "features" if _is_frozen(settings) else "pretrain"),
        ],
    ),
    Stage("graph", _of("graph"), summary="text enhancement", settings=_graph, reads=["embed"]),
    Stage(
        "match",
        _of("match"),
        summary="anchors by text matching",
        settings=_match,
        decisions=_person,
        reads=["scan", "classes", "embed", "graph"],
        check=_of("match", "check"),
    ),
    Stage(
        "joint",
        _of("embed", "embed_jointly"),
        summary="text tower of the image-text model: class prompts and texts (method plus)",
        settings=_joint,
        reads=lambda settings: ["scan", "classes", *_if(_is_frozen(settings), "features")],
        when=lambda settings: settings.by_posterior and has_text_tower(settings.net.backbone, ask=False),
    ),
    Stage(
        "posterior",
        _of("posterior"),
        summary="posterior of the true labels",
        settings=_posterior,
        decisions=_person,
        reads=lambda settings: [
            "scan",
            "classes",
            "embed",
            "match",
            *_if(has_text_tower(settings.net.backbone), "joint"),
        ],
        when=lambda settings: settings.by_posterior,
        check=_of("posterior", "check"),
    ),
    Stage(
        "train",
        _of("training", "train"),
        summary="step 2",
        settings=_train,
        reads=lambda settings: [
            "scan",
            "classes",
            "pretrain",
            "match",
            *_if(settings.by_posterior, "posterior"),
        ],
        ranks="train",
        when=lambda settings: settings.has_step2,
    ),
    Stage(
        "clean",
        _of("clean"),
        summary="verdicts on all training samples",
        settings=_clean,
        decisions=_person,
        reads=lambda settings: [
            "scan",
            "classes",
            "embed",
            "match",
            *_if(settings.by_posterior, "posterior"),
            *_if(settings.has_step2, "train"),
        ],
        keep=True,
    ),
    Stage(
        "finetune",
        _of("training", "finetune"),
        summary="step 3",
        settings=_finetune,
        reads=lambda settings: ["scan", "classes", classifier_steps(settings)[0], "clean"],
        ranks="train",
    ),
    Stage(
        "evaluate",
        _of("evaluate"),
        summary="evaluation",
        reads=["scan", "classes", *(model.stage for model in MODELS.values())],
    ),
]
PLAN = Plan(STAGES, prepare=_of("start", "prepare"))
