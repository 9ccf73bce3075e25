"""What a fine-tuned model answers to one example of its task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gpt1_jax.data.buckets import powers_of_two
from gpt1_jax.errors import InputError
from gpt1_jax.evaluate import encode_examples
from gpt1_jax.playground.models import Loaded, check_text
from gpt1_jax.sharding import one_device_mesh
from gpt1_jax.task_evaluator import TaskEvaluator
from gpt1_jax.tasks.spec import OPTIONAL_FIELDS


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is predicted.

    Attributes:
      probabilities: of each class, in class order, or of each answer under its text; none for a score.
      score: of a task of scores.
      n_cut: tokens of the example that did not fit into the model.
    """

    probabilities: Mapping[str, float]
    score: float | None
    n_cut: int


def classify(loaded: Loaded, texts: Mapping[str, str]) -> Answer:
    """Answers one example.

    One example at a time, its length rounded up to a power of two: texts of other lengths seldom compile anything.

    Args:
      loaded: a fine-tuned model.
      texts: each of `loaded.fields` as it was typed; "answers" has one in each line, blank lines do not count.

    Raises:
      InputError: the model has no task head, a text is missing, or the example does not fit the model.
    """
    model = loaded.model
    texts = {field: check_text(name, texts.get(field, "")) for field, name in loaded.fields.items()}
    for field, name in loaded.fields.items():
        if field not in OPTIONAL_FIELDS and not texts[field].strip():
            raise InputError(f"{name} is empty; fill it in")
    answers: list[str] = []
    if "answers" in texts:
        lines = [line.strip() for line in texts["answers"].splitlines()]
        answers = [line for line in lines if line]
        if len(answers) < 2:
            raise InputError(f"{loaded.fields['answers']}: one answer; a choice needs at least two, each in its line")
    example = {**texts, "answers": answers} if "answers" in texts else texts
    try:
        split = encode_examples(model, loaded.tokenizer, [example])
    except InputError as error:
        raise InputError(str(error).removeprefix("examples[0]: ")) from None
    mesh = one_device_mesh()
    evaluator = TaskEvaluator(model, mesh, split, batch_size=1, buckets=powers_of_two(model.config.n_ctx))
    predicted = evaluator(loaded.params)[0][0]
    if model.task_readout.score_range is not None:
        return Answer({}, float(predicted), split.n_cut)
    names = list(model.task_readout.labels)
    if answers:
        names = names or [str(i) for i in range(len(answers))]
        names = [f"{name}: {text}" for name, text in zip(names, answers, strict=False)]
    return Answer(dict(zip(names, predicted.tolist(), strict=False)), None, split.n_cut)
