"""Commands that look at a finished run or take something out of it: evaluate, report, export, predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from capro.cli.options import (
    Address,
    AsJson,
    EngineName,
    Force,
    LicenseName,
    NewFolder,
    OptionalPath,
    Overrides,
    Preset,
    ReadingOverrides,
    RunArgument,
    RunOption,
    RunPath,
    Text,
    local_only,
    one_run,
    open_run,
    settings_for_reading,
)
from capro.cli.program import app, config_app, fail, note, plain_lines, print_result
from capro.data.readers import WRITERS
from capro.places import ObjectPath, place
from capro.run import processes
from capro.run.engine import Engine, check_engine, engine_of
from capro.stages import PLAN


@app.command()
def evaluate(
    path: RunArgument = None,
    run: RunOption = None,
    on: Annotated[Text, typer.Option(help="Another source to evaluate on.")] = None,
    truth: Annotated[
        Text,
        typer.Option(
            metavar="PATH", help="Table with true labels of the training samples: for measuring only."
        ),
    ] = None,
    open_set: Annotated[
        bool, typer.Option("--open-set", help="Count samples of no known class as one open class.")
    ] = False,
    novel: Annotated[
        OptionalPath,
        typer.Option(callback=local_only, help="File with the classes that may be open, one per line."),
    ] = None,
    set_: ReadingOverrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare vanilla and CAPro on the test split.

    Metrics, classes made worse first, confusions, calibration; with options also other data,
    the open set, and true labels.
    """
    from capro.cli import evaluation_tables
    from capro.stages.assess import assess

    opened = open_run(one_run(path, run))
    found = assess(
        opened,
        on=on,
        reading=settings_for_reading(opened, set_, on),
        truth=None if truth is None else place(truth),
        with_open_set=open_set or novel is not None,
        novel=novel,
        watch=plain_lines(),
    )
    print_result(found, as_json, evaluation_tables.assessment)


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        Text, typer.Option("--out", metavar="PATH", help="Also write the report to this file.")
    ] = None,
    title: Annotated[Text, typer.Option("--title", help="Title of the page.")] = None,
    force: Force = False,
) -> None:
    """Write one HTML file about a run.

    It opens offline: results, galleries with evidence, figures.
    """
    from capro.stages.report import report as write_report

    opened = open_run(run)
    PLAN.require_current(opened)
    copy = None if out is None else place(out)
    local = copy if isinstance(copy, Path) else None
    made = write_report(opened, out=local, title=title, force=force, watch=plain_lines())
    print(copy.upload(made) if isinstance(copy, ObjectPath) else made)


@app.command()
def export(
    run: RunPath,
    out: NewFolder,
    to: Annotated[str, typer.Option("--to", help=f"{', '.join(WRITERS)}.")] = "csv",
    images: Annotated[
        Text, typer.Option("--images", help="none, link or copy; if unset, what the format needs.")
    ] = None,
    skip_changed: Annotated[
        bool, typer.Option("--skip-changed", help="Leave out pictures that changed since the scan.")
    ] = False,
    formulas: Annotated[
        str,
        typer.Option(
            "--formulas",
            help="escape or keep texts in CSV files that a spreadsheet takes for formulas (=1+1).",
        ),
    ] = "escape",
    license: LicenseName = None,
    engine: EngineName = "process",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Write the cleaned data set in another format.

    The given labels stay in it, dropped samples are listed.
    """
    from capro.data.manifest import manifest_of
    from capro.data.readers import load_writer
    from capro.export.cleaned import export_data, scan_command

    check_engine(engine, address)
    opened = open_run(run)
    PLAN.require(opened, "clean")
    single = manifest_of(opened).task == "single"  # else decisions are counted by label
    decisions = opened.result("clean").items()
    kept = sum(count for name, count in decisions if name != "drop") if single else None

    def write(workers: Engine) -> dict[str, Any]:
        with plain_lines().bar("writing images", kept) as step:
            return export_data(
                opened, place(out), to=to, images=images, skip_changed=skip_changed, formulas=formulas,
                progress=step, engine=workers, license=license,
            )  # fmt: skip

    if processes.count() > 1:
        from capro.run.rank_engine import led
        from capro.run.ranks import ranks_of

        found = led(ranks_of(opened.settings), write)
        if found is None:
            return  # the main rank says what came of it
    else:
        with engine_of(engine, address) as workers:
            found = write(workers)
    text = f"{found['samples']:,} samples in {out}, {found['dropped']:,} listed in dropped.csv"
    text += f", {found['changed']:,} in changed.csv" if found["changed"] else ""
    print_result(found, as_json, lambda _: print(text))
    back = scan_command(found, entry=load_writer(to).entry, out=place(out))
    note(f"read it back with `{back} --run NEW_RUN`")


@app.command("export-model")
def export_model(
    run: RunPath,
    out: NewFolder,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx, checked against PyTorch.")
    ] = False,
    license: LicenseName = None,
    as_json: AsJson = False,
) -> None:
    """Write the trained model for `capro predict`.

    Weights, configuration, model card, and ONNX on request.
    """
    from capro.evaluate.open_set import in_words
    from capro.export.model import export_model as write_model
    from capro.stages.threshold import threshold

    opened = open_run(run)
    PLAN.require(opened, "finetune")
    chosen = threshold(opened, watch=plain_lines())
    found = write_model(opened, place(out), open_set=chosen, onnx=onnx, license=license, say=note)
    text = f"model of {found['num_labels']} classes in {out}; {in_words(found['open_set'])}"
    print_result(found, as_json, lambda _: print(text))


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Folder made by `capro export-model`.")],
    images: Annotated[list[str], typer.Argument(help="Images, folders, tars or tables.")],
    out: Annotated[
        OptionalPath,
        typer.Option(
            "--out", callback=local_only, help="File to write; its ending says csv or jsonl. Stdout if unset."
        ),
    ] = None,
    format: Annotated[
        Text, typer.Option("--format", help="csv or jsonl; by the ending of --out if unset.")
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=0, help="Number of classes listed per image; 0 for all.")
    ] = 5,
    open_set: Annotated[
        bool, typer.Option("--open-set", help="Give no label to an image below the open-set threshold.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Label images with an exported model.

    An image that cannot be read gets a row with its error; where no image could be read, the exit code is 1.
    """
    from capro.evaluate.open_set import in_words
    from capro.export.predictor import Predictor, find_images, save_rows

    predictor = Predictor.load(model, device=device)
    if open_set and predictor.threshold is not None:
        note(in_words(predictor.config["open_set"]))
    items = find_images(images, predictor.limits)
    found = save_rows(predictor.rows(items, top=top, open_set=open_set), out, format)
    shown = {name: count for name, count in found.items() if open_set or name != "open"}
    note(", ".join(f"{count:,} {name}" for name, count in shown.items()))
    if found["errors"] == found["images"]:
        fail(
            "no image could be read",
            "check the paths; the column `error` has the reason for each image",
            code=1,
        )


@config_app.command("show")
def config_show(
    file: Annotated[OptionalPath, typer.Argument(callback=local_only, help="YAML file.")] = None,
    preset: Preset = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print every setting with its value, its meaning and its origin."""
    from capro import config

    settings = config.load(file, preset_name=preset, overrides=set_ or [])
    print_result(
        settings.model_dump(), as_json, lambda _: print(config.show(settings, preset_name=preset), end="")
    )


@config_app.command("presets")
def config_presets() -> None:
    """List the presets."""
    from capro import config

    print("\n".join(config.preset_names()))
