"""32 examples of every kind are learned by heart; neither the order of a pair nor that of the answers matters."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import train_batches
from gpt1_jax.losses import task_objective
from gpt1_jax.model import GPT1, GPT1Config, ReadOut
from gpt1_jax.sharding import MeshConfig, make_mesh
from gpt1_jax.task_data import encode_task_split
from gpt1_jax.task_evaluator import TaskEvaluator, task_metrics
from gpt1_jax.tasks.examples import Example
from gpt1_jax.tasks.spec import FIELDS, Source, TaskSpec

N = 32
CONFIG = GPT1Config(
    vocab_size=100,
    n_special=3,
    n_ctx=24,
    n_embd=32,
    n_head=4,
    n_layer=1,
    **{f"{name}_pdrop": 0.0 for name in ("embd", "attn", "resid", "clf")},
)
SCORES = {"score_range": (0.0, 5.0)}
CASES = {
    "classification": ReadOut("classification", ("a", "b", "c")),
    "entailment": ReadOut("entailment", ("a", "b", "c")),
    "similarity": ReadOut("similarity", ("a", "b", "c")),
    "multiple_choice": ReadOut("multiple_choice", ("1", "2", "3", "4")),
    "soft scores": ReadOut("similarity", **SCORES, score_points=6),
    "squared scores": ReadOut("similarity", **SCORES),
}


class Numbers:
    """A tokenizer of texts that are numbers."""

    vocab_size = CONFIG.vocab_size

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[int(word) for word in text.split()] for text in texts]


def text(rng: np.random.Generator) -> str:
    return " ".join(map(str, rng.integers(0, CONFIG.vocab_size, rng.integers(2, 6))))


def examples(readout: ReadOut) -> list[Example]:
    """Random texts with random labels: there is nothing to learn but the examples."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(N):
        answers = tuple(text(rng) for _ in range(2 + i % 3))
        fields = {name: answers if name == "answers" else text(rng) for name in FIELDS[readout.kind]}
        label, score = None, None
        if readout.score_range is not None:
            score = round(float(rng.uniform(*readout.score_range)), 1)
        else:
            label = str(rng.choice(readout.labels[: len(answers) if readout.kind == "multiple_choice" else None]))
        made.append(Example(str(i), fields, label, f"row {i}", score))
    return made


@dataclasses.dataclass(frozen=True)
class Case:
    """A model that has been trained on `examples`."""

    spec: TaskSpec
    model: GPT1
    params: Any

    def encode(self, given: list[Example]) -> EncodedSplit:
        return encode_task_split(self.spec, "train", given, self.model, Numbers())

    def predict(self, given: list[Example]) -> tuple[np.ndarray, float]:
        mesh = make_mesh(MeshConfig(data=1), devices=jax.local_devices()[:1])
        evaluator = TaskEvaluator(self.model, mesh, self.encode(given), batch_size=N, buckets=(CONFIG.n_ctx,))
        return evaluator(self.params)


@functools.cache
def trained(name: str) -> Case:
    readout = CASES[name]
    scores = readout.score_range is not None
    spec = TaskSpec(
        name=name,
        kind=readout.kind,
        sources={"train": Source(("train.csv",))},
        fields={field: field for field in FIELDS[readout.kind]},
        labels=None if scores else readout.labels,
        score_range=readout.score_range,
        metrics=("pearson",) if scores else ("accuracy",),
    )
    model = GPT1(CONFIG, readout)
    params = model.init(jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    case = Case(spec, model, params)
    split = case.encode(examples(readout))
    batch = train_batches(split, batch_size=N, seed=0, buckets=(CONFIG.n_ctx,))[0]
    objective = task_objective(model, with_lm=False)
    optimizer = optax.adam(1e-2)

    @jax.jit
    def fit(params: Any, batch: dict[str, jax.Array]) -> Any:
        batch = objective.normalize(batch)

        def step(_: int, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            params, state = carry
            loss = lambda p: objective.loss(p, batch, jnp.arange(N), jax.random.key(0), {})[0]  # noqa: E731
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, 60, step, (params, optimizer.init(params)))[0]

    return dataclasses.replace(case, params=fit(params, batch))


@pytest.mark.parametrize("name", CASES)
def test_32_examples_are_learned_by_heart(name):
    case = trained(name)
    split = case.encode(examples(CASES[name]))
    predicted, loss = case.predict(examples(CASES[name]))
    metrics = task_metrics(case.spec, split, predicted, loss)
    if CASES[name].score_range is None:
        assert metrics["accuracy"] == 1.0
    else:
        assert metrics["pearson"] > 0.95
        assert np.abs(predicted - split.labels).max() < 1
    assert metrics["loss"] < 0.5


@pytest.mark.parametrize("name", ["similarity", "soft scores", "squared scores"])
def test_similarity_is_the_same_bit_for_bit_for_both_orders_of_a_pair(name):
    given = examples(CASES[name])
    swapped = [
        dataclasses.replace(e, fields={"text_a": e.fields["text_b"], "text_b": e.fields["text_a"]}) for e in given
    ]
    predicted, _ = trained(name).predict(given)
    np.testing.assert_array_equal(trained(name).predict(swapped)[0], predicted)
    assert np.ptp(predicted, axis=0).max() > 0.1


def test_the_order_of_the_answers_changes_no_prediction():
    """Also where examples have different numbers of answers."""
    given, case = examples(CASES["multiple_choice"]), trained("multiple_choice")
    predicted, _ = case.predict(given)
    rng = np.random.default_rng(1)
    orders = [rng.permutation(len(e.fields["answers"])) for e in given]
    assert {len(order) for order in orders} == {2, 3, 4}
    shuffled, _ = case.predict(
        [
            dataclasses.replace(
                e, fields={**e.fields, "answers": tuple(e.fields["answers"][k] for k in order)}, label="1"
            )
            for e, order in zip(given, orders, strict=True)
        ]
    )
    for before, after, order in zip(predicted, shuffled, orders, strict=True):
        np.testing.assert_allclose(after[: len(order)], before[order], atol=1e-6)
        assert order[after.argmax()] == before.argmax()
        assert not after[len(order) :].any()
