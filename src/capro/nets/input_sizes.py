"""The side of a backbone's own input. What is built in is known here, so that asking does not load torch."""

from __future__ import annotations

BUILT_IN_SIZES = {
    "resnet50": 224,
    "resnet18": 224,
    "small": 64,
    "tiny": 64,
    **{f"lite{number}": 224 for number in range(3)},
}


def input_size(name: str) -> int:
    """Side of a backbone's own input in pixels; of a folder or a name on the hub no weight is read.

    >>> input_size("lite0")
    224
    """
    if name in BUILT_IN_SIZES:
        return BUILT_IN_SIZES[name]
    from capro.nets.backbones import foreign_input_size

    return foreign_input_size(name)
