"""The command line. Commands are a few lines each; importing this module imports no torch.

Data goes to stdout, logs and progress to stderr. A mistake of the user's prints ``error:`` and
``hint:`` and exits with 2; an interruption exits with 130.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Optional

import typer

from capro import __version__
from capro.errors import CaproError

if TYPE_CHECKING:
    from capro.config import Settings
    from capro.runs import Run

app = typer.Typer(
    name="capro",
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
    Text, typer.Option("--preset", help="webvision1k, google500, nuswide, small or demo.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Do it again even if it is fresh.")]


def main() -> None:
    """Entry point: errors become messages and exit codes, never tracebacks."""
    try:
        code = app(standalone_mode=False)
    except CaproError as error:
        fail(str(error), error.hint)
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


def fail(message: str, hint: str = "", *, code: int = 2) -> NoReturn:
    """Print an error and leave."""
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
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
    """A line for the reader, on stderr."""
    print(text, file=sys.stderr)


def show_version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"capro {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show it.")
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
    format: Annotated[Text, typer.Option(help="auto, folder, table, tars or hub.")] = None,
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
    """Read a source into a manifest; every row is a sample or is quarantined with a reason."""
    data = {key: value for key, value in locals().items() if key not in NOT_DATA}
    from capro import pipeline, progress
    from capro.runs import Run

    settings = settings_with_data(None, preset, set_, data)
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
    pipeline.embed(opened, bar=progress.terminal)


@app.command()
def match(run: RunFolder, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Choose the anchors of each class by text matching through the visual graph."""
    from capro import pipeline, progress, tables

    opened = open_run(run, set_)
    found = pipeline.match(opened, bar=progress.terminal)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        tables.match_summary(found, opened.folder("match"))


@app.command()
def pretrain(run: RunFolder, set_: Overrides = None) -> None:
    """Step 1: train on the web labels as they are (the vanilla baseline)."""
    from capro import pipeline, progress

    opened = open_run(run, set_)
    pipeline.classes(opened, bar=progress.terminal, warn=note)
    pipeline.pixels(opened, bar=progress.terminal)
    if opened.settings.net.mode == "frozen":
        pipeline.features(opened, bar=progress.terminal)
    pipeline.pretrain(opened, bar=progress.terminal)


@app.command()
def train(run: RunFolder, set_: Overrides = None) -> None:
    """Step 2: prototypes, bootstrapping and label correction."""
    from capro import pipeline, progress

    pipeline.train(open_run(run, set_), bar=progress.terminal)


@app.command()
def clean(run: RunFolder, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Give every training sample a verdict: anchor, keep, relabel or drop."""
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

    pipeline.finetune(open_run(run, set_), bar=progress.terminal)


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
    """Compare vanilla and CAPro: metrics, classes made worse, confusions, calibration."""
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
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Every stage from scan to evaluation; what is fresh is skipped, so this also resumes."""
    from capro import pipeline, progress, tables
    from capro.runs import Run

    settings = settings_with_data(config, preset, set_, {"source": data})
    name = config.stem if config else Path(settings.data.source or "capro").stem
    opened = Run.create(run or Path("runs") / name, settings)
    found = pipeline.run_all(opened, bar=progress.terminal, say=note)
    if as_json:
        print(json.dumps(found))
    else:
        tables.run_summary(opened)
        tables.comparison(found)
        note(f"results are in {opened.path}")


@app.command()
def demo(
    run: RunFolder = Path("runs/demo"),
    multi_label: Annotated[bool, typer.Option(help="The multi-label variant.")] = False,
    set_: Overrides = None,
) -> None:
    """Run everything on the embedded demo data and compare with what is really true."""
    from capro import demonstration, progress

    demonstration.show(
        run, multi_label=multi_label, overrides=set_ or [], bar=progress.terminal, say=note
    )


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
    """Run the grid behind a table of the paper; what is finished is never done again."""
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
    """Say what the data and the results advise: noise, gamma, K, and what looks wrong."""
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
