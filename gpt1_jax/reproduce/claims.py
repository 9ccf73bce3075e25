"""Whether the paper's order holds in the numbers that were found; never said beforehand.

A claim is one side above another. It "holds" where the lowest run of the one is above the highest of the other, "holds
by the medians" where only the medians are, and "does not hold" otherwise; of single runs "holds in one run". With three
seeds on a side, two sides that do not differ would be told apart in one of twenty cases. What cannot be told from
guessing is "not known".
"""

from __future__ import annotations

import dataclasses
import itertools

from gpt1_jax.errors import counted
from gpt1_jax.reproduce import paper
from gpt1_jax.reproduce.config import ReproduceConfig
from gpt1_jax.reproduce.scores import Scores, Spread
from gpt1_jax.reproduce.series import curves, layer_points

HOLDS, MEDIANS, ONE_RUN, FAILS, UNKNOWN = (
    "holds",
    "holds by the medians",
    "holds in one run",
    "does not hold",
    "not known",
)


@dataclasses.dataclass(frozen=True)
class Claim:
    """What the paper finds, and what was found here.

    Attributes:
      part: where the paper has it: "table5", "figure2_left" or "figure2_right".
      text: what the paper finds.
      verdict: one of the module's five.
      detail: the numbers behind it.
    """

    part: str
    text: str
    verdict: str
    detail: str


def claims(config: ReproduceConfig, scores: Scores) -> list[Claim]:
    """All claims of the parts that were asked for."""
    found = []
    if "table5" in config.parts:
        found += _of_table5(config, scores)
    if "figure2_left" in config.parts:
        for task in (name for name, entry in config.tasks.items() if entry.layers and name in scores.plan.scored):
            found += _of_layers(config, scores, task)
    if "figure2_right" in config.parts:
        found += _of_zero_shot(config, scores)
    return found


def compare(higher: Spread | None, lower: Spread | None) -> tuple[str, str]:
    """(verdict, numbers) of one side above another."""
    if higher is None or lower is None:
        return UNKNOWN, "one of the two sides has no run"
    detail = f"{shown(higher)} against {shown(lower)}"
    if higher.median <= lower.median:
        return FAILS, detail
    if min(len(higher.values), len(lower.values)) == 1:
        return ONE_RUN, detail
    return (HOLDS if higher.low > lower.high else MEDIANS), detail


def shown(spread: Spread) -> str:
    """`75.8 (74.9-75.8)`, median and range, or the one value."""
    if len(spread.values) == 1:
        return f"{spread.median:.1f}"
    return f"{spread.median:.1f} ({spread.low:.1f}–{spread.high:.1f})"


def _of_table5(config: ReproduceConfig, scores: Scores) -> list[Claim]:
    tasks = [name for name, entry in config.tasks.items() if entry.ablated and name in scores.plan.scored]
    if not tasks:
        return []
    over = f", mean of {len(tasks)} tasks" if len(tasks) > 1 else ""
    sides = {variant: Spread.of(scores.average(tasks, variant)) for variant in paper.VARIANTS}
    pairs = (
        ("full", "no_pretraining", "pre-training raises the score"),
        ("full", "lstm", "the Transformer is above the LSTM"),
        ("lstm", "no_pretraining", "the pre-trained LSTM is above the Transformer from scratch"),
        ("no_aux_lm", "full", "without the auxiliary objective the average is a little higher (0.3 points)"),
    )
    return [Claim("table5", f"{text}{over}", *compare(sides[a], sides[b])) for a, b, text in pairs]


def _of_layers(config: ReproduceConfig, scores: Scores, task: str) -> list[Claim]:
    title, points = config.title(task), layer_points(scores, task)
    none, embeddings, full = points.get(-1), points.get(0), points.get(scores.plan.n_layer)
    medians = [points[k].median for k in sorted(points)]
    ups = sum(b > a for a, b in itertools.pairwise(medians))
    steps = len(medians) - 1
    if steps < 1:
        verdict = UNKNOWN
    elif ups == steps:
        over_all = compare(full, none)[0]
        verdict = over_all if over_all in (HOLDS, ONE_RUN) else MEDIANS
    else:
        verdict = FAILS
    return [
        Claim("figure2_left", f"{title}: transferring the embeddings helps", *compare(embeddings, none)),
        Claim(
            "figure2_left",
            f"{title}: transferring all layers is above the embeddings alone",
            *compare(full, embeddings),
        ),
        Claim(
            "figure2_left",
            f"{title}: every further layer helps",
            verdict,
            f"{ups} of {steps} steps go up: " + ", ".join(f"{median:.1f}" for median in medians),
        ),
    ]


def _of_zero_shot(config: ReproduceConfig, scores: Scores) -> list[Claim]:
    found: list[Claim] = []
    ends: dict[str, dict[str, float]] = {}
    found_curves = curves(config, scores)
    for curve in found_curves:
        values = [value for _, value in curve.points]
        if (end := curve.relative(values[-1])) is not None:
            ends.setdefault(curve.trunk, {})[curve.task] = 100 * end
        if curve.trunk == "transformer" and len(values) > 1:
            third = max(1, len(values) // 3)
            first, last = (Spread(tuple(part)) for part in (values[:third], values[-third:]))
            text = (
                f"{curve.title}: zero-shot performance rises with pre-training (last third of the points, first third)"
            )
            verdict, detail = compare(last, first)
            if curve.chance is None:
                verdict, detail = UNKNOWN, f"{detail}; a random guess is not known: set its chance in the config"
            elif curve.is_guessing:
                verdict, detail = UNKNOWN, f"{detail}; all within {curve.noise:.1f} of a random guess, as guessing is"
            elif verdict in (HOLDS, MEDIANS):
                verdict = ONE_RUN  # whose points are not runs of their own
            found.append(Claim("figure2_right", text, verdict, detail))
    tasks = sorted(ends.get("transformer", {}).keys() & ends.get("lstm", {}).keys())
    if tasks:
        sides = [Spread((sum(ends[t][task] for task in tasks) / len(tasks),)) for t in ("transformer", "lstm")]
        verdict, detail = compare(*sides)
        if all(curve.is_guessing for curve in found_curves if curve.task in tasks):
            verdict = UNKNOWN
        text = f"at the end the Transformer is above the LSTM (relative performance, {counted(len(tasks), 'task')})"
        found.append(Claim("figure2_right", text, verdict, f"{detail} % of the way from chance to the best"))
    return found
