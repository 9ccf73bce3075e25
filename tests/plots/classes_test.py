"""Pictures of what a classifier gets right and wrong."""

import numpy as np

from gpt1_jax.plots.classes import confusion_figure, reliability_figure
from gpt1_jax.tasks.report import class_report

# Confusion: bad 3 right, 1 taken for good; good 2 right, 2 taken for bad.
LABELS = np.array([0, 0, 0, 0, 1, 1, 1, 1])
PROBABILITIES = np.array([[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3 + [[0.6, 0.4]] * 2)


def test_the_confusion_matrix_shows_every_count_and_name():
    axes = confusion_figure(class_report(LABELS, PROBABILITIES, ["bad", "good"]), "test").axes[0]
    assert [text.get_text() for text in axes.texts] == ["3\n75.0 %", "1\n25.0 %", "2\n50.0 %", "2\n50.0 %"]
    assert [text.get_position() for text in axes.texts] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["bad", "good"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted", "true")
    assert axes.get_title() == "test: 5 of 8 right (62.5 %)"
    assert axes.images[0].get_array().tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_the_reliability_diagram_shows_every_bin():
    report = class_report(LABELS, PROBABILITIES, ["bad", "good"])
    figure = reliability_figure(report, "test")
    axes, below = figure.axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == report["reliability"]["accuracy"]
    assert [bar.get_height() for bar in below.patches] == report["reliability"]["count"]
    # 3 at 0.9 are right, 2 of 3 at 0.8, none of 2 at 0.6: (3 * 0.1 + 3 * (0.8 - 2 / 3) + 2 * 0.6) / 8 = 0.2375
    assert figure.get_suptitle() == "test: expected calibration error 23.8 %"
