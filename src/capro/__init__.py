"""From noisy web images and texts to a classifier, a cleaned data set and a report."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capro.api import CAPro

__version__ = "0.1.0"
__all__ = ["CAPro", "__version__"]


def __getattr__(name: str) -> Any:
    """``CAPro`` on demand: `import capro` and `capro --help` stay light."""
    if name == "CAPro":
        from capro.api import CAPro

        return CAPro
    raise AttributeError(f"module 'capro' has no attribute {name!r}")
