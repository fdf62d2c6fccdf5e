"""The plan of a run: every stage once, in order, with what it reads and what decides it. Read this first.

Stages meet only through artefacts in the run directory. A stage is declared here and works in the file of its
name: its ``work``, and its ``check`` if it has one, are imported when they are called. So a command that only
asks what is fresh (`capro export`, `report`, `review`) does not wait for torch, and nothing imported at the top of
this file may bring it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
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
OWN_WEIGHT = ("smoothing", "bootstrap")  # runs of 0.1.0 multiplied theirs by lambda_bts: no longer fresh
KEPT = {"kept": "the highest"}  # scores of a sample; raised when another choice is kept


def _of(stage: str, name: str = "work") -> Callable[[Any], Any]:
    """A function of a stage's file, which is imported when it is called."""

    def function(given: Any) -> Any:
        return getattr(import_module(f"capro.stages.{stage}"), name)(given)

    return function


# --- questions about settings ---------------------------------------------------------------------


def has_step2(settings: Settings) -> bool:
    """Whether a run trains step 2: with a frozen encoder the method plus has nothing left to learn there."""
    return settings.method == "paper" or settings.net.mode == "full"


def classifier_steps(settings: Settings) -> tuple[str, str]:
    """The steps whose schedules made the last classifier."""
    return ("train" if has_step2(settings) else "pretrain", "finetune")


def threshold_name(method: str) -> str:
    """The stage that chooses the open-set threshold of ``vanilla`` or ``capro``, when it is asked for."""
    return f"threshold/{method}"


def augmented_views(settings: Settings) -> tuple[int, int]:
    """How many augmented views are cached: query views, and key views, which step 2 alone looks at."""
    step2 = has_step2(settings)
    views = settings.net.frozen_views
    if views is None:
        views = 3 if step2 else 0  # plus gains nothing from more than the plain view: docs/plus.md
    keys = max(1, views // 2) if step2 else 0
    return max(0, views - keys), keys


def _is_plus(settings: Settings) -> bool:
    return settings.method == "plus"


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
    """The settings that decide views; a newer one only where it is set, so that runs of before stay fresh."""
    found = settings.views.model_dump(exclude={"cache_gb"})
    return {name: value for name, value in found.items() if value is not None or name != "key_crop_scale"}


def _features(run: Run) -> dict[str, Any]:
    settings = run.settings
    query, keys = augmented_views(settings)
    return {
        "net": settings.net.model_dump(include={"backbone", "weights"}) | {"frozen_views": query + keys},
        "views": _views(settings),
        **({} if keys else {"key views": 0}),
    }


def _embed(run: Run) -> dict[str, Any]:
    settings = run.settings
    return {
        **({"fields": True} if settings.method == "plus" else {}),
        "embed": settings.embed.model_dump(exclude={"batch_size", "shard_size"}),
        "net": settings.net.model_dump(include={"mode"}),
        "views": settings.views.model_dump(include={"size"}),
    }


NEWER_IN_MATCH = {"own_neighbour"}  # only where it is not the default: runs of before stay fresh


def _graph(run: Run) -> dict[str, Any]:
    chosen = run.settings.match
    exact = chosen.enhancer == "none" or len(run.read(VISUAL)) < chosen.exact_below
    return {
        **chosen.model_dump(include={"enhancer", "k", "exact_below", "index", "recall"}),
        **chosen.model_dump(include=NEWER_IN_MATCH, exclude_defaults=True),
        "seed": None if exact else run.settings.seed,  # an exact search has nothing random
    }


def _match(run: Run) -> dict[str, Any]:
    # earlier versions took the first samples where there was no text: such anchors are chosen again
    without = {"without_texts": True} if run.settings.data.without_texts else {}
    chosen = run.settings.match
    match = chosen.model_dump(exclude=NEWER_IN_MATCH) | chosen.model_dump(
        include=NEWER_IN_MATCH, exclude_defaults=True
    )
    match["memory_gb"] = 0.0  # it decides no anchor; runs of before, without a limit, stay fresh
    return {"match": match, "seed": run.settings.seed, **without}


def _joint(run: Run) -> dict[str, Any]:
    return {
        "net": run.settings.net.model_dump(include={"backbone", "weights", "mode"}),
        "views": run.settings.views.model_dump(include={"size"}),
    }


def _posterior(run: Run) -> dict[str, Any]:
    chosen = run.settings.plus.model_dump(include={"folds", "rounds", "memory_gb"})
    return {"plus": chosen, **KEPT, "seed": run.settings.seed}


def _clean(run: Run) -> dict[str, Any]:
    if run.settings.method == "plus":
        chosen = run.settings.plus.model_dump()
        return {"plus": chosen, **KEPT, "seed": run.settings.seed}
    rule = run.settings.train.model_dump(include={"gamma", "alpha", "text_weight", "policy"})
    return {**rule, **KEPT}


def _training(run: Run, name: StepName) -> dict[str, Any]:
    """The settings that decide a training."""
    given = run.settings
    net = given.net.model_dump(exclude={"runtime"})  # features are the same
    if given.net.frozen_views is None:  # they decide the features; runs of 0.1.0 had three and stay fresh
        net["frozen_views"] = 3
    if not given.net.centred:
        del net["centred"]
    parts = {"net": net, name: getattr(given, name).model_dump()}
    return {**parts, "views": _views(given), "seed": given.seed}


def _train(run: Run) -> dict[str, Any]:
    name = run.settings.train.reference
    chosen = run.settings.reference.of(name)
    if chosen.get("ncr_weight", 0) is None:
        del chosen["ncr_weight"]
    if name in OWN_WEIGHT:
        chosen["own_weight"] = True
    doubt = {"ask_below": run.settings.plus.ask_below} if run.settings.method == "plus" else {}
    return {**_training(run, "train"), **({"reference": chosen} if chosen else {}), **doubt}


def _finetune(run: Run) -> dict[str, Any]:
    calibrated = {"calibrated": True} if run.settings.method == "plus" else {}
    return {**_training(run, "finetune"), **calibrated}


# --- the stages -----------------------------------------------------------------------------------


def _training_stage(
    name: StepName,
    *,
    summary: str,
    settings: Callable[[Run], Mapping[str, Any]],
    reads: Callable[[Settings], Sequence[str]],
    uses: Sequence[str] = (),
    when: Callable[[Settings], bool] = lambda _: True,
) -> Stage:
    """A stage in which all ranks train; its checkpoints go when its result is there."""
    return Stage(
        name,
        _of("training", name),
        summary=summary,
        settings=settings,
        reads=lambda given: ["scan", "classes", *reads(given)],
        uses=uses,
        when=when,
        ranks="train",
        after=_of("training", "clear"),
    )


STAGES = [
    Stage(
        "scan",
        _of("scan"),
        summary="reading and checking images",
        settings=_of("scan", "settings"),
        files=_of("scan", "files"),
        check=_of("scan", "check"),
    ),
    Stage(
        "classes",
        _of("classes"),
        summary="what each class means",
        settings=_classes,
        decisions=_own_meanings,
        reads=["scan"],
        implicit=True,
        command="classes show",
        check=_of("classes", "check"),
    ),
    Stage(
        "pixels",
        _of("features", "decode_pixels"),
        summary="decoding images once",
        settings=_pixels,
        reads=["scan"],
        implicit=True,
        command="pretrain",
    ),
    Stage(
        "features",
        _of("features"),
        summary="image encoder: features of all views (frozen mode)",
        settings=_features,
        reads=["scan"],
        uses=["pixels"],
        implicit=True,
        command="pretrain",
        when=_is_frozen,
    ),
    _training_stage(
        "pretrain",
        summary="step 1 (vanilla)",
        settings=lambda run: _training(run, "pretrain"),
        reads=lambda settings: _if(_is_frozen(settings), "features"),
        uses=["pixels"],
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
    Stage(
        "graph",
        _of("graph"),
        summary="text enhancement",
        settings=_graph,
        reads=["embed"],
        implicit=True,
        command="match",
    ),
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
        implicit=True,
        command="clean",
        when=lambda settings: _is_plus(settings) and has_text_tower(settings.net.backbone, ask=False),
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
        command="clean",
        implicit=True,
        when=_is_plus,
        check=_of("posterior", "check"),
    ),
    _training_stage(
        "train",
        summary="step 2",
        settings=_train,
        reads=lambda settings: ["pretrain", "match", *_if(_is_plus(settings), "posterior")],
        when=has_step2,
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
            *_if(_is_plus(settings), "posterior"),
            *_if(has_step2(settings), "train"),
        ],
        keep=True,
    ),
    _training_stage(
        "finetune",
        summary="step 3",
        settings=_finetune,
        reads=lambda settings: [classifier_steps(settings)[0], "clean"],
    ),
    Stage(
        "evaluate",
        _of("evaluate"),
        summary="evaluation",
        reads=["scan", "classes", *(model.stage for model in MODELS.values())],
    ),
]
PLAN = Plan(STAGES)
