"""Encoders that only look at pictures: the same features in less time.

Batch normalisation of a network that does not learn is a scale and a shift of each channel, so it goes into the
weights of the convolution before it; symmetric padding goes into the convolution as well, and activations
overwrite their input. On a CPU the result is run by ONNX Runtime, whose convolutions are faster than torch's
and whose results do not depend on the number of threads. Features differ by rounding alone: each step is compared
with the encoder as it was, and left out where it gives others. `benchmarks/encoders.py` times all of it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

SAME = 1e-4  # relative to the largest feature: what rounding may change
MOST_WEIGHTS = 200_000_000  # of a converted encoder: it is in memory three times while it is converted


def for_inference(encoder: nn.Module, shape: Sequence[int], *, onnx: bool = False) -> nn.Module:
    """A copy of an encoder that is faster; the encoder itself where the copy would give other features.

    Args:
        encoder: In evaluation mode, (b, *shape) -> (b, d).
        shape: Of one input, (3, h, w): whether features stay the same is tried on noise.
        onnx: By ONNX Runtime, if the encoder is on a CPU and can be converted, which takes a second or two.
    """
    quick = copy.deepcopy(encoder).requires_grad_(False)
    for module in list(quick.modules()):
        _fold_norms(module)
        _fold_padding(module)
        if isinstance(module, nn.ReLU | nn.ReLU6 | nn.SiLU | nn.Hardswish):
            module.inplace = True
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    example = example.to(next(encoder.parameters(), example).device)
    with torch.no_grad():
        wanted = encoder(example)
        tolerance = SAME * float(wanted.abs().max())

        def is_same(other: nn.Module) -> bool:
            return bool(((wanted - other(example)).abs() <= tolerance).all())

        if not is_same(quick):
            quick = encoder
        weights = sum(each.numel() for each in quick.parameters())
        if onnx and example.device.type == "cpu" and weights <= MOST_WEIGHTS:
            converted = _converted(quick, torch.rand_like(example)[:1])  # compared on another input
            if converted is not None and is_same(converted):
                return converted
    return quick


class OnnxEncoder(nn.Module):
    """An encoder that ONNX Runtime runs, (b, *shape) -> (b, d), on as many threads as torch has.

    Its threads do not spin while they wait: other programs keep their processors.
    """

    def __init__(self, model: bytes) -> None:
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def forward(self, images: Tensor) -> Tensor:
        (features,) = self._session.run(None, {"images": images.contiguous().numpy()})
        return torch.from_numpy(features)


def _converted(encoder: nn.Module, example: Tensor) -> OnnxEncoder | None:
    """The encoder for ONNX Runtime; None where that or the conversion is not to be had."""
    try:
        with (
            TemporaryDirectory() as folder,
            warnings.catch_warnings(),
        ):  # the exporter that needs no further package warns of its age
            warnings.simplefilter("ignore")
            torch.onnx.export(
                encoder,
                (example,),
                Path(folder, "encoder.onnx"),
                input_names=["images"],
                output_names=["features"],
                dynamic_axes={"images": {0: "b"}},
                dynamo=False,
            )
            return OnnxEncoder(Path(folder, "encoder.onnx").read_bytes())
    except Exception:  # not installed, or an operation that one of the two does not know
        return None


def _fold_norms(module: nn.Module) -> None:
    """Put each batch normalisation that is declared behind a convolution into it.

    Modules run in the order of their declaration in every network that we know; `for_inference` compares.
    """
    for (name, conv), (next_name, norm) in pairwise(list(module.named_children())):
        if (
            isinstance(conv, nn.Conv2d)
            and isinstance(norm, nn.BatchNorm2d)
            and norm.track_running_stats
            and conv.out_channels == norm.num_features
        ):
            setattr(module, name, fuse_conv_bn_eval(conv, norm))
            setattr(module, next_name, nn.Identity())


def _fold_padding(module: nn.Module) -> None:
    """Let a convolution of EfficientNet-Lite pad by itself where both sides get the same."""
    padding = getattr(module, "static_padding", None)
    if isinstance(module, nn.Conv2d) and isinstance(padding, nn.ZeroPad2d) and module.padding == (0, 0):
        left, right, top, bottom = padding.padding
        if (left, top) == (right, bottom):
            module.padding = (top, left)
            module.static_padding = nn.Identity()
