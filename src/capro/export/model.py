"""The model: weights, configuration, model card and, where asked for, ONNX.

The deployable network is the encoder with the classifier of step 3; in frozen mode the encoder is
the pretrained backbone. ``capro.export.predictor`` reads what is written here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from capro import __version__
from capro.errors import ConfigError, RunError
from capro.export.card import check_license, model_card, without_folders
from capro.export.folders import new_place
from capro.export.predictor import Predictor
from capro.models.deployed import Deployed, describe
from capro.models.folders import quiet_logger
from capro.pipeline.artefacts import (
    CARD,
    MODEL_CONFIG,
    MODEL_FORMAT,
    MODEL_ONNX,
    MODEL_WEIGHTS,
    MODELS,
    atomic_path,
    write_json,
)
from capro.pipeline.run import Run
from capro.stores import AnyPath
from capro.train.setup import TrainingSet, load_net, new_net, pretrained, training_set

ONNX_TOLERANCE = 1e-4


def export_model(
    run: Run,
    out: AnyPath,
    *,
    open_set: Mapping[str, Any],
    onnx: bool = False,
    license: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    also: Callable[[Path], None] = lambda _: None,
) -> dict[str, Any]:
    """Write a model folder from a finished run; returns its config.json.

    Args:
        run: With a finished finetune stage.
        out: A folder that does not exist yet, or an address of an object store; appears whole or not at all.
        open_set: What ``stages.threshold`` found.
        onnx: Also write model.onnx, checked against PyTorch.
        license: For the card, as the Hugging Face hub names it.
        say: Called with lines of information.
        also: Called with the folder, to write more into it before it appears.
    """
    check_license(license)
    run = run.thoroughly()
    run.identity(MODELS["capro"].stage)
    training = training_set(run)
    net = deployable(run, training)
    config = _config(run, net, training, dict(open_set))
    with new_place(out, last=MODEL_CONFIG) as folder:
        state = {name: tensor.contiguous().clone() for name, tensor in net.state_dict().items()}
        with atomic_path(folder / MODEL_WEIGHTS) as file:
            save_file(state, file, metadata={"format": "pt"})
        if onnx:
            say("writing ONNX and checking it against PyTorch")
            config["onnx"] = write_onnx(net, folder / MODEL_ONNX, config["preprocessing"]["size"])
        write_json(folder / MODEL_CONFIG, config)
        (folder / CARD).write_text(model_card(run, config, license=license), "utf-8")
        also(folder)
        Predictor.load(folder)  # what was written can be read
    return config


def deployable(run: Run, training: TrainingSet) -> Deployed:
    """Encoder and classifier of the finished run, images to logits, in eval mode."""
    trained = new_net(run, training)
    load_net(run, MODELS["capro"], trained)
    frozen = run.settings.net.mode == "frozen"
    backbone = pretrained(run.settings) if frozen else trained.encoder
    net = Deployed(backbone, len(training.classes), multi_label=training.multi_label)
    net.classifier.load_state_dict(trained.heads.classifier.state_dict())
    center = getattr(trained.encoder, "center", None)
    if center is not None:  # the deployed encoder gives features as they are
        with torch.no_grad():
            net.classifier.bias.sub_(net.classifier.weight @ center)
    return net.eval().cpu()


def _config(run: Run, net: Deployed, training: TrainingSet, open_set: dict[str, Any]) -> dict[str, Any]:
    settings, names = run.settings, training.classes
    kind = "multi" if training.multi_label else "single"
    return {
        "capro_format": MODEL_FORMAT.now,
        "capro_version": __version__,
        "problem_type": f"{kind}_label_classification",
        "num_labels": len(names),
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "backbone": without_folders(describe(net.backbone)),
        "preprocessing": {
            "steps": "RGB, EXIF rotation, transparency on white; centre square, bilinear to "
            "size x size; divided by 255; (x - mean) / std, which the network does itself",
            "size": settings.views.size or net.backbone.size,
            "mean": list(net.backbone.mean),
            "std": list(net.backbone.std),
            "limits": settings.scan.model_dump(exclude={"workers"}),
        },
        "open_set": open_set,
    }


# --- ONNX -----------------------------------------------------------------------------------------


def _without_traces(path: Path) -> None:
    """Take out where in this machine's folders each operation was defined: the exporter notes it."""
    import onnx

    model = onnx.load(path)
    graphs = [model, model.graph, *model.graph.node, *model.graph.input, *model.graph.output]
    graphs += [*model.graph.value_info, *model.graph.initializer, *model.functions]
    graphs += [node for function in model.functions for node in function.node]
    for part in graphs:
        del part.metadata_props[:]
    onnx.save(model, path)


def write_onnx(net: Deployed, path: Path, size: int) -> dict[str, Any]:
    """Images in [0, 1], (b, 3, size, size) -> probabilities, (b, C); checked against PyTorch.

    Returns:
        Names of input and output, and the largest difference that was measured.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs a package that is not installed: {error.name}", hint="pip install 'capro[onnx]'"
        ) from None
    whole = torch.nn.Sequential(
        net, torch.nn.Sigmoid() if net.multi_label else torch.nn.Softmax(dim=1)
    ).eval()
    example = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    # the exporter's logger complains of a torchvision that is not needed
    with warnings.catch_warnings(), quiet_logger("torch.onnx"):
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        torch.onnx.export(
            whole,
            (example,),
            str(path),
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=4096)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    _without_traces(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in (1, 3):  # another batch size than the example's
        images = torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(count))
        with torch.no_grad():
            ours = net.probabilities(images).numpy()
        theirs = session.run(["probabilities"], {"images": images.numpy()})[0]
        worst = max(worst, float(np.abs(ours - theirs).max()))
    if not worst <= ONNX_TOLERANCE:
        raise RunError(
            f"ONNX differs from PyTorch by {worst:.1e}, more than {ONNX_TOLERANCE:.0e}",
            hint="leave --onnx out, or use another backbone",
        )
    return {"input": "images", "output": "probabilities", "largest_difference": worst}
