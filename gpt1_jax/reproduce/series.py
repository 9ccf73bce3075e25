"""The points of figure 2: scores over layers transferred, and zero-shot scores over the updates of pre-training."""

from __future__ import annotations

import dataclasses

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
      chance: the score that is 0 in the figure, in percent.
      ceiling: the score that is 1, in percent; None where it is not known.
      points: updates to scores in percent, in order; None for weights whose history is not there.
    """

    trunk: str
    task: str
    title: str
    chance: float
    ceiling: float | None
    points: tuple[tuple[int | None, float], ...]

    def relative(self, score: float) -> float | None:
        """How far a score is from a random guess to the best of single models: 0 to 1, as in the paper's figure."""
        if self.ceiling is None or self.ceiling <= self.chance:
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
            points = tuple((score.step, score.value) for score in scores.curve(trunk, task))
            if points:
                chance = scores.plan.chance[task]
                found.append(
                    Curve(trunk, task, config.title(task), chance, _ceiling(scores, task, entry.ceiling), points)
                )
    return found


def _ceiling(scores: Scores, task: str, given: float | None) -> float | None:
    """What was given, or what the fine-tuned Transformer comes to here."""
    if given is not None:
        return given
    finetuned = Spread.of(scores.task(task, "full"))
    return None if finetuned is None else finetuned.median
