"""What leaves a run: the cleaned data set in common formats, and the model."""

from capro.export.cleaned import FORMATS, IMAGES, export_data
from capro.export.model import export_model

__all__ = ["FORMATS", "IMAGES", "export_data", "export_model"]
