"""The arithmetic of tables and claims, by hand, on scores that are written down."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from typing import Any

import pytest

from gpt1_jax.config import from_config
from gpt1_jax.finetune_config import FinetuneConfig
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.cells import Done, Score
from gpt1_jax.reproduce.claims import FAILS, HOLDS, MEDIANS, ONE_RUN, UNKNOWN, claims, compare
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.plan import Cell, Plan
from gpt1_jax.reproduce.scores import Scores, Spread, as_rows
from gpt1_jax.reproduce.series import curves
from gpt1_jax.reproduce.tables import Table, as_csv, as_text, tables
from gpt1_jax.reproduce.tasks import Scored

OWN = (Scored("Own", "test", "accuracy"),)
MNLI = (Scored("MNLI-m", "validation_matched", "accuracy"), Scored("MNLI-mm", "validation_mismatched", "accuracy"))


def config(**changes: Any) -> ReproduceConfig:
    own = {"title": "Own", "ablated": True, "layers": True, "zero_shot": "sst2"}
    return from_config(ReproduceConfig, {"tasks": {"own": own}, **changes})


def finetuned(task: str, variant: str, run: int, scored: tuple[Scored, ...], *values: float) -> Done:
    cell = Cell(f"finetune/{task}/{variant}/seed_{run}", "finetune", FinetuneConfig(seed=run))
    cell = Cell(**{**vars(cell), "task": task, "variant": variant, "run": run})
    return Done(cell, 1.0, tuple(Score(s.title, s.split, s.metric, v) for s, v in zip(scored, values, strict=True)))


def scores(done: list[Done], scored: dict[str, tuple[Scored, ...]] | None = None, **missing: str) -> Scores:
    found = {"own": OWN} if scored is None else scored
    return Scores(Plan((), missing, found, dict.fromkeys(found, 50.0), 2), tuple(done))


def own(values: dict[str, list[float]], scored: tuple[Scored, ...] = OWN) -> list[Done]:
    return [finetuned("own", v, run, scored, x) for v, xs in values.items() for run, x in enumerate(xs)]


def table(found: list[Table], name: str) -> Table:
    return next(each for each in found if each.name == name)


def test_median_and_range_over_the_seeds():
    odd, even = Spread((70.0, 75.0, 71.0)), Spread((70.0, 75.0, 71.0, 74.0))
    assert (odd.median, odd.low, odd.high) == (71.0, 70.0, 75.0)
    assert even.median == 72.5
    assert Spread.of({0: math.nan, 1: 3.0}) == Spread((3.0,))
    assert Spread.of({0: math.nan}) is None is Spread.of({})


def test_an_average_is_of_the_tasks_of_one_seed_after_another():
    done = [
        *(finetuned("own", "full", run, OWN, x) for run, x in enumerate((80.0, 60.0, 70.0))),
        *(finetuned("mnli", "full", run, MNLI, a, b) for run, (a, b) in enumerate(((40.0, 44.0), (50.0, 60.0)))),
    ]
    found = scores(done, {"own": OWN, "mnli": MNLI})
    assert found.task("mnli", "full") == {0: 42.0, 1: 55.0}
    assert found.column("mnli", "full", "MNLI-mm") == {0: 44.0, 1: 60.0}
    assert found.average(("own", "mnli"), "full") == {0: 61.0, 1: 57.5}  # seed 2 has no MNLI
    assert found.average(("own", "mnli"), "lstm") == {}


def test_a_task_without_all_its_columns_has_no_score_and_a_part_is_none_of_it():
    race = (Scored("RACE-m", "test", "accuracy", "middle"), Scored("RACE", "test", "accuracy"))
    done = [finetuned("mnli", "full", 0, MNLI[:1], 40.0), finetuned("race", "full", 0, race, 62.9, 59.0)]
    found = scores(done, {"mnli": MNLI, "race": race})
    assert found.task("mnli", "full") == {}
    assert found.task("race", "full") == {0: 59.0}


def test_glues_average_counts_every_task_once():
    tasks = {name: {"task": {"name": name}} for name in paper.GLUE}
    done, scored = [], {}
    for name in paper.GLUE:
        scored[name] = MNLI if name == "mnli" else (Scored(name, "validation", "accuracy"),)
        if name in ("mrpc", "qqp"):
            scored[name] = (Scored(name, "validation", "f1"),)
        if name == "stsb":
            scored[name] = (Scored(name, "validation", "pearson"),)
        both = scored[name] + (
            (Scored(name, "validation", paper.GLUE_SECOND[name][0]),) if name in paper.GLUE_SECOND else ()
        )
        values = {"mnli": (82.0, 81.0), "mrpc": (82.0, 76.0), "stsb": (82.0, 80.0), "qqp": (70.0, 88.0)}.get(
            name, (50.0,)
        )
        done.append(finetuned(name, "full", 0, both, *values))
    found, names = scores(done, scored), dict.fromkeys(paper.GLUE)
    names = {name: name for name in names}
    eight = 4 * 50 + 79 + 81 + 79 + 81.5
    assert found.glue(names, None) == {0: pytest.approx(eight / 8)}
    assert found.glue(names, 65.0) == {0: pytest.approx((eight + 65) / 9)}
    rows = {row[0]: row for row in table(tables(config(tasks=tasks), found), "table4").rows}
    assert rows["GLUE without WNLI"][3] == pytest.approx(601.95 / 8)  # the paper's, see paper_test
    assert rows["GLUE without WNLI"][4] == Spread((eight / 8,))
    rows = {row[0]: row for row in table(tables(config(tasks=tasks, wnli=65.0), found), "table4").rows}
    assert (rows["GLUE"][3], rows["mrpc"] if "mrpc" in rows else rows["MRPC"][3]) == (72.8, 82.3)
    del names["rte"]
    assert found.glue(names, None) == {}


def test_the_papers_tables_have_its_scores_beside_ours_and_say_what_is_missing():
    tasks = {name: {"task": {"name": name}} for name in ("mnli", "rte")}
    found = scores(
        [finetuned("mnli", "full", run, MNLI, x, 80.0) for run, x in enumerate((70.0, 72.0))],
        {"mnli": MNLI},
        rte="get it",
    )
    table2 = table(tables(config(tasks=tasks), found), "table2")
    assert table2.rows[0] == ("MNLI-m", "accuracy", "validation_matched", 82.1, Spread((70.0, 72.0)), "-11.1")
    assert table2.rows[2][0] == "RTE"
    assert table2.rows[2][3:] == (56.0, None, None)
    assert "RTE was not run: get it" in table2.notes
    assert any("validation split" in note for note in table2.notes)
    assert not any(each.name in ("table3", "table4", "own_tasks") for each in tables(config(tasks=tasks), found))
    line = as_text(table2).splitlines()[4]
    assert line.split() == ["MNLI-m", "accuracy", "validation_matched", "82.1", "71.0", "(70.0–72.0)", "-11.1"]
    rows = list(csv.reader(io.StringIO(as_csv(table2))))
    assert rows[0][4:8] == ["Ours median", "Ours min", "Ours max", "Ours runs"]
    assert [float(x) for x in rows[1][4:8]] == [71.0, 70.0, 72.0, 2.0]
    assert rows[3][4:8] == ["", "", "", ""]


@pytest.mark.parametrize(
    ("higher", "lower", "verdict"),
    [
        ((71, 72, 73), (60, 70, 70.9), HOLDS),
        ((71, 72, 73), (60, 71.5, 71), MEDIANS),
        ((70, 72, 73), (60, 70, 61), MEDIANS),  # the lowest is as high as the highest
        ((71, 72, 73), (72, 72, 72), FAILS),
        ((71, 72, 73), (73, 74, 75), FAILS),
        ((72,), (71,), ONE_RUN),
        ((72,), (72,), FAILS),
        ((72, 73), None, UNKNOWN),
    ],
)
def test_an_order_holds_only_where_the_numbers_say_so(higher, lower, verdict):
    assert compare(Spread(higher), lower and Spread(lower))[0] == verdict


def test_claims_turn_with_the_numbers():
    values = {"full": [75.0, 76.0], "no_pretraining": [55.0, 60.0], "lstm": [70.0, 75.5], "no_aux_lm": [74.0, 75.0]}
    values |= {"transfer_0": [61.0, 62.0], "transfer_1": [70.0, 71.0]}

    def verdicts(values: dict[str, list[float]]) -> list[str]:
        return [claim.verdict for claim in claims(config(), scores(own(values)))]

    assert verdicts(values) == [HOLDS, MEDIANS, HOLDS, FAILS, HOLDS, HOLDS, HOLDS]
    assert verdicts({**values, "transfer_1": [60.0, 61.0]})[-1] == FAILS
    swapped = {**values, "full": values["no_pretraining"], "no_pretraining": values["full"]}
    assert verdicts(swapped)[0] == FAILS
    assert verdicts({"full": [75.0]})[:4] == [UNKNOWN] * 4
    details = [claim.detail for claim in claims(config(), scores(own(values)))]
    assert details[0] == "75.5 (75.0–76.0) against 57.5 (55.0–60.0)"
    assert details[-1] == "3 of 3 steps go up: 57.5, 61.5, 70.5, 75.5"


def curve(trunk: str, values: list[float], n_examples: int = 0) -> Done:
    cell = Cell(f"zero_shot/{trunk}/own", "zero_shot", None, task="own", variant=trunk)
    points = tuple(Score("Own", "test", "accuracy", v, n_examples, 100 * (i + 1)) for i, v in enumerate(values))
    return Done(cell, 1.0, points)


def test_what_cannot_be_told_from_guessing_shows_nothing():
    rising = [50.0, 50.0, 51.0, 52.0, 53.0, 54.0]
    done = [curve("lstm", [50.0, 51.0], 100), *own({"full": [75.0]})]

    def verdicts(n_examples: int) -> list[str]:
        found = scores([curve("transformer", rising, n_examples), *done])
        return [claim.verdict for claim in claims(config(parts=["figure2_right"]), found)]

    assert verdicts(600) == [UNKNOWN, UNKNOWN]  # two standard errors are 4.1 points
    assert verdicts(650) == [ONE_RUN, ONE_RUN]  # 3.9
    assert verdicts(0) == [ONE_RUN, ONE_RUN]


def test_a_random_guess_is_of_as_many_classes_as_the_data_have():
    zero_shot = curve("transformer", [30.0, 40.0, 50.0, 60.0])

    def found(n_classes: int) -> Scores:
        of_a_run = dataclasses.replace(finetuned("own", "full", 0, OWN, 80.0).scores[0], classes=n_classes)
        run = dataclasses.replace(finetuned("own", "full", 0, OWN, 80.0), scores=(of_a_run,))
        return Scores(Plan((), {}, {"own": OWN}, {"own": None}, 2), (zero_shot, run))

    def random_guess(n_classes: int) -> Any:
        own = {"own": {"task": {"train": ["a.csv"]}, "zero_shot": "sst2"}}
        return table(tables(config(parts=["tables"], tasks=own), found(n_classes)), "own_tasks").rows[0][3]

    assert random_guess(4) == 25.0
    assert random_guess(0) is None
    right = config(parts=["figure2_right"])
    (line,) = curves(right, found(4))
    assert line.relative(52.5) == 0.5
    (line,) = curves(right, found(0))
    assert line.relative(52.5) is None
    assert [claim.verdict for claim in claims(right, found(0))] == [UNKNOWN]
    assert [claim.verdict for claim in claims(right, found(4))] == [ONE_RUN]
    assert table(tables(right, found(0)), "figure2_right").rows[0] == ("100", 30.0, None)


def test_zero_shot_scores_are_normalised_between_a_random_guess_and_the_best():
    done = [curve("transformer", [50.0, 52.0, 55.0, 60.0]), curve("lstm", [50.0, 50.0, 52.0, 55.0])]
    found = scores([*done, *own({"full": [75.0, 90.0, 70.0]})])
    (line, _) = curves(config(), found)
    assert (line.chance, line.ceiling) == (50.0, 75.0)  # the median of the fine-tuned ones
    assert [line.relative(value) for _, value in line.points] == pytest.approx([0.0, 0.08, 0.2, 0.4])
    assert [claim.verdict for claim in claims(config(parts=["figure2_right"]), found)] == [ONE_RUN, ONE_RUN]
    given = {"tasks": {"own": {"title": "Own", "zero_shot": "sst2", "ceiling": 100.0}}}
    assert curves(config(**given), scores(done))[0].relative(60.0) == pytest.approx(0.2)
    assert curves(config(), scores(done))[0].relative(60.0) is None
    right = table(tables(config(parts=["figure2_right"]), found), "figure2_right")
    columns = [name for trunk in ("Transformer", "LSTM") for name in (f"{trunk}, Own", f"{trunk}, Own, relative")]
    assert right.head == ("Updates", *columns)
    assert right.rows[3] == ("400", 60.0, "0.400", 55.0, "0.200")


def test_every_score_and_what_diverged_is_a_row():
    done = own({"full": [75.0]})
    done.append(
        Done(
            Cell("finetune/own/full/seed_1", "finetune", FinetuneConfig(seed=1), task="own", variant="full"),
            1.0,
            (),
            "nan",
        )
    )
    rows = as_rows(done)
    assert [(row["seed"], row["percent"]) for row in rows] == [(0, 75.0), (1, "diverged")]
