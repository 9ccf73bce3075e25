"""The paper's own numbers agree with each other: what it prints as averages is what its scores come to."""

from __future__ import annotations

import pytest

from gpt1_jax.reproduce import paper
from gpt1_jax.tasks.config import DATA_SETS


@pytest.mark.parametrize("row", paper.VARIANTS)
def test_the_averages_of_table_5_are_the_means_of_its_rows(row):
    assert paper.mean(paper.TABLE5[row], paper.GLUE) == pytest.approx(paper.TABLE5_AVERAGE[row], abs=0.07)


def test_table_5s_first_row_is_that_of_tables_2_and_4():
    scores = {}
    for column in (*paper.TABLES["table2"], *paper.TABLES["table4"]):
        scores.setdefault(column.task, []).append(column.score)
    for task, score in paper.TABLE5["full"].items():
        assert score == pytest.approx(sum(scores[task]) / len(scores[task]), abs=0.051)  # MNLI: 81.75, printed 81.8


def test_glues_average_of_nine_tasks_is_the_one_that_is_printed():
    """45.4, 91.3, MRPC (82.3 + 75.7) / 2, STS-B 81, QQP 79.4, MNLI 81.75, 88.1, 56, WNLI 53.4: 655.35 / 9."""
    scores = {"cola": 45.4, "sst2": 91.3, "mrpc": 79.0, "stsb": 81.0, "qqp": 79.4, "mnli": 81.75, "qnli": 88.1}
    assert paper.glue_score({**scores, "rte": 56.0}, wnli=paper.GLUE_WNLI) == pytest.approx(655.35 / 9)
    assert paper.glue_score({**scores, "rte": 56.0}, wnli=paper.GLUE_WNLI) == pytest.approx(paper.GLUE_SCORE, abs=0.05)
    assert paper.glue_score({**scores, "rte": 56.0}, wnli=None) == pytest.approx(601.95 / 8)
    assert paper.glue_score(scores, wnli=53.4) is None


def test_scores_are_those_of_the_data_sets():
    """Each is written once for a run's results.json and once for the tables."""
    known = {(data_set.name, split, metric): score for data_set in DATA_SETS
             for split, scores in data_set.paper.items() for metric, score in scores.items()}  # fmt: skip
    columns = [column for table in paper.TABLES.values() for column in table]
    for column in columns:
        name = f"race_{column.ids}" if column.task == "race" and column.ids else column.task
        assert known.pop((name, column.split, column.metric)) == column.score
    assert not known
    assert len({column.task for column in columns}) == 12
