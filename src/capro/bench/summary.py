"""From figures of rows and seeds to means, spreads and paired differences; Markdown and CSV. Pure."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from capro.bench.published import METRICS_OF, SECOND, Published

ByMetric = Mapping[str, float]  # metric: value
ON = " on "  # between a metric and the test set that is not the data's own


class Spread(NamedTuple):
    """Mean and standard deviation (n - 1) over seeds, nan where one value has no spread; how many are positive."""

    mean: float
    std: float
    wins: int
    size: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and spread.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, std=1.4142135623730951, wins=2, size=2)
    """
    mean = statistics.fmean(values) if values else math.nan
    std = statistics.stdev(values) if len(values) > 1 else math.nan
    return Spread(mean, std, sum(value > 0 for value in values), len(values))


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Spread:
    """A row's gains over another, seed by seed; seeds that only one has do not count.

    >>> paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 1.0, 2: 9.0})
    Spread(mean=1.5, std=0.7071067811865476, wins=2, size=2)
    """
    return spread([values[seed] - base[seed] for seed in sorted(values) if seed in base])


def suffixes(metrics: Iterable[str]) -> list[str]:
    """What stands behind the names of metrics, for each test set; the data's own first.

    >>> suffixes(["top1", "top5", "top1 on a/val"])
    ['', ' on a/val']
    """
    return list(dict.fromkeys(name[len(name.partition(ON)[0]) :] for name in metrics)) or [""]


@dataclass
class Measured:
    """What a row gave: figures by seed, and why some are missing."""

    label: str
    figures: dict[int, ByMetric] = field(default_factory=dict)
    paper: Published = field(default_factory=dict)
    x: float | None = None
    problem: str = ""
    remark: str = ""  # what a reader must know of the row

    @property
    def name(self) -> str:
        """The label, with the remark behind it."""
        return f"{self.label} ({self.remark})" if self.remark else self.label

    def values(self, metric: str) -> dict[int, float]:
        """One metric by seed."""
        return {seed: row[metric] for seed, row in self.figures.items() if metric in row}


@dataclass(frozen=True)
class TableResult:
    """A measured table."""

    name: str
    title: str
    rows: Sequence[Measured]
    metrics: Sequence[str]
    against: str
    seeds: Sequence[int]
    axis: str = ""
    note: str = ""
    command: str = ""

    @property
    def base(self) -> Measured:
        """The row that the others are compared with."""
        return next(row for row in self.rows if row.label == self.against)


def results_markdown(result: TableResult) -> str:
    """The table for people: percent, mean ± spread, paired differences, the paper's own figures."""
    shown = [row for row in result.rows if row.figures]
    papers = _papers(result, shown)
    head = [result.axis or "row", *(f"{metric}, %" for metric in result.metrics)]
    main = result.metrics[0]
    head.append(f"{main} - ({result.against})")
    head += [f"paper's {name}: {' / '.join(METRICS_OF[name])}" for name in papers]
    cells = []
    for row in shown:
        means = [_spread(spread(list(row.values(metric).values()))) for metric in result.metrics]
        gain = "" if row is result.base else _paired(paired(row.values(main), result.base.values(main)))
        own = [_printed(row.paper.get(name, ())) for name in papers]
        cells.append([row.name, *means, gain, *own])
    lines = markdown_table(result.title, head, cells)
    problems = [f"- not run: {row.label}: {row.problem}" for row in result.rows if row.problem]
    lines += [*problems, ""] if problems else []
    seeds = ", ".join(map(str, result.seeds))
    lines.append(
        f"Mean ± standard deviation over seeds {seeds}; differences are paired by seed, with the "
        "number of seeds in which they are positive. Last epoch, test set used once."
    )
    if papers:
        lines.append(
            "The paper's figures are of other data and of another scale: at most the order of rows can be compared."
        )
    lines += [text for text in (result.note, result.command and f"`{result.command}`") if text]
    return "\n".join(lines) + "\n"


def _papers(result: TableResult, rows: Sequence[Measured]) -> list[str]:
    """The paper's datasets that have figures of these metrics; second test sets only beside a measured one."""
    second = any(ON in metric for metric in result.metrics)
    return [
        name
        for name, metrics in METRICS_OF.items()
        if metrics[0] in result.metrics
        and any(name in row.paper for row in rows)
        and (second or name not in SECOND)
    ]


def _printed(figures: Sequence[float | None]) -> str:
    """Figures of the paper in one cell.

    >>> _printed((73.9, None)), _printed(())
    ('73.9 / -', '')
    """
    return " / ".join("-" if value is None else f"{value:.1f}" for value in figures)


def results_csv(result: TableResult) -> str:
    """Every single value: table, row, seed, metric, value."""
    values = [
        [result.name, row.name, seed, metric, repr(float(value))]
        for row in result.rows
        for seed in sorted(row.figures)
        for metric, value in row.figures[seed].items()
    ]
    return csv_text(["table", "row", "seed", "metric", "value"], values)


def _spread(value: Spread, form: str = ".1f") -> str:
    """Mean and spread in percent.

    >>> _spread(Spread(0.5, 0.01, 3, 3)), _spread(spread([]))
    ('50.0 ± 1.0', '-')
    """
    if math.isnan(value.mean):
        return "-"
    std = "" if math.isnan(value.std) else f" ± {100 * value.std:.1f}"
    return f"{100 * value.mean:{form}}{std}"


def _paired(value: Spread) -> str:
    return _spread(value, "+.1f") + (f" ({value.wins}/{value.size})" if value.size else "")


# --- any table ------------------------------------------------------------------------------------


def markdown_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a titled Markdown table; numbers are to the right of the first column.

    >>> markdown_table("T", ["a", "b"], [["x|y", "1"]])[2:]
    ['| a | b |', '| --- | ---: |', '| x\\\\|y | 1 |', '']
    """
    whole = [head, ["---"] + ["---:"] * (len(head) - 1)]
    whole += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"# {title}", "", *(f"| {' | '.join(cells)} |" for cells in whole), ""]


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as comma-separated values; None is an empty cell."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *rows])
    return out.getvalue()
