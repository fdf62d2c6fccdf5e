"""Text towers of image-text models (CLIP, SigLIP, Chinese-CLIP): how they read a text.

A picture tower and a text tower end in one space, where the cosine says how well a text fits a picture.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from capro.text.tower_names import FAMILIES


class TextTower(nn.Module):
    """The text half of an image-text model: tokens to the joint space, (b, t) -> (b, d)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.family = FAMILIES[model.config.model_type]
        self.positions = int(model.config.text_config.max_position_embeddings)
        model.vision_model = model.visual_projection = None  # the other half
        self.model = model

    @property
    def counted(self) -> nn.Module:
        """Whose arithmetic is counted."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """`attention_mask`, (b, t), is 1 for a real token."""
        mask = None if self.family.full_length else attention_mask
        found = self.model.get_text_features(input_ids=input_ids, attention_mask=mask)
        return cast(Tensor, getattr(found, "pooler_output", found))  # transformers 5 or 4


def picture_projection(model: Any) -> nn.Module:
    """From the pooled features of the picture tower to the joint space, (b, d_v) -> (b, d)."""
    return getattr(model, "visual_projection", None) or nn.Identity()  # SigLIP's features are there already
