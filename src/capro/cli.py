"""The command line. Commands are a few lines each; importing this module imports no torch.

Data goes to stdout, logs and progress to stderr. A mistake of the user's prints ``error:`` and
``hint:`` and exits with 2; an interruption exits with 130.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer
from typer.core import TyperGroup

from capro import __version__, launched
from capro.errors import CaproError, RankError

if TYPE_CHECKING:
    from capro.config import Settings
    from capro.progress import Watch
    from capro.runs import Run


class Terminated(BaseException):
    """A launcher ends this process, as it does with all when one has ended."""


class InOrder(TyperGroup):
    """Lists commands in the order in which they are used; those not named here follow."""

    ORDER = (
        *("demo", "run", "scan", "classes", "pretrain", "embed", "match", "train", "clean"),
        *("finetune", "evaluate"),
    )

    def list_commands(self, _ctx: Any) -> list[str]:
        """Names of the commands; ``config`` stands last."""
        first = [name for name in self.ORDER if name in self.commands]
        rest = [name for name in self.commands if name not in {*first, "config"}]
        return [*first, *rest, "config"]


app = typer.Typer(
    name="capro",
    cls=InOrder,
    help="From noisy web images and texts to a classifier, a cleaned data set and a report.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich would double the time of --help
)
config_app = typer.Typer(help="Settings and presets.", no_args_is_help=True)
classes_app = typer.Typer(help="What each class means.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(classes_app, name="classes")

Text = Optional[str]  # noqa: UP045 - the form that every version of typer reads
Texts = Optional[list[str]]  # noqa: UP045
RunFolder = Annotated[Path, typer.Option("--run", help="Run directory.")]
RunArgument = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Argument(metavar="RUN", help="Run directory."),
]
RunOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--run", help="Run directory, if not given as RUN."),
]
Overrides = Annotated[Texts, typer.Option("--set", help="Override a setting: train.gamma=0.4")]
Preset = Annotated[
    Text,
    typer.Option("--preset", help="webvision1k, google500, nuswide, small, small-multi or demo."),
]
Memory = Annotated[
    Text,
    typer.Option("--memory", help="What the graph keeps to, say 4GB; wins over match.memory_gb."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is fresh.")]


def main() -> None:
    """Entry point: errors become messages and exit codes, never tracebacks."""
    if not launched.is_main():
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - of several ranks one prints results
    if launched.count() > 1:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app(standalone_mode=False)
    except RankError:  # the rank that failed prints the message
        raise SystemExit(2) from None
    except CaproError as error:
        fail(str(error), error.hint)
    except Terminated:
        fail(
            "ended by the launcher, as when another process of this run has ended",
            "the same command goes on where it stopped",
            code=128 + signal.SIGTERM,
        )
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:  # `capro ... | head`: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except Exception as error:
        if hasattr(error, "format_message"):  # the parser's own, in every version of typer
            usage(error)
        if os.environ.get("CAPRO_DEBUG"):
            traceback.print_exc()
        fail(
            f"unexpected {type(error).__name__}: {error}",
            "this is a bug in capro: please report it with the output of CAPRO_DEBUG=1",
            code=1,
        )
    if code == 130:
        fail("interrupted", "the same command goes on where it stopped", code=130)
    raise SystemExit(code if isinstance(code, int) else 0)


def _terminated(*_: Any) -> NoReturn:
    raise Terminated  # unwinds: temporary files go


def fail(message: str, hint: str = "", *, code: int = 2) -> NoReturn:
    """Print an error and leave."""
    who = "" if launched.is_main() else f"rank {launched.rank()}: "
    print(f"error: {who}{message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if launched.count() > 1:
        sys.stderr.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # on the way out: nothing more to say
    raise SystemExit(code)


def usage(error: Any) -> NoReturn:
    """A wrong option or argument."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        raise SystemExit(2)
    command = context.command_path if context is not None else "capro"
    message = " ".join(error.format_message().split()).rstrip(".")
    fail(message[:1].lower() + message[1:], f"`{command} --help` lists what it takes")


def note(text: str) -> None:
    """A line for the reader, on stderr; of several ranks the main one writes it."""
    if launched.is_main():
        print(text, file=sys.stderr)


def show_version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"capro {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """From noisy web images and texts to a classifier, a cleaned data set and a report."""


def one_run(path: Path | None, option: Path | None) -> Path:
    """The run directory, given as an argument or with --run."""
    if (path is None) == (option is None):
        fail("give one run directory", "as an argument, or with --run")
    return path or option or Path()


def open_run(path: Path, overrides: list[str] | None) -> Run:
    """An existing run, with overrides written into its settings."""
    from capro import config
    from capro.runs import Run

    run = Run.open(path)
    return run.with_settings(config.update(run.settings, overrides)) if overrides else run


def with_memory(overrides: list[str] | None, memory: str | None) -> list[str] | None:
    """Overrides with ``--memory`` among them: 4GB, 512MB, or a number of gigabytes.

    >>> with_memory(["seed=1"], "512MB")
    ['seed=1', 'match.memory_gb=0.5']
    """
    if memory is None:
        return overrides
    from capro.errors import ConfigError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?)?", memory.strip(), re.IGNORECASE)
    gigabytes = 0.0
    if found:
        gigabytes = float(found[1]) * 1024.0 ** ("KMGT".index((found[2] or "G").upper()) - 2)
    if gigabytes <= 0:
        raise ConfigError(f"--memory {memory!r}: not an amount of memory", hint="--memory 4GB")
    return [*(overrides or []), f"match.memory_gb={gigabytes:g}"]


@contextmanager
def told(run: Run, stage: str) -> Iterator[None]:
    """Say how long a stage took, or that there was nothing to do."""
    before = run.stamp(stage)
    yield
    if run.stamp(stage) == before:
        note(f"{stage}: fresh, nothing to do")
    else:
        seconds = (run.finished(stage) or {})["seconds"]
        note(f"{stage}: done in {seconds:.0f} s, see {run.folder(stage)}")


def watching(title: str) -> Watch:
    """Where a run of many stages is told: a dashboard on a terminal, else plain lines."""
    from capro import dashboard, progress

    if launched.is_main() and dashboard.possible():
        return dashboard.Dashboard(title)
    return progress.Lines(note, progress.terminal)


def next_commands(path: Path, *, tested: bool) -> str:
    """What one does with a finished run, ready to be copied; figures only if there is a test split."""
    import shlex

    run = shlex.quote(str(path))
    rows = [
        (f"capro report {run}", "a page to look at, with pictures and evidence"),
        *([(f"capro evaluate {run}", "figures by class, those made worse first")] * tested),
        (f"capro export {run} --out cleaned", "the cleaned data set"),
        (f"capro export-model {run} --out model", "the classifier, for `capro predict`"),
    ]
    width = max(len(command) for command, _ in rows)
    return "\n".join(["next:", *(f"  {command:<{width}}  {text}" for command, text in rows)])


def check_source(settings: Settings) -> None:
    """Refuse a source that is not there before anything is written; the hub answers later."""
    from capro.pipeline.ingest import find_sources

    if not str(settings.data.source).startswith("hub:") and settings.data.format != "hub":
        find_sources(settings.data)


def settings_with_data(
    file: Path | None, preset: str | None, overrides: list[str] | None, data: dict[str, Any]
) -> Settings:
    """Settings from file, preset and overrides, with what the command's options say of the data."""
    from capro import config

    settings = config.load(file, preset_name=preset, overrides=overrides or [])
    given = {key: value for key, value in data.items() if value is not None}
    merged = settings.model_dump()
    merged["data"] |= given
    return config.validate(merged, place="options")


@app.command()
def scan(
    source: Annotated[str, typer.Argument(help="Folder, table, tar shards, or hub:NAME.")],
    run: RunFolder,
    test: Annotated[Text, typer.Option(help="A second source, for testing only.")] = None,
    format: Annotated[
        Text, typer.Option(help="auto, folder, table, tars, hub, webvision, nuswide.")
    ] = None,
    image_root: Annotated[Text, typer.Option(help="Folder that a table's paths start at.")] = None,
    image_column: Annotated[Text, typer.Option(help="Column with paths or image bytes.")] = None,
    label_column: Annotated[Text, typer.Option(help="Column with the web label.")] = None,
    text_column: Annotated[Text, typer.Option(help="Column with the title or caption.")] = None,
    description_column: Annotated[Text, typer.Option(help="Column with a description.")] = None,
    tags_column: Annotated[Text, typer.Option(help="Column with tags.")] = None,
    id_column: Annotated[Text, typer.Option(help="Column with unique ids.")] = None,
    split_column: Annotated[Text, typer.Option(help="Column with train, val or test.")] = None,
    label_separator: Annotated[Text, typer.Option(help="Splits a label cell.")] = None,
    preset: Preset = None,
    set_: Overrides = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a source into a manifest.

    Every row of the source becomes a sample or is quarantined with a reason.
    """
    data = {key: value for key, value in locals().items() if key not in NOT_DATA}
    from capro import pipeline, progress
    from capro.runs import Run

    settings = settings_with_data(None, preset, set_, data)
    check_source(settings)
    opened = Run.create(run, settings)
    summary = pipeline.scan(opened, bar=progress.terminal, force=force)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        from capro import tables

        tables.scan_summary(summary, quarantine=run / "scan" / "quarantine.parquet")


NOT_DATA = {"run", "preset", "set_", "force", "as_json"}


@classes_app.command("suggest")
def classes_suggest(
    run: RunFolder,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Write a classes.yaml to edit."),
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Rank the WordNet senses of every label by the class's own texts."""
    from capro import pipeline, progress, tables
    from capro.text.classes import draft, save_classes

    suggestions = pipeline.suggest(open_run(run, set_), bar=progress.terminal)
    if out is not None:
        if out.exists():
            fail(f"{out}: exists already", "give another file to --out, or delete it")
        specs = [draft(suggestion) for suggestion in suggestions]
        save_classes(out, specs, suggestions=suggestions)
        note(
            f"wrote {out}: look at the ambiguous classes, then use it with --set data.classes={out}"
        )
    if as_json:
        print(json.dumps([each.as_dict() for each in suggestions], ensure_ascii=False))
    else:
        tables.suggestions(suggestions)


@classes_app.command("show")
def classes_show(run: RunFolder, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Resolve the classes of a run and print the text that each is matched by."""
    from dataclasses import asdict

    from capro import pipeline, progress, tables

    opened = open_run(run, set_)
    specs = pipeline.classes(opened, bar=progress.terminal, warn=note)
    if as_json:
        print(json.dumps([asdict(spec) for spec in specs], ensure_ascii=False))
    else:
        tables.class_texts(specs)


@app.command()
def embed(run: RunFolder, set_: Overrides = None) -> None:
    """Compute text and visual features of every training sample."""
    from capro import pipeline, progress

    opened = open_run(run, set_)
    pipeline.classes(opened, bar=progress.terminal, warn=note)
    with told(opened, "embed"):
        pipeline.embed(opened, bar=progress.terminal, say=note)


@app.command()
def match(
    run: RunFolder, memory: Memory = None, set_: Overrides = None, as_json: AsJson = False
) -> None:
    """Choose the anchors of each class by their texts.

    Texts are first enhanced through the graph of visual neighbours.
    """
    from capro import pipeline, progress, tables

    opened = open_run(run, with_memory(set_, memory))
    found = pipeline.match(opened, bar=progress.terminal)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        tables.match_summary(found, opened.folder("match"))


@app.command()
def pretrain(run: RunFolder, set_: Overrides = None) -> None:
    """Step 1: train on the web labels, the vanilla baseline."""
    from capro import pipeline, progress

    opened = open_run(run, set_)
    pipeline.classes(opened, bar=progress.terminal, warn=note)
    pipeline.pixels(opened, bar=progress.terminal)
    if opened.settings.net.mode == "frozen":
        pipeline.features(opened, bar=progress.terminal, say=note)
    with told(opened, "pretrain"):
        pipeline.pretrain(opened, bar=progress.terminal, say=note)


@app.command()
def train(run: RunFolder, set_: Overrides = None) -> None:
    """Step 2: prototypes, bootstrapping and label correction."""
    from capro import pipeline, progress

    opened = open_run(run, set_)
    with told(opened, "train"):
        pipeline.train(opened, bar=progress.terminal)


@app.command()
def clean(run: RunFolder, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Judge every label: anchor, keep, relabel or drop."""
    from capro import pipeline, tables

    opened = open_run(run, set_)
    found = pipeline.clean(opened)
    if as_json:
        print(json.dumps(found))
    else:
        tables.clean_summary(found, opened.folder("clean") / "verdicts.parquet")


@app.command()
def finetune(run: RunFolder, set_: Overrides = None) -> None:
    """Step 3: train the classifier alone on the cleaned labels."""
    from capro import pipeline, progress

    opened = open_run(run, set_)
    with told(opened, "finetune"):
        pipeline.finetune(opened, bar=progress.terminal)


@app.command()
def evaluate(
    path: RunArgument = None,
    run: RunOption = None,
    on: Annotated[Text, typer.Option(help="Another source to evaluate on.")] = None,
    truth: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Table with true labels of the training samples: for measuring only."),
    ] = None,
    open_set: Annotated[
        bool, typer.Option("--open-set", help="Samples of no known class are one open class.")
    ] = False,
    novel: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Class list: the names that may be open, one per line."),
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare vanilla and CAPro on the test split.

    Metrics, classes made worse first, confusions, calibration; with options also other data,
    the open set, and true labels.
    """
    from capro import pipeline, progress

    opened = open_run(one_run(path, run), set_)
    found = pipeline.assess(
        opened,
        on=on,
        truth=truth,
        open_set=open_set or novel is not None,
        novel=novel,
        bar=progress.terminal,
    )
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        from capro import scorecards

        scorecards.assessment(found)


@app.command("run")
def run_command(
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="YAML file with settings."),
    ] = None,
    data: Annotated[Text, typer.Option("--data", help="Source: wins over data.source.")] = None,
    run: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--run", help="Run directory; runs/NAME if unset."),
    ] = None,
    preset: Preset = None,
    memory: Memory = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Every stage, from scan to evaluation.

    What is fresh is skipped, so the same command resumes; `capro run --run DIR` alone goes on with
    the settings of that run.
    """
    from capro import pipeline, tables
    from capro.runs import Run

    set_ = with_memory(set_, memory)
    if run is not None and not (config or data or preset) and (run / "run.yaml").exists():
        opened = open_run(run, set_)  # its own settings, not the defaults
    else:
        settings = settings_with_data(config, preset, set_, {"source": data})
        check_source(settings)
        name = config.stem if config else Path(settings.data.source or "capro").stem
        opened = Run.create(run or Path("runs") / name, settings)
    with watching(f"capro run {opened.path}") as watch:
        found = pipeline.run_all(opened, watch=watch)
    if as_json:
        print(json.dumps(found))
    else:
        tables.run_summary(opened)
        tables.comparison(found)
        note(f"results are in {opened.path}\n{next_commands(opened.path, tested=bool(found))}")


@app.command()
def demo(
    run: RunFolder = Path("runs/demo"),
    multi_label: Annotated[bool, typer.Option(help="The multi-label variant.")] = False,
    set_: Overrides = None,
) -> None:
    """Run everything on the embedded demo data.

    The results are compared with what is really true, which the demo data know.
    """
    from capro import demonstration

    with watching(f"capro demo {run}") as watch:
        found = demonstration.perform(
            run, multi_label=multi_label, overrides=set_ or [], watch=watch
        )
    demonstration.show(found, commands=next_commands(run, tested=True), say=note)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Also write it here."),
    ] = None,
    title: Annotated[Text, typer.Option("--title", help="Title of the page.")] = None,
    force: Force = False,
) -> None:
    """Write one HTML file about a run.

    It opens offline: results, galleries with evidence, figures.
    """
    from capro import pipeline, progress

    made = pipeline.report(
        open_run(run, None), out=out, title=title, force=force, bar=progress.terminal
    )
    print(made)


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
NewFolder = Annotated[Path, typer.Option("--out", help="A folder that does not exist yet.")]


@app.command()
def export(
    run: RunPath,
    out: NewFolder,
    to: Annotated[
        str, typer.Option("--to", help="folder, csv, parquet, webdataset, hf or fiftyone.")
    ] = "csv",
    images: Annotated[
        Text, typer.Option("--images", help="none, link or copy; what the format needs if unset.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the cleaned data set in another format.

    The given labels stay in it, dropped samples are listed.
    """
    from capro import progress
    from capro.export import export_data
    from capro.runs import Run

    with progress.terminal("writing images", None) as step:
        found = export_data(Run.open(run), out, to=to, images=images, progress=step)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(f"{found['samples']:,} samples in {out}, {found['dropped']:,} listed in dropped.csv")
        note(f"read it back with `{found['scan']} --run NEW_RUN`")


@app.command("export-model")
def export_model(
    run: RunPath,
    out: NewFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, checked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the trained model for `capro predict`.

    Weights, configuration, model card, and ONNX on request.
    """
    from capro import pipeline, progress
    from capro.export import export_model as write_model
    from capro.runs import Run

    opened = Run.open(run)
    chosen = pipeline.threshold(opened, bar=progress.terminal)
    found = write_model(opened, out, open_set=chosen, onnx=onnx, say=note)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        threshold = found["open_set"]["threshold"]
        print(f"model of {found['num_labels']} classes in {out}, open-set threshold {threshold}")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="Folder made by `capro export-model`.")],
    images: Annotated[list[Path], typer.Argument(help="Images, folders, tars or tables.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="File to write; its ending says csv or jsonl. Else stdout."),
    ] = None,
    format: Annotated[Text, typer.Option("--format", help="csv or jsonl.")] = None,
    top: Annotated[int, typer.Option("--top", min=0, help="Classes listed; 0 for all.")] = 5,
    open_set: Annotated[
        bool, typer.Option("--open-set", help="No label below the calibrated threshold.")
    ] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Label images with an exported model.

    An unreadable image gets a row with its error.
    """
    from capro.predict import Predictor, find_images, save_rows

    rows = Predictor.load(model, device=device).rows(
        find_images(images), top=top, open_set=open_set
    )
    found = save_rows(rows, out, format)
    told = {name: count for name, count in found.items() if open_set or name != "open"}
    note(", ".join(f"{count:,} {name}" for name, count in told.items()))


@app.command("bench")
def bench_command(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE...",
            help="main, text, reference, gamma, frequency, policy, k, lambda, openset, cost, or all.",
        ),
    ],
    run: RunFolder,
    data: Annotated[Text, typer.Option("--data", help="Source: wins over data.source.")] = None,
    config: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--config", help="YAML file with settings."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per row, each with its own seed.")] = 3,
    rows: Annotated[Texts, typer.Option("--row", help="Only this row; may be repeated.")] = None,
    take: Annotated[
        Texts, typer.Option("--from", help="A run whose fitting stages are taken; repeatable.")
    ] = None,
    novel: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="openset: class list of the novel classes; half of them if unset."),
    ] = None,
    preset: Preset = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Run the grid behind a table of the paper.

    What is finished is never done again.
    """
    import shlex

    from capro import progress
    from capro.bench import TABLES, Bench, bench

    settings = settings_with_data(config, preset, set_, {"source": data})
    work = Bench(
        run,
        settings,
        [settings.seed + number for number in range(seeds)],
        given=[Path(each) for each in take or []],
        novel=novel,
        command=shlex.join(["capro", *sys.argv[1:]]),
        bar=progress.terminal,
        say=note,
    )
    for name in TABLES if tables == ["all"] else tables:
        found = bench(work, name, rows=rows or [])
        if as_json:
            print(json.dumps(found, ensure_ascii=False))
        else:
            print(Path(found["files"][0]).read_text("utf-8"))
            note(f"written: {', '.join(found['files'])}")


@app.command()
def doctor(
    path: Annotated[str, typer.Argument(metavar="RUN|DATA", help="Run directory or source.")],
    preset: Preset = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Say what looks wrong and which settings fit.

    From the data and, where they exist, the results: noise, gamma, K and why.
    """
    import tempfile

    from capro import doctor as surgery
    from capro import pipeline, progress
    from capro.runs import Run

    if (Path(path) / "run.yaml").exists():
        found = surgery.report(open_run(Path(path), set_))
    else:
        with tempfile.TemporaryDirectory(prefix="capro-doctor-") as folder:
            settings = settings_with_data(None, preset, set_, {"source": path})
            opened = Run.create(Path(folder) / "run", settings)
            pipeline.scan(opened, bar=progress.terminal)
            if settings.data.classes:
                pipeline.classes(opened, bar=progress.terminal, warn=note)
            found = surgery.report(opened)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        from capro import scorecards

        scorecards.findings(found)


@config_app.command("show")
def config_show(
    file: Annotated[Optional[Path], typer.Argument(help="YAML file.")] = None,  # noqa: UP045
    preset: Preset = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Print the resolved settings with their meaning and origin."""
    from capro import config

    settings = config.load(file, preset_name=preset, overrides=set_ or [])
    if as_json:
        print(settings.model_dump_json())
    else:
        print(config.show(settings, preset_name=preset), end="")


@config_app.command("presets")
def config_presets() -> None:
    """List the presets."""
    from capro import config

    print("\n".join(config.preset_names()))
