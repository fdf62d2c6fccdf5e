"""The settings of the tables' rows: what is the paper's whatever the preset, and what a preset may decide."""

from __future__ import annotations

# What every row of the method has, whatever the preset: CAPro as published.
PAPER = (
    "method=paper",
    "embed.text_encoder=minilm", "embed.visual=step1",
    "match.enhancer=reciprocal", "match.anchors=text", "match.top_k=50", "match.contrast=0", "match.random_share=0",
    "train.start=web", "train.policy=capro", "train.text_weight=0", "train.alpha=0.5", "train.update_every=1",
    "train.reference=cb", "train.bts_classifier=false",
    "train.lambda_bts=0.1", "train.lambda_prj=1", "train.lambda_pro=1", "train.lambda_ins=1",
    "pretrain.lambda_prj=1",
    "reference.smoothing=0.1", "reference.bootstrap_beta=0.9", "reference.bootstrap_hard=false",
    "reference.scc_weight=1", "reference.neighbours=10", "reference.ncr_temperature=2", "reference.ncr_weight=null",
    "reference.mixup_alpha=0.8", "reference.mixup_weight=1",
    "finetune.balance=null",
)  # fmt: skip

# What a preset may decide, for all rows alike: the encoder and its input, the schedule, and what the paper itself
# chooses by data set (k, gamma, Q, when encoders learn and correction starts) or by length of training (momenta).
PRESETS_DECIDE = (
    "seed", "data.*", "scan.*", "views.*", "net.*", "plus.*", "log.*",
    "*.epochs", "*.batch_size", "*.lr", "*.warmup_epochs", "*.momentum", "*.weight_decay",
    "embed.max_tokens", "embed.shard_size",
    "match.k", "match.exact_below", "match.memory_gb", "match.index", "match.recall",
    "train.anchor_epochs", "train.frozen_epochs", "train.correct_after", "train.gamma", "train.queue",
    "train.key_momentum", "train.prototype_momentum",
    "finetune.centred",
)  # fmt: skip


def pinned(name: str) -> bool:
    """Whether rows of the method have their own value of a setting.

    >>> pinned("train.lambda_bts"), pinned("train.epochs")
    (True, False)
    """
    return any(override.partition("=")[0] == name for override in PAPER)
