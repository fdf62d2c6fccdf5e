"""What each part costs: parameters, GFLOPs, and the seconds that its stage took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from capro.bench.summary import markdown_table
from capro.config import Settings
from capro.models.backbones import cost
from capro.models.text_encoders import load_text_encoder
from capro.pipeline.run import Run
from capro.stages import PLAN
from capro.train.setup import new_heads, pretrained, training_set


class Part(NamedTuple):
    """One line of the table; None where it has no meaning."""

    name: str
    parameters: int | None = None
    gflops: float | None = None
    seconds: float | None = None
    epochs: int | None = None


def costs_of(run: Run, providers: Mapping[str, Run]) -> list[Part]:
    """Encoders, stages, and step 2 by reference provider.

    Args:
        run: A finished run with the paper's provider.
        providers: Finished runs by name of their reference provider.
    """
    settings = run.settings
    found = encoder_costs(settings)
    dim = pretrained(settings).dim
    training = training_set(run)
    heads = new_heads(settings, dim, training, name="cost").eval()
    paid = cost(heads, torch.zeros(1, dim))
    found.append(Part("heads", paid.parameters, paid.gflops))
    for stage in PLAN:
        found += _timed(f"{stage.name}: {stage.summary}", run.finished(stage.name))
    for name, other in providers.items():
        found += _timed(f"step 2 with {name}", other.finished("train"))
    return found


def encoder_costs(settings: Settings) -> list[Part]:
    """The encoders of image and text; GFLOPs of one input, a multiply-add counts once."""
    backbone = pretrained(settings).eval()
    size = settings.views.size or backbone.size
    image = cost(backbone, torch.zeros(1, 3, size, size))
    name, tokens = settings.embed.text_encoder, settings.embed.max_tokens
    text = load_text_encoder(name, max_tokens=tokens)
    return [
        Part(f"image encoder {settings.net.backbone}, {size} px", image.parameters, image.gflops),
        Part(f"text encoder {name}, {tokens} tokens", text.parameters, text.gflops(tokens)),
    ]


def _timed(name: str, done: Mapping[str, Any] | None) -> list[Part]:
    """The line of a stage that has finished."""
    if done is None:
        return []
    return [Part(name, seconds=done["seconds"], epochs=done["result"].get("epochs"))]


def cost_markdown(title: str, parts: Sequence[Part], samples: int, command: str) -> str:
    """The table for people."""
    rows = [
        [
            part.name,
            "" if part.parameters is None else f"{part.parameters / 1e6:.1f} M",
            "" if part.gflops is None else f"{part.gflops:.3g}",
            "" if part.seconds is None else f"{part.seconds:.1f}",
            "" if not part.epochs or part.seconds is None else f"{part.seconds / part.epochs:.2f}",
        ]
        for part in parts
    ]
    head = ["part", "parameters", "GFLOPs", "seconds", "seconds an epoch"]
    lines = [
        *markdown_table(title, head, rows),
        f"GFLOPs are multiply-adds of one input. Seconds are those of the stage when it ran, on "
        f"{samples:,} training samples with {torch.get_num_threads()} threads; other work on the "
        "machine slows them. The paper: R50 25 M and 3.8, MiniLM 22 M and 4.7, XLNet 110 M and 29, "
        "GPT-Neo 1.3 B and 3400.",
    ]
    return "\n".join([*lines, *([f"`{command}`"] if command else [])]) + "\n"
