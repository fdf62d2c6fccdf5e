"""What leaves a run: the cleaned data set in common formats, and the model."""

from capro.export.cleaned import export_data
from capro.export.model import export_model

__all__ = ["export_data", "export_model"]
