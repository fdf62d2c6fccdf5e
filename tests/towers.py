"""Tiny image-text models on disk: random weights, and one whose towers know a few colours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast, SiglipConfig, SiglipModel

WORDS = (
    "<pad> <unk> <bos> <eos> a photo of deep red fruit blue clear sky green citrus crimson azure lime".split()
)
HALF = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
POSITIONS = 12


def save_tokenizer(folder: Path, template: str) -> None:
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<bos>", 2), ("<eos>", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"
    ).save_pretrained(folder)


def save_clip(folder: Path, *, size: int = 32) -> Any:
    """A CLIP with 16-wide towers and a joint space of 8."""
    torch.manual_seed(0)
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = {**HALF, **special, "vocab_size": len(WORDS), "max_position_embeddings": POSITIONS}
    image = {**HALF, "image_size": size, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=image, projection_dim=8)).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, "<bos> $A <eos>")
    return model


def save_siglip(folder: Path, *, size: int = 32) -> Any:
    """A SigLIP with 16-wide towers."""
    torch.manual_seed(0)
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = {**HALF, **special, "vocab_size": len(WORDS), "max_position_embeddings": POSITIONS}
    image = {**HALF, "image_size": size, "patch_size": 16}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=image)).eval()
    model.save_pretrained(folder)
    save_tokenizer(folder, "$A <eos>")
    return model


SAVERS = {"clip": save_clip, "siglip": save_siglip}
