"""The settings of the tables' rows: what is the paper's whatever the preset, and what a preset may decide."""

from __future__ import annotations

from collections.abc import Sequence

from capro import config
from capro.config import Settings

# What every row of the method has, whatever the preset: CAPro as published.
PAPER = (
    "method=paper", "net.centred=false",
    "embed.text_encoder=minilm", "embed.visual=step1",
    "match.enhancer=reciprocal", "match.own_neighbour=false", "match.anchors=text", "match.top_k=50",
    "match.contrast=0", "match.random_share=0",
    "train.start=web", "train.policy=capro", "train.text_weight=0", "train.alpha=0.5", "train.update_every=1",
    "train.reference=cb", "train.bts_classifier=false",
    "train.lambda_bts=0.1", "train.lambda_prj=1", "train.lambda_pro=1", "train.lambda_ins=1",
    "pretrain.lambda_prj=1",
    "reference.smoothing=0.1", "reference.bootstrap_beta=0.9", "reference.bootstrap_hard=false",
    "reference.scc_weight=1", "reference.neighbours=10", "reference.ncr_temperature=2", "reference.ncr_weight=null",
    "reference.mixup_alpha=0.8", "reference.mixup_weight=1",
    "finetune.balance=null", "finetune.centred=false",
)  # fmt: skip

# What a preset may decide, for all rows alike: the encoder and its input, the schedule, and what the paper itself
# chooses by data set (k, gamma, Q, when encoders learn and correction starts) or by length of training (momenta).
# docs/bench.md lists them for readers. `baselines` are the user's, for the rows that have them.
PRESETS_DECIDE = (
    "seed", "data.*", "scan.*", "views.*", "plus.*", "log.*", "baselines.*",
    "net.backbone", "net.weights", "net.mode", "net.frozen_views", "net.precision", "net.runtime", "net.embedding_dim",
    "net.tau",
    "*.epochs", "*.batch_size", "*.lr", "*.warmup_epochs", "*.momentum", "*.weight_decay",
    "embed.max_tokens", "embed.shard_size",
    "match.k", "match.exact_below", "match.memory_gb", "match.index", "match.recall",
    "train.anchor_epochs", "train.frozen_epochs", "train.correct_after", "train.gamma", "train.queue",
    "train.key_momentum", "train.prototype_momentum",
)  # fmt: skip


def pinned(name: str) -> bool:
    """Whether rows of the method have their own value of a setting.

    >>> pinned("train.lambda_bts"), pinned("train.epochs")
    (True, False)
    """
    return any(override.partition("=")[0] == name for override in PAPER)


def row_settings(given: Settings, overrides: Sequence[str]) -> Settings:
    """Settings of a row: those given, with its overrides.

    A row of the paper corrects no label before step 2 has had an epoch. A preset whose heads start from the anchors
    (`small`) may correct at once, but rows start from step 1, which has learnt the wrong labels too: where
    the preset does not wait, they wait for a sixth of the epochs, as the released scripts do (10 of 60, 20 of 120).
    """
    found = config.update(given, list(overrides))
    train = found.train
    if not set(PAPER) <= set(overrides) or train.correct_after > 0:
        return found
    wait = min(max(1, round(train.epochs / 6)), train.epochs - 1)
    return config.update(found, [f"train.correct_after={max(0, wait)}"])
