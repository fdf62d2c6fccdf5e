"""Commands that read a finished run: evaluate, report, export, predict, push, review."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capro.cli.options import (
    Address,
    AsJson,
    EngineName,
    Force,
    LicenseName,
    NewFolder,
    Overrides,
    Preset,
    ReadingOverrides,
    RunArgument,
    RunOption,
    RunPath,
    SettingsFile,
    Yes,
    local_file,
    one_run,
    open_run,
    settings_for_reading,
)
from capro.cli.program import agreement, app, ask, config_app, fail, note, plain_lines, print_result
from capro.data.readers import WRITERS
from capro.errors import ConfigError
from capro.pipeline.engine import Engine, check_engine, engine_of, lead
from capro.pipeline.ranks import process_count, ranks_of
from capro.stages import PLAN
from capro.stores import ObjectPath, any_path, local_path
from capro.wording import many

if TYPE_CHECKING:
    from capro.pipeline.run import Run


@app.command()
def evaluate(
    path: RunArgument = None,
    run: RunOption = None,
    on: Annotated[str | None, typer.Option(help="Another source to evaluate on.")] = None,
    truth: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Table with true labels of the training samples: for measuring only."
        ),
    ] = None,
    open_set: Annotated[
        bool, typer.Option("--open-set", help="Count samples of no known class as one open class.")
    ] = False,
    novel: Annotated[
        Path | None, local_file(help="File with the classes that may be open, one per line.")
    ] = None,
    set_: ReadingOverrides = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Compare vanilla and CAPro on the test split.

    Metrics, classes made worse first, confusions, calibration; with options also other data,
    the open set, and true labels.
    """
    from capro.cli import evaluation_tables
    from capro.stages.evaluate import evaluate as measure

    opened = open_run(one_run(path, run))
    details = measure(
        opened,
        on=on,
        reading=settings_for_reading(opened, set_, on),
        truth=None if truth is None else any_path(truth),
        with_open_set=open_set or novel is not None,
        novel=novel,
        watch=plain_lines(),
        agree=agreement(yes),
    )
    print_result(details, as_json, evaluation_tables.assessment)


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        str | None, typer.Option("--out", metavar="PATH", help="Also write the report to this file.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Title of the page.")] = None,
    force: Force = False,
    yes: Yes = False,
) -> None:
    """Write one HTML file about a run.

    It opens offline: results, galleries with evidence, figures.
    """
    from capro.stages.report import report as write_report

    opened, watch = open_run(run), plain_lines()
    PLAN.refresh(opened, watch=watch, agree=agreement(yes))
    copy = None if out is None else any_path(out)
    local = copy if isinstance(copy, Path) else None
    made = write_report(opened, out=local, title=title, force=force, watch=watch)
    print(copy.upload(made) if isinstance(copy, ObjectPath) else made)


@app.command()
def export(
    run: RunPath,
    out: NewFolder,
    to: Annotated[str, typer.Option("--to", help=f"{', '.join(WRITERS)}.")] = "csv",
    images: Annotated[
        str | None, typer.Option("--images", help="none, link or copy; if unset, what the format needs.")
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
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write the cleaned dataset in another format.

    The given labels stay in it, dropped samples are listed.
    """
    from capro.data.manifest import manifest_of
    from capro.data.readers import load_writer
    from capro.export.dataset import export_data, scan_command

    check_engine(engine, address)
    opened = open_run(run)
    PLAN.refresh(opened, "clean", watch=plain_lines(), agree=agreement(yes))
    single = manifest_of(opened).task == "single"  # else decisions are counted by label
    decisions = opened.result("clean").items()
    kept = sum(count for name, count in decisions if name != "drop") if single else None

    def write(workers: Engine) -> dict[str, Any]:
        with plain_lines().bar("writing images", kept) as step:
            return export_data(
                opened, any_path(out), to=to, images=images, skip_changed=skip_changed, formulas=formulas,
                progress=step, engine=workers, license=license,
            )  # fmt: skip

    if process_count() > 1:
        ranks = ranks_of(opened.settings)
        with ranks.together():
            written = lead(ranks, write)
        if written is None:
            return  # the main rank says what came of it
    else:
        with engine_of(engine, address) as workers:
            written = write(workers)
    text = f"{many(written['samples'], 'sample')} in {out}, {written['dropped']:,} listed in dropped.csv"
    text += f", {written['changed']:,} in changed.csv" if written["changed"] else ""
    print_result(written, as_json, lambda _: print(text))
    back = scan_command(written, entry=load_writer(to).entry, out=any_path(out))
    note(f"read it back with `{back} --run NEW_RUN`")


@app.command("export-model")
def export_model(
    run: RunPath,
    out: NewFolder,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write model.onnx, checked against PyTorch.")
    ] = False,
    license: LicenseName = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write the trained model for `capro predict`.

    Weights, configuration, model card, and ONNX on request.
    """
    from capro.export.model import export_model as write_model
    from capro.results.open_set import in_words
    from capro.stages.threshold import threshold

    opened = open_run(run)
    PLAN.refresh(opened, "finetune", watch=plain_lines(), agree=agreement(yes))
    chosen = threshold(opened, watch=plain_lines())
    model = write_model(opened, any_path(out), open_set=chosen, onnx=onnx, license=license, say=note)
    text = f"model of {many(model['num_labels'], 'class', 'classes')} in {out}; {in_words(model['open_set'])}"
    print_result(model, as_json, lambda _: print(text))


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="Folder made by `capro export-model`.")],
    images: Annotated[list[str], typer.Argument(help="Images, folders, tars or tables.")],
    out: Annotated[
        Path | None, local_file("--out", help="File to write; its ending says csv or jsonl. Stdout if unset.")
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="csv or jsonl; by the ending of --out if unset.")
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
    from capro.export.predictor import Predictor, find_images, save_rows
    from capro.results.open_set import in_words

    predictor = Predictor.load(model, device=device)
    if open_set and predictor.threshold is not None:
        note(in_words(predictor.config["open_set"]))
    items = find_images(images, predictor.limits)
    counts = save_rows(predictor.rows(items, top=top, open_set=open_set), out, format)
    rejected = [f"{counts['open']:,} open"] if open_set else []
    note(", ".join([many(counts["images"], "image"), *rejected, many(counts["errors"], "error")]))
    if counts["errors"] == counts["images"]:
        fail(
            "no image could be read",
            "check the paths; the column `error` has the reason for each image",
            code=1,
        )


@config_app.command("show")
def config_show(
    file: SettingsFile = None, preset: Preset = None, set_: Overrides = None, as_json: AsJson = False
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


@app.command()
def push(
    folder: Annotated[
        str, typer.Argument(help="Made by `capro export-model`, or by `capro export --to hf`.")
    ],
    repo: Annotated[
        str,
        typer.Argument(help="Repository on the Hugging Face hub: OWNER/NAME, or NAME for one of your own."),
    ],
    private: Annotated[
        bool, typer.Option("--private", help="Make a new repository private: only its owner sees it.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask; what becomes public is still printed.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a model or a cleaned dataset on the Hugging Face hub.

    It shows what becomes public and what changes in a repository that exists, and asks. After "no" the exit code is 1.
    """
    from capro.export.hub import push as publish

    def agree(lines: Sequence[str]) -> None:
        if yes:
            note("\n".join(lines))
        else:
            ask(lines, "publish", "published")
        note("uploading")

    published = publish(local_path(folder, "FOLDER"), repo, private=private, agree=agree)
    if not (published["added"] or published["replaced"] or published["removed"]):
        note("the repository has these files already; nothing was uploaded")
    print_result(published, as_json, lambda published: print(published["url"]))


@app.command()
def review(
    run: RunPath,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page; 0: any free one.")
    ] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to serve the page at; with another one than 127.0.0.1 other machines can reach it.",
        ),
    ] = "127.0.0.1",
    export: Annotated[
        Path | None,
        local_file("--export", help="Write the decisions to a file: .parquet, .csv or .json (Label Studio)."),
    ] = None,
    import_: Annotated[
        Path | None, local_file("--import", help="Read decisions from a file of one of these kinds.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Decide doubtful samples yourself.

    Serves a web page on this machine; `capro run --run RUN` then uses your decisions.
    """
    from capro.review.exchange import export_decisions, import_decisions
    from capro.review.serving import log_in_store

    opened = open_run(run)
    if export is not None and import_ is not None:
        raise ConfigError("--export and --import at once", hint="give one of them")
    if import_ is not None:
        with log_in_store(opened):
            taken = import_decisions(opened, import_)
        print(f"{many(taken, 'decision')} taken from {import_}")
        note(f"`capro run --run {run}` uses them")
    elif export is not None:
        written = export_decisions(opened, export, warn=lambda text: note(f"warning: {text}"))
        print(f"{many(written, 'decision')} in {export}")
    else:
        PLAN.refresh(opened, "clean", watch=plain_lines(), agree=agreement(yes), decisions=False)
        with log_in_store(opened):
            _serve(opened, host, port, open_)


def _serve(opened: Run, host: str, port: int, browser: bool) -> None:
    import webbrowser

    from capro.review.serving import Review, is_loopback

    app = Review(
        opened, host=host, port=port, on_link_used=lambda link: note(f"opened; for another browser: {link}")
    )
    if not is_loopback(host):
        note(
            f"warning: {host} can be reached by other machines: everybody with a link sees pictures and can decide"
        )
    link = app.link
    print(link, flush=True)
    note("each link works once; Ctrl-C ends the review, every decision is saved at once")
    if browser:
        webbrowser.open(link)
    with suppress(KeyboardInterrupt):  # how a person ends it
        app.serve()
    app.stop()
    decided = app.session.progress()["decided"]
    note(f"{many(decided, 'sample')} decided; `capro run --run {opened.place}` uses them")
