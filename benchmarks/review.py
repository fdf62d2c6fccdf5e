"""What do a person's answers bring? Test accuracy and true labels after 0, 50, 100, 200 and 500 answers.

    python benchmarks/review.py --data queryweb32
    python benchmarks/review.py --data shopweb64
    python benchmarks/review.py --data albumtags96      several labels
    python benchmarks/review.py --data shopweb64 --answers 0 50 --orders gain

A made-up person answers from the truth file and is right 95 % of the time: otherwise it names another class
(several labels: it turns over one of the labels). Three orders of questions are compared: ours (with the
random fifth in it), random, and lowest `label_score` first. After each number of answers the stages that
depend on decisions are done anew by the product's own plan. ``true labels`` is the share of kept labels that
are true; ``right verdicts`` the share of all samples that have their true label or were rightly dropped
(several labels: of all pairs of sample and class); the test set only measures.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capro.bench import Bench
from capro.bench.store import only_one
from capro.data.manifest import manifest_of
from capro.pipeline.artefacts import CLEANED_LABELS
from capro.pipeline.checksums import seed_for
from capro.pipeline.run import Run
from capro.results.comparison import test_split
from capro.results.metrics import headline
from capro.results.truth import load_truth, membership, true_labels
from capro.review.answers import Decision
from capro.review.log import log_file, open_log
from capro.review.queue import ReviewTable, load_table, random_order
from capro.stages import PLAN
from variants import arguments, bench_of, truth_of

ANSWERS = (0, 50, 100, 200, 500)
RIGHT = 0.95  # of the person's answers
SETS = ("queryweb32", "shopweb64", "albumtags96")
Member = NDArray[np.bool_]


def by_gain(table: ReviewTable, _seed: int) -> NDArray[np.int64]:
    """The product's queue."""
    return table.queue.order


def by_chance(table: ReviewTable, seed: int) -> NDArray[np.int64]:
    """All samples in random order."""
    return random_order(len(table), seed_for(seed, "random answers"))


def by_score(table: ReviewTable, _seed: int) -> NDArray[np.int64]:
    """The lowest label_score first."""
    return np.argsort(table.label_score, kind="stable")


ORDERS: dict[str, Callable[[ReviewTable, int], NDArray[np.int64]]] = {
    "gain": by_gain,
    "random": by_chance,
    "score": by_score,
}


def answer(table: ReviewTable, row: int, member: Member, rng: np.random.Generator) -> Decision:
    """What the made-up person says of a sample."""
    names, true = table.names, set(np.flatnonzero(member[row]).tolist())
    if rng.random() >= RIGHT:
        wrong = int(rng.choice([c for c in range(len(names)) if table.multi_label or c not in true]))
        true = true ^ {wrong} if table.multi_label else {wrong}
    yes = tuple(names[c] for c in sorted(true))
    if not table.multi_label:
        web = table.given[row]
        yes = (names[web],) if web >= 0 and int(web) in true else yes[:1]
    given, proposed = (table.labels(row, before=before) for before in (True, False))
    return Decision(
        table.sample_id(row),
        "labels" if yes or table.multi_label else "out",
        yes=yes,
        given=given,
        proposed=proposed,
    )


def right_verdicts(labels: NDArray[np.int64], member: Member) -> float:
    """Share of samples with their true label or rightly dropped; several labels: of pairs."""
    if labels.ndim == 2:
        return float(((labels > 0) == member).mean())
    rows = np.arange(len(labels))
    return float(np.where(labels >= 0, member[rows, np.maximum(labels, 0)], ~member.any(axis=1)).mean())


def figures(run: Run, member: Member) -> dict[str, float]:
    """Of a finished run: on the test set, and of its labels."""
    tested = test_split(run)
    if tested is None:
        raise SystemExit(f"error: {run.path}: no test samples with scores")
    scores, y = tested.known()
    labels = np.array(run.read(CLEANED_LABELS))
    own = {"true labels": true_labels(labels, member).share, "right verdicts": right_verdicts(labels, member)}
    return {**headline(scores["capro"], y), **own}


def measure(
    bench: Bench, truth: Path, order: str, seed: int, answers: list[int]
) -> dict[int, dict[str, float]]:
    """One order of questions: the figures after each number of answers."""
    run = bench.run_of("review", order, ["method=plus"], seed)
    shutil.rmtree(log_file(run).parent, ignore_errors=True)  # of an earlier measurement
    PLAN.do(run, *PLAN.all_names(run), watch=bench.watch)
    table = load_table(run)
    member = membership(load_truth(truth, manifest_of(run)), table.names)
    rng = np.random.default_rng(seed_for(seed, "person"))
    found: dict[int, dict[str, float]] = {}
    asked = 0
    for count in sorted(answers):
        rows = _next(table, run, ORDERS[order](table, seed), count - asked)
        if rows:
            log = open_log(run)
            log.decide([answer(table, row, member, rng) for row in rows], person="made up")
            log.close()
            asked = count
            PLAN.do(run, *PLAN.all_names(run), watch=bench.watch)
            table = load_table(run)  # the queue follows
        found[count] = figures(run, member)
        shown = ", ".join(f"{name} {100 * value:.2f}" for name, value in found[count].items())
        print(f"{order:<7} seed {seed} {count:>4} answers: {shown}", flush=True)
    return found


def _next(table: ReviewTable, run: Run, order: NDArray[np.int64], count: int) -> list[int]:
    """The next questions of an order that have not been answered."""
    log = open_log(run)
    said = set(log.replay.decided())
    log.close()
    rows: list[int] = []
    for row in order.tolist():
        if len(rows) >= count:
            break
        if table.sample_id(row) not in said:
            rows.append(row)
    return rows


def main() -> None:
    parser = arguments(__doc__, data=["all", *SETS], seeds=1)
    parser.add_argument("--answers", nargs="+", type=int, default=[*ANSWERS])
    parser.add_argument("--orders", nargs="+", choices=[*ORDERS], default=[*ORDERS])
    args = parser.parse_args()
    for name in SETS if args.data == "all" else [args.data]:
        begin = time.monotonic()
        bench = bench_of(name, args.runs, args.set, seeds=args.seeds)
        truth = truth_of(bench)
        with only_one(bench.folder):
            found = {
                order: [measure(bench, truth, order, seed, args.answers) for seed in bench.seeds]
                for order in args.orders
            }
        print(f"\n{name}, mean over {args.seeds} seeds, {time.monotonic() - begin:.0f} s")
        print_table(found, args.answers)


def print_table(found: dict[str, list[dict[int, dict[str, float]]]], answers: list[int]) -> None:
    """Orders by numbers of answers, for every figure."""
    first = next(iter(found.values()))[0][min(answers)]
    for metric in first:
        print(f"{metric}, %".ljust(20) + "".join(f"{count:>9}" for count in sorted(answers)))
        for order, seeds in found.items():
            means = [
                100 * float(np.mean([each[count][metric] for each in seeds])) for count in sorted(answers)
            ]
            print(f"  {order:<18}" + "".join(f"{mean:9.2f}" for mean in means))


if __name__ == "__main__":
    main()
