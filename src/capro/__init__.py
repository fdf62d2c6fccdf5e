"""From noisy web images and texts to a classifier, a cleaned dataset and a report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capro.api import CAPro

__version__ = "0.2.0"
__all__ = ["CAPro", "__version__"]


def __getattr__(name: str) -> Any:
    """``CAPro`` on demand: `import capro` and `capro --help` stay light."""
    if name == "CAPro":
        return import_module("capro.api").CAPro
    raise AttributeError(f"module 'capro' has no attribute {name!r}")
