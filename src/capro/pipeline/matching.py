"""Stages of the text side: embed and match, and what they bring when measured on truth."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from capro import assemble, progress
from capro.assemble import classes_of, manifest_of
from capro.data.manifest import Manifest
from capro.evaluate.truth import load_truth, membership, purity
from capro.graph.budget import Budget
from capro.graph.neighbors import Share, assist
from capro.graph.smooth import Enhanced, enhance
from capro.match import match as match_texts
from capro.nets.backbones import load_backbone
from capro.pipeline.base import stage, write_frame
from capro.pipeline.ingest import clean_texts, embed_images, image_shards
from capro.report.sheet import contact_sheet
from capro.runs import (
    Run,
    atomic_path,
    fingerprint,
    read_array,
    seed_for,
    write_array,
)
from capro.shards import Shards, chosen_rows, planned, sharded, write_rows
from capro.text import classes as class_texts
from capro.text.encoders import load_text_encoder
from capro.train.batches import PLAIN, ImageInputs
from capro.train.ranks import Ranks

SHOWN = 5  # neighbours and words named as evidence
SHARDS = ("text-shards", "image-shards")  # folders of the embed stage, until it has finished

# --- text side ------------------------------------------------------------------------------------


def embed(
    run: Run, *, bar: progress.Bar = progress.silent, say: Callable[[str], None] = lambda _: None
) -> None:
    """Text features s of the training samples, s^c of the classes, and visual features v."""
    settings, manifest = run.settings, manifest_of(run)
    specs = classes_of(run)
    step1 = settings.embed.visual == "step1"
    ranks = assemble.ranks_of(settings)

    def work(folder: Path) -> dict[str, Any]:
        texts = clean_texts(manifest)
        encoder = load_text_encoder(
            settings.embed.text_encoder,
            device=str(ranks.accelerator.device),
            max_tokens=settings.embed.max_tokens,
        )
        work_of_text = {
            "name": encoder.name,
            "parameters": encoder.parameters,
            "gflops": encoder.gflops(),
            "at": f"{encoder.max_tokens} tokens",
        }
        say(assemble.cost_line("text encoder", work_of_text))
        unique = sorted(set(texts), key=lambda text: (len(text), text))  # equal texts once
        spoken = _embed_texts(folder, unique, encoder, run, ranks, bar)
        visual, found = _visual(folder, run, manifest, ranks, bar, say)
        ranks.meet()
        if not ranks.main:
            return {}
        _write_texts(folder, texts, unique, spoken, encoder.dim)
        prototypes, warnings = [], []
        for spec in specs:
            text, warning = class_texts.class_text(spec)
            prototypes.append(text)
            warnings += [warning] if warning else []
        write_array(folder / "prototypes.npy", encoder.encode(prototypes))
        write_rows(folder / "visual.npy", visual.shape, visual.blocks())
        for name in SHARDS:
            shutil.rmtree(folder / name, ignore_errors=True)
        return {"text_encoder": work_of_text, **found, "warnings": warnings}

    decides = {
        "embed": settings.embed.model_dump(exclude={"batch_size", "shard_size"}),
        "net": settings.net.model_dump(include={"mode"}),
        "views": settings.views.model_dump(include={"size"}),
    }
    encoder_of = "features" if settings.net.mode == "frozen" else "pretrain"
    inputs = ["scan", "classes", *([encoder_of] if step1 else [])]
    stage(run, "embed", work, settings=decides, inputs=inputs, ranks=ranks)


def _embed_texts(
    folder: Path, unique: list[str], encoder: Any, run: Run, ranks: Ranks, bar: progress.Bar
) -> Shards:
    """Features of texts that are sorted by length: a shard's batches waste little on padding."""
    settings = run.settings.embed
    key = fingerprint([encoder.fingerprint, fingerprint(unique)])
    shards = planned(folder / "text-shards", len(unique), key=key, size=settings.shard_size)
    with bar("encoding texts", shards.rows(ranks)) as step:
        return sharded(
            shards,
            lambda begin, end: encoder.encode(
                unique[begin:end], batch_size=settings.batch_size, progress=step
            ),
            team=ranks,
            progress=step,
        )


def _write_texts(
    folder: Path, texts: list[str], unique: list[str], spoken: Shards, width: int
) -> None:
    """Text features in the order of the samples, from those of distinct texts."""
    whole = spoken.folder.parent / "unique.npy"
    write_rows(whole, (len(unique), width), spoken.blocks())
    place = {text: number for number, text in enumerate(unique)}
    rows = np.array([place[text] for text in texts], np.int64)
    write_rows(folder / "texts.npy", (len(texts), width), chosen_rows(read_array(whole), rows))


@dataclass(frozen=True)
class _Rows:
    """An array to be written block by block."""

    shape: tuple[int, int]
    blocks: Callable[[], Iterable[NDArray[Any]]]


def _visual(
    folder: Path,
    run: Run,
    manifest: Manifest,
    ranks: Ranks,
    bar: progress.Bar,
    say: Callable[[str], None],
) -> tuple[_Rows, dict[str, Any]]:
    """Features v of the training images: of step 1's encoder, or of a backbone by name."""
    found: dict[str, Any] = {}
    settings, train = run.settings, manifest.split("train")
    if settings.embed.visual == "step1" and settings.net.mode == "frozen":
        plain = read_array(run.folder("features") / "plain.npy")
        shape = (len(train), plain.shape[1])
        return _Rows(shape, lambda: chosen_rows(plain, train)), found
    if settings.embed.visual == "step1":
        net = assemble.new_net(run, assemble.training_set(run, manifest))
        assemble.load_net(run.folder("pretrain") / "model.safetensors", net)
        encoder = net.encoder
    else:
        torch.manual_seed(seed_for(0, "visual"))  # random weights are the same on all ranks
        encoder = load_backbone(settings.embed.visual, image_size=settings.views.size)
    size = settings.views.size or encoder.size
    if settings.embed.visual != "step1":
        found["encoder"] = assemble.encoder_cost(encoder, size)
        say(assemble.cost_line("encoder", found["encoder"]))
    images = ImageInputs(
        assemble.pixels_of(run, manifest, size), encoder, settings.views, seed=settings.seed
    )
    key = [run.settings.embed.visual, size, run.finished("pretrain")]
    shards = image_shards(folder / "image-shards", len(train), run, key=key)
    with bar("visual features", shards.rows(ranks)) as step:
        embed_images(
            shards, images, encoder, train, run, view=PLAIN, epoch=0, step=step, team=ranks
        )
    return _Rows((len(train), encoder.dim), shards.blocks), found


def graph(run: Run, *, bar: progress.Bar = progress.silent) -> None:
    """Enhance texts through the visual graph: a stage apart, so that other anchors share it."""
    settings, chosen = run.settings, run.settings.match
    run.need("embed")
    visual = read_array(run.folder("embed") / "visual.npy")
    exact = chosen.enhancer == "none" or len(visual) < chosen.exact_below
    ranks = assemble.ranks_of(settings)
    decides = {
        **chosen.model_dump(include={"enhancer", "k", "exact_below", "index", "recall"}),
        "seed": None if exact else settings.seed,  # an exact search has nothing random
    }

    def work(folder: Path) -> dict[str, Any]:
        scratch, search = folder / "scratch", folder / "search"
        budget = Budget.of(chosen.memory_gb, scratch)
        key = fingerprint([run.need("embed"), decides, chosen.memory_gb])
        share = Share(ranks, search, key)
        if not ranks.main:
            if chosen.enhancer != "none":
                assist(share, budget)
            return {}
        shutil.rmtree(scratch, ignore_errors=True)  # of a run that was killed
        with bar(f"graph ({chosen.enhancer})", None):
            enhanced = enhance(
                visual,
                read_array(run.folder("embed") / "texts.npy"),
                enhancer=chosen.enhancer,
                k=chosen.k,
                exact_below=chosen.exact_below,
                seed=settings.seed,
                budget=budget,
                index_kind=chosen.index,
                recall=chosen.recall,
                share=share,
            )
        write_array(folder / "texts.npy", enhanced.texts)
        (folder / "graph.npz").unlink(missing_ok=True)
        if enhanced.adjacency is not None:
            _save_adjacency(folder / "graph.npz", enhanced.adjacency)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(search, ignore_errors=True)
        return {"recall": enhanced.recall}

    stage(run, "graph", work, settings=decides, inputs=["embed"], ranks=ranks)


def _save_adjacency(path: Path, adjacency: Any) -> None:
    with atomic_path(path) as temporary:
        np.savez(temporary, data=adjacency.data, indices=adjacency.indices, indptr=adjacency.indptr)


def _load_graph(run: Run) -> Enhanced:
    """What the graph stage left."""
    folder = run.folder("graph")
    texts = np.array(read_array(folder / "texts.npy"))
    adjacency = None
    if (folder / "graph.npz").exists():
        with np.load(folder / "graph.npz", allow_pickle=False) as parts:
            shape = (len(texts), len(texts))
            adjacency = csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    return Enhanced(texts, adjacency, (run.finished("graph") or {})["result"]["recall"])


def match(run: Run, *, bar: progress.Bar = progress.silent) -> dict[str, Any]:
    """Enhance texts through the visual graph and choose anchors; returns figures of the stage."""
    settings, manifest = run.settings, manifest_of(run)
    chosen = settings.match

    def work(folder: Path) -> dict[str, Any]:
        training = assemble.training_set(run, manifest)
        embedded = run.folder("embed")
        ids = [training.ids[position] for position in training.positions]
        enhanced = _load_graph(run)
        with bar("matching texts", None):
            anchors = match_texts(
                enhanced.texts,
                read_array(embedded / "prototypes.npy"),
                training.labels.numpy(),
                k=chosen.k,
                top_k=chosen.top_k,
                ids=ids,
                random_share=chosen.random_share,
                mode=chosen.anchors,
                seed=settings.seed,
                contrast=0.0 if training.multi_label else chosen.contrast,
                exact_below=chosen.exact_below,
            )
        gallery = anchors.gallery
        distances = pd.DataFrame(
            {
                "id": [ids[row] for row in gallery.sample],
                "class": [training.classes[label] for label in gallery.label],
                "distance": gallery.distance,
                "cosine_distance": gallery.cosine,
            }
        )
        write_frame(folder / "distances.parquet", distances)
        found = pd.DataFrame(
            {
                "class": [training.classes[label] for label in anchors.label],
                "rank": anchors.rank,
                "id": [ids[row] for row in anchors.sample],
                "row": anchors.sample,
                "class_index": anchors.label,
                "distance": anchors.distance,
                "cosine_distance": anchors.cosine,
                "random": anchors.random,
            }
        )
        found["words"], found["neighbors"] = _evidence(
            run, manifest, found, enhanced.adjacency, ids
        )
        write_frame(folder / "anchors.parquet", found)
        short = [
            name
            for number, name in enumerate(training.classes)
            if 0 < int((anchors.label == number).sum()) < chosen.top_k
        ]
        without = sorted(set(training.classes) - set(found["class"]))
        return {
            "anchors": len(found),
            "recall": enhanced.recall,
            "classes_below_k": short,
            "classes_without_anchor": without,
        }

    graph(run, bar=bar)
    stage(
        run,
        "match",
        work,
        inputs=["scan", "classes", "embed", "graph"],
        settings={"match": chosen.model_dump(), "seed": settings.seed},
    )
    return dict((run.finished("match") or {})["result"])


def anchor_problems(found: dict[str, Any]) -> list[str]:
    """Of what ``match`` returned, the classes with few anchors or none."""
    words = {
        "classes_below_k": "classes have fewer than K samples and give them all",
        "classes_without_anchor": "classes have no sample and so no anchor",
    }
    return [
        f"{len(found[key])} {text}: {', '.join(found[key][:SHOWN])}"
        for key, text in words.items()
        if found[key]
    ]


def _evidence(
    run: Run, manifest: Manifest, anchors: pd.DataFrame, adjacency: Any, ids: list[str]
) -> tuple[list[list[str]], list[list[str]]]:
    """For each anchor the words nearest to its class's text, and the neighbours that lent theirs."""
    texts = clean_texts(manifest)
    near: list[list[int]] = []
    for row in anchors["row"]:
        if adjacency is None:
            near.append([])
            continue
        begin, end = adjacency.indptr[row], adjacency.indptr[row + 1]
        best = np.argsort(-adjacency.data[begin:end], kind="stable")[:SHOWN]
        near.append(adjacency.indices[begin:end][best].tolist())
    spoken = [
        list(dict.fromkeys(" ".join([texts[row], *(texts[n] for n in others)]).split()))
        for row, others in zip(anchors["row"], near, strict=True)
    ]
    vocabulary = sorted({word for words in spoken for word in words})
    settings = run.settings.embed
    encoder = load_text_encoder(settings.text_encoder, max_tokens=settings.max_tokens)
    vectors = encoder.encode(vocabulary) if vocabulary else np.zeros((0, encoder.dim), np.float32)
    scores = vectors @ np.asarray(read_array(run.folder("embed") / "prototypes.npy")).T
    place = {word: number for number, word in enumerate(vocabulary)}
    words = [
        sorted(said, key=lambda word, c=label: -scores[place[word], c])[:SHOWN]  # type: ignore[misc]
        for said, label in zip(spoken, anchors["class_index"], strict=True)
    ]
    return words, [[ids[n] for n in others] for others in near]


def purity_by_enhancer(
    run: Run,
    truth: Path,
    *,
    enhancers: Sequence[str] = ("random", "none", "knn", "reciprocal"),
    top_k: int | None = None,
) -> dict[str, NDArray[np.float64]]:
    """Anchor purity of each class by enhancer, measured on true labels; trains and keeps nothing."""
    settings, manifest = run.settings, manifest_of(run)
    run.need("embed")
    training = assemble.training_set(run, manifest)
    member = membership(load_truth(truth, manifest), training.classes)
    ids = [training.ids[position] for position in training.positions]
    visual, texts, prototypes = (
        read_array(run.folder("embed") / f"{name}.npy")
        for name in ("visual", "texts", "prototypes")
    )
    found = {}
    for name in enhancers:
        enhanced = texts
        if name in ("knn", "reciprocal"):
            enhanced = enhance(
                visual, texts, enhancer=name, k=settings.match.k,  # type: ignore[arg-type]
                exact_below=settings.match.exact_below, seed=settings.seed,
            ).texts  # fmt: skip
        anchors = match_texts(
            enhanced,
            prototypes,
            training.labels.numpy(),
            k=settings.match.k,
            top_k=top_k or settings.match.top_k,
            ids=ids,
            seed=settings.seed,
            mode="random" if name == "random" else "text",
            contrast=0.0 if training.multi_label else settings.match.contrast,
        )
        found[name] = purity(anchors.sample, anchors.label, member)
    return found


def anchor_sheet(run: Run, *, columns: int = 12) -> Path:
    """A picture of each class's first anchors, ``match/anchors.png``."""
    manifest = manifest_of(run)
    run.need("match")
    frame = pd.read_parquet(run.folder("match") / "anchors.parquet")
    train = manifest.split("train")
    images = assemble.pixels_of(run, manifest, 64)
    rows = {
        str(name): [
            images.image(int(train[row])) for row in part.sort_values("rank")["row"][:columns]
        ]
        for name, part in frame.groupby("class")
    }
    path = run.folder("match") / "anchors.png"
    with atomic_path(path) as temporary:
        contact_sheet(rows).save(temporary)
    return path
