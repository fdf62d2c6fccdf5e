"""Ways to run a frozen encoder on this machine's CPU: pictures a second, and whether the features are the same.

    python benchmarks/encoders.py [--net lite0] [--size 128] [--rounds 20]
    python benchmarks/encoders.py --net resnet        also vit, convnext, dinov2: usual sizes, random weights

Ways are the network as it is, with normalisation and padding folded into its convolutions, the same by ONNX Runtime
(what `capro run` takes), and by torch.compile where there is a C++ compiler. Rounds alternate between the ways, and
the best of each counts. Bounds (exit code 1): what `capro run` takes is not slower than any other way by more than
a tenth, and gives the same features to 1e-4 of the largest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command line does

import torch
import transformers
from torch import Tensor

from capro.models.backbones import Backbone, load_backbone
from capro.models.inference import SAME, OnnxEncoder, for_inference
from capro.stages.features import CPU_BATCH

Encode = Callable[[Tensor], Tensor]
# by the names of transformers' configurations: ResNet-50, ViT-S/16, ConvNeXt-T, DINOv2-S/14
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("ResNet", {}),
    "vit": ("ViT", {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}),
    "convnext": ("ConvNext", {}),
    "dinov2": ("Dinov2", {"hidden_size": 384, "num_attention_heads": 6}),
}


def loaded(net: str, size: int) -> Backbone:
    """An encoder that capro knows, or one with random weights through a folder that transformers reads."""
    if net not in MADE:
        return load_backbone(net, image_size=size)
    name, options = MADE[net]
    if net in ("vit", "dinov2"):
        options = {**options, "image_size": size}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    with TemporaryDirectory() as folder:
        getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
        return load_backbone(folder, image_size=size)


def ways_of(net: str, size: int) -> dict[str, Encode]:
    """Encoders by name, and what making each took is printed."""
    plain = loaded(net, size).eval()
    plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    found: dict[str, Encode] = {"torch": plain}
    begin = time.monotonic()
    found["folded"] = folded = for_inference(plain, (3, size, size))
    print(f"folded in {time.monotonic() - begin:.1f} s")
    begin = time.monotonic()
    converted = for_inference(plain, (3, size, size), onnx=True)
    if isinstance(converted, OnnxEncoder):
        found["onnx"] = converted
        print(f"converted to ONNX in {time.monotonic() - begin:.1f} s")
    else:
        print("ONNX: this encoder is not converted")
    if shutil.which("g++") or shutil.which("clang++"):
        begin = time.monotonic()
        compiled = torch.compile(folded)
        compiled(torch.zeros(CPU_BATCH, 3, size, size).contiguous(memory_format=torch.channels_last))
        found["compiled"] = compiled
        print(f"compiled in {time.monotonic() - begin:.1f} s")
    else:
        print("torch.compile: no C++ compiler here")
    return found


@torch.no_grad()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--net", default="lite0")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20)
    a = parser.parse_args()
    ways = ways_of(a.net, a.size)
    images = torch.rand(CPU_BATCH, 3, a.size, a.size, generator=torch.Generator().manual_seed(1))
    images = images.contiguous(memory_format=torch.channels_last)
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(a.rounds):
        for name, encode in ways.items():
            begin = time.monotonic()
            encode(images)
            best[name] = min(best[name], time.monotonic() - begin)
    wanted = ways["torch"](images)
    taken = "onnx" if "onnx" in ways else "folded"
    failed = best[taken] > 1.1 * min(best.values())
    for name, seconds in best.items():
        other = float((ways[name](images) - wanted).abs().max() / wanted.abs().max())
        failed |= name == taken and other > SAME
        rate, times = CPU_BATCH / seconds, best["torch"] / seconds
        print(
            f"{name:>9}: {rate:6.0f} pictures/s, {times:.2f} times torch's rate, features differ by {other:.1e}"
        )
    print(f"{'FAIL' if failed else 'ok  '} capro takes: {taken}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
