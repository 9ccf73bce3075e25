"""The points of figure 2: scores over layers transferred, and zero-shot scores over the updates of pre-training."""

from __future__ import annotations

import dataclasses
import math

from gpt1_jax.reproduce.cells import Score
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.plan import TRANSFER, TRUNKS
from gpt1_jax.reproduce.scores import Scores, Spread


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of figure 2, right.

    Attributes:
      trunk: "transformer" or "lstm".
      task: its name.
      title: how it is called.
      chance: the score that is 0 in the figure, in percent; None where it is not known.
      ceiling: the score that is 1, in percent; None where it is not known.
      points: updates to scores in percent, in order; None for weights whose history is not there.
      noise: how far from chance a guess may be, in percent: two standard errors of an accuracy on as many examples; 0
        for other metrics, and where their number is not told.
    """

    trunk: str
    task: str
    title: str
    chance: float | None
    ceiling: float | None
    points: tuple[tuple[int | None, float], ...]
    noise: float = 0.0

    @property
    def is_guessing(self) -> bool:
        """Whether no point can be told from a random guess."""
        if self.chance is None:
            return True
        return all(abs(score - self.chance) <= self.noise for _, score in self.points)

    def relative(self, score: float) -> float | None:
        """How far a score is from a random guess to the best of single models: 0 to 1, as in the paper's figure."""
        if self.chance is None or self.ceiling is None or self.ceiling <= self.chance:
            return None
        return (score - self.chance) / (self.ceiling - self.chance)


def layer_points(scores: Scores, task: str, *, train: bool = False) -> dict[int, Spread]:
    """Layers transferred to the scores: -1 nothing at all, 0 the embeddings only."""
    plan, read = scores.plan, scores.train if train else scores.task
    variants = {-1: "no_pretraining", **{k: f"{TRANSFER}{k}" for k in range(plan.n_layer)}, plan.n_layer: "full"}
    found = {k: Spread.of(read(task, variant)) for k, variant in variants.items()}
    return {k: spread for k, spread in found.items() if spread is not None}


def curves(config: ReproduceConfig, scores: Scores) -> list[Curve]:
    """The zero-shot curves that have points."""
    found = []
    for trunk in TRUNKS:
        for task, entry in config.tasks.items():
            asked = scores.curve(trunk, task)
            if asked:
                chance, ceiling = scores.chance(task), _ceiling(scores, task, entry.ceiling)
                points = tuple((score.step, score.value) for score in asked)
                found.append(Curve(trunk, task, config.title(task), chance, ceiling, points, _noise(asked[-1], chance)))
    return found


def _noise(score: Score, chance: float | None) -> float:
    if chance is None or score.metric != "accuracy" or not score.examples:
        return 0.0
    return 2 * math.sqrt(chance * (100 - chance) / score.examples)


def _ceiling(scores: Scores, task: str, given: float | None) -> float | None:
    """What was given, or what the fine-tuned Transformer comes to here."""
    if given is not None:
        return given
    finetuned = Spread.of(scores.task(task, "full"))
    return None if finetuned is None else finetuned.median
