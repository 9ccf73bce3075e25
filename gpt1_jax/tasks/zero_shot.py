r"""Zero-shot heuristics (paper, section 5, "Zero-shot Behaviors"): a task asked as a question to the language model.

A heuristic turns an example into candidates, texts whose last part is scored by its log-probability given the rest:

| name | candidates | score | prediction |
|---|---|---|---|
| cola | the sentence | mean | above a threshold, chosen on the training split: the last of two labels |
| sst2 | text + "very" + each of "negative", "positive" | total | the likelier word |
| race, multiple_choice | context + question + each answer | mean | the likeliest answer |
| winograd | text with the pronoun replaced by each option; what follows it is scored | mean | the likeliest rest |
| a template | the template with each label's words, see `prompt` | mean | the likeliest label |

"Mean" is per scored token, "total" the log-probability of all of them: for words of one token each, as in the paper's
SST-2, the same as restricting the model's output to these words.

Winograd data are multiple choice: rows such as

    {"text": "The trophy does not fit into the bag because [it] is too big .", "options": ["the trophy", "the bag"],
     "label": 0}

with the pronoun in square brackets, or "_" in its place; the label is the number of the right option, from 0 (other
names: `labels`). The option takes the place of the brackets as it is written.

    python launch/evaluate.py --checkpoint=runs/books --zero_shot=cola --task=cola --data=glue/CoLA
    python launch/evaluate.py --checkpoint=runs/books --zero_shot=sst2 --data=reviews.csv \
        --field=text=review --label=sentiment --predictions=out
    python launch/evaluate.py --checkpoint=runs/books --zero_shot='{text} It was {label} .' --data=reviews.csv \
        --field=text=review --label=sentiment --label_words=negative=bad --label_words=positive=good

How texts become tokens. A candidate has three parts, see `Candidate`; each is encoded by itself, without the spaces
around it, so every part starts and ends at a word boundary, as the parts of a fine-tuning stream do, and a part has the
same tokens whatever stands beside it. In front stands the tokenizer's document separator, if it has one: the text
starts where a document starts, and its first token has a probability too. Without a separator the first token of the
whole only conditions. No special token (start, delimiter, extract) is used, also for a fine-tuned model.
"""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from gpt1_jax.errors import InputError, did_you_mean, quoted
from gpt1_jax.tasks.examples import Example
from gpt1_jax.tasks.spec import FIELDS, KINDS, Kind

Score = Literal["mean", "total"]


class Candidate(NamedTuple):
    """A text in three parts, of which the last is scored.

    Attributes:
      context: conditions; loses tokens from its left where the whole is longer than the model's context.
      kept: conditions, and is never cut.
      scored: its log-probability given the others is what counts.
    """

    context: str
    kept: str
    scored: str


@dataclasses.dataclass(frozen=True)
class Heuristic:
    """How a task is put to the language model.

    Attributes:
      name: shown in messages.
      kind: of the examples.
      candidates: (example, label names) -> its candidates, one per label or answer; just one with `by_threshold`.
      score: "mean" or "total" log-probability of the scored tokens.
      by_threshold: one candidate; its score is compared with a threshold that training examples decide.
      labels: label names of files that do not say others.
      columns: field to column, of files that do not say others.
      metrics: likewise.
      template: the prompt's, if it is one.
      words: the prompt's label name to words; empty where the names stand for themselves.
    """

    name: str
    kind: Kind
    candidates: Callable[[Example, Sequence[str]], list[Candidate]]
    score: Score = "mean"
    by_threshold: bool = False
    labels: tuple[str, ...] = ()
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metrics: tuple[str, ...] = ("accuracy",)
    template: str = ""
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the score."""
        if self.score not in get_args(Score):
            raise InputError(f"score={self.score!r} is unknown; use one of {list(get_args(Score))}")

    def check_labels(self, labels: Sequence[str]) -> None:
        """Refuses label names that the heuristic cannot tell apart.

        Raises:
          InputError: there are too few or too many of them, or one has no words.
        """
        if self.kind != "multiple_choice" and len(labels) < 2:
            raise InputError(f"labels={list(labels)}: at least two names are needed; give them, or words for them")
        if self.by_threshold and len(labels) != 2:
            raise InputError(
                f"labels={list(labels)}: a threshold tells two labels apart, of which the last is above it"
            )
        missing = [label for label in labels if self.words and label not in self.words]
        if missing:
            raise InputError(
                f"label_words: none for the label {missing[0]!r}; there are words for {quoted(self.words)}; each label "
                "needs its own"
            )


def prompt(template: str, words: Mapping[str, str] | None = None, *, score: Score = "mean") -> Heuristic:
    """A heuristic from a template, such as "{text} It was {label}".

    What is scored is the label's words and all that follows them in the template: as the text before them is the same
    for every label, P(label | the rest) is in proportion to it. The context, which may lose tokens from its left, ends
    with the template's first field; further fields and words before the label are never cut.

    Args:
      template: holds {label} once, and fields of one task kind (`tasks.spec.FIELDS`). For multiple choice {answer}
        takes the place of {label}. A brace is written twice.
      words: label name to what stands for it; None: the names themselves.
      score: "mean" or "total", see the module.

    Raises:
      InputError: the template or a label's words cannot be used.
    """
    words = dict(words or {})
    for label, word in words.items():
        if not word.strip():
            raise InputError(f"label_words[{label!r}] is empty; give at least one word")
    parts, kind = _parse(template)
    target = _target(kind)
    if target == "answer" and words:
        raise InputError(f"label_words={words!r}: the answers stand for themselves in {template!r}; leave it out")

    def candidates(example: Example, labels: Sequence[str]) -> list[Candidate]:
        if target == "answer":
            fillings: Sequence[str] = example.answers
        else:
            fillings = [words.get(label, label) for label in labels]
        return [_fill(parts, {**example.texts, target: filling}, target) for filling in fillings]

    return Heuristic("prompt", kind, candidates, score, labels=tuple(words), template=template, words=words)


def make_heuristic(name: str, words: Mapping[str, str] | None = None, score: Score | None = None) -> Heuristic:
    """A heuristic by its name in `ZERO_SHOT`, or from a template.

    Args:
      name: a name, or a template: what holds a brace.
      words: label name to words, for a template and for "sst2".
      score: "mean" or "total" in place of the heuristic's own.

    Raises:
      InputError: the name is unknown, or the template or the words cannot be used.
    """
    if "{" in name or "}" in name:
        return prompt(name, words, score=score or "mean")
    if name not in ZERO_SHOT:
        raise InputError(
            f"zero_shot={name!r} is unknown; use one of {quoted(ZERO_SHOT)}, or a template such as "
            f"'{{text}} It was {{label}}'{did_you_mean(name, ZERO_SHOT)}"
        )
    heuristic = ZERO_SHOT[name]
    if words:
        if not heuristic.template:
            raise InputError(f"label_words={dict(words)!r}: zero_shot={name!r} has no words for labels; leave them out")
        heuristic = dataclasses.replace(prompt(heuristic.template, words, score=heuristic.score), name=name)
    return dataclasses.replace(heuristic, score=score) if score else heuristic


_Part = tuple[str, str | None]  # literal text, and the field after it
_CHOICE_FIELDS = ("context", "question", "answer")


def _target(kind: str) -> str:
    return "answer" if kind == "multiple_choice" else "label"


def _parse(template: str) -> tuple[list[_Part], Kind]:
    """The parts of a template, and the kind whose fields it has."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"template {template!r}: {error}; a brace that is meant as such is written twice") from None
    names = [field for _, field, _, _ in parsed if field is not None]
    known = {kind: _CHOICE_FIELDS if kind == "multiple_choice" else (*FIELDS[kind], "label") for kind in KINDS}
    kinds = [kind for kind, fields in known.items() if set(names) <= set(fields)]
    plain = not any(spec or conversion for _, _, spec, conversion in parsed)
    if len(kinds) != 1 or names.count(_target(kinds[0])) != 1 or not plain:
        forms = "; ".join(f"{kind}: {', '.join(f'{{{f}}}' for f in fields)}" for kind, fields in known.items())
        raise InputError(
            f"template {template!r} has {', '.join(f'{{{name}}}' for name in names) or 'no fields'}; it needs the last "
            f"field of one of these kinds once, and at least one other of it: {forms}"
        )
    return [(literal, field) for literal, field, _, _ in parsed], kinds[0]


def _fill(parts: Sequence[_Part], values: Mapping[str, str], target: str) -> Candidate:
    """The template as a candidate; punctuation that touches the first field belongs to the context."""
    context = kept = scored = ""
    in_target = after_field = False
    for literal, field in parts:
        if in_target:
            scored += literal
        elif after_field and not kept:
            touching = len(literal) if (space := re.search(r"\s", literal)) is None else space.start()
            context, kept = context + literal[:touching], literal[touching:]
        elif after_field:
            kept += literal
        else:
            context += literal
        if field is None:
            continue
        in_target = in_target or field == target
        if in_target:
            scored += values[field]
        elif after_field:
            kept += values[field]
        else:
            context += values[field]
            after_field = True
    return Candidate(context, kept, scored)


def _cola(example: Example, labels: Sequence[str]) -> list[Candidate]:
    del labels
    return [Candidate("", "", example.texts["text"])]


_PRONOUN = re.compile(r"\[[^\[\]]*\]|(?<![^\W_])_+(?![^\W_])")


def _winograd(example: Example, labels: Sequence[str]) -> list[Candidate]:
    del labels
    text = " ".join(part for part in (example.texts["context"], example.texts["question"]) if part)
    marks = list(_PRONOUN.finditer(text))
    if len(marks) != 1:
        raise InputError(
            f"{len(marks)} pronouns are marked in {text!r:.100}; mark one, as in 'because [it] is too big' or 'because "
            "_ is too big'"
        )
    before, after = text[: marks[0].start()], text[marks[0].end() :]
    if not after.strip():
        raise InputError(f"nothing follows the pronoun in {text!r:.100}; the rest of the text is what is compared")
    return [Candidate(before, option, after) for option in example.answers]


_CHOICE = dataclasses.replace(prompt("{context} {question} {answer}"), name="race", labels=("A", "B", "C", "D"))

ZERO_SHOT: Mapping[str, Heuristic] = {
    "cola": Heuristic("cola", "classification", _cola, by_threshold=True, labels=("0", "1"), metrics=("matthews",)),
    "sst2": dataclasses.replace(
        prompt(
            "{text} very {label}",
            {"negative": "negative", "positive": "positive", "0": "negative", "1": "positive"},
            score="total",
        ),
        name="sst2",
        labels=("negative", "positive"),
    ),
    "race": _CHOICE,
    "multiple_choice": dataclasses.replace(_CHOICE, name="multiple_choice", labels=()),
    "winograd": Heuristic(
        "winograd",
        "multiple_choice",
        _winograd,
        labels=("0", "1"),
        columns={"context": "text", "answers": "options"},
    ),
}
"""Name -> heuristic, see the table above."""
