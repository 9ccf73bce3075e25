"""Weights of classes: the arithmetic, and what they do to the loss and to nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpt1_jax.data.class_weights import check_class_weights, with_class_weights
from gpt1_jax.data.encode import EncodedSplit
from gpt1_jax.data.labelled import eval_batches, train_batches
from gpt1_jax.errors import InputError
from gpt1_jax.losses import task_objective, task_outputs
from gpt1_jax.model import GPT1, GPT1Config, ReadOut

THREE = ReadOut("classification", ("a", "b", "c"))
CONFIG = GPT1Config(
    vocab_size=20,
    n_special=3,
    n_ctx=4,
    n_embd=8,
    n_head=2,
    n_layer=0,
    **{f"{name}_pdrop": 0.0 for name in ("embd", "attn", "resid", "clf")},
)


def split_of(labels):
    n = len(labels)
    tokens = np.random.default_rng(0).integers(0, 20, (n, 4), np.int32)
    tokens[:, -1] = CONFIG.extract_id
    return EncodedSplit(
        name="train",
        tokens=tokens.reshape(-1),
        stream_starts=np.arange(0, 4 * n + 1, 4),
        example_starts=np.arange(n + 1),
        labels=np.asarray(labels),
        ids=tuple(map(str, range(n))),
        n_ctx=4,
        n_truncated=0,
        n_cut=0,
    )


LABELS = [0] * 6 + [1] * 3 + [2]


def test_balanced_weights_give_every_class_the_same_share():
    split = with_class_weights(split_of(LABELS), ("balanced",), THREE)
    np.testing.assert_allclose(split.weights, [10 / 18] * 6 + [10 / 9] * 3 + [10 / 3], rtol=1e-6)
    assert split.weights.mean() == pytest.approx(1)
    # A class that does not occur has no share.
    split = with_class_weights(split_of([0, 0, 0, 2]), ("balanced",), THREE)
    np.testing.assert_allclose(split.weights, [2 / 3] * 3 + [2], rtol=1e-6)


def test_given_weights_are_taken_by_name():
    split = with_class_weights(split_of([2, 0, 1]), ("c=0.5", "a=1", "b=3e1"), THREE)
    np.testing.assert_array_equal(split.weights, np.float32([0.5, 1, 30]))
    odd = ReadOut("classification", ("x=y", "z"))
    assert with_class_weights(split_of([0, 1]), ("x=y=2", "z=1"), odd).weights.tolist() == [2, 1]
    split = split_of([0, 1])
    assert with_class_weights(split, (), THREE) is split


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (("a=1", "b=2"), "'c' has none; give one for each label"),
        (("a=1", "b=2", "c=0"), "'c=0': a weight is a number above 0"),
        (("a=1", "b=-2", "c=1"), "'b=-2': a weight is a number above 0"),
        (("a=1", "b=x", "c=1"), "'b=x': a weight is a number above 0"),
        (("a=1", "b=inf", "c=1"), "'b=inf': a weight is a number above 0"),
        (("a=1", "B=2", "c=1"), "'B' is not one of 'a', 'b', 'c'"),
        (("1", "2", "3"), "'1' is neither 'balanced' nor label=weight, such as a=2"),
        (("balance",), "'balance' is neither 'balanced'"),
    ],
)
def test_weights_that_do_not_fit(weights, message):
    with pytest.raises(InputError, match=message):
        with_class_weights(split_of(LABELS), weights, THREE)


@pytest.mark.parametrize(
    ("readout", "what"),
    [
        (ReadOut("multiple_choice", ("A", "B", "C")), "answers"),
        (ReadOut("similarity", score_range=(0, 5), score_points=6), "scores"),
    ],
)
def test_answers_and_scores_have_no_classes(readout, what):
    with pytest.raises(InputError, match=f"the task has {what}, not classes"):
        with_class_weights(split_of(LABELS), ("balanced",), readout)


def test_the_loss_is_the_weighted_mean_and_all_else_is_as_without():
    split = split_of(LABELS)
    model = GPT1(CONFIG, THREE)
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 1), np.int32))["params"]
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    objective = task_objective(model)
    run = jax.jit(
        lambda b, rows: objective.loss(params, objective.normalize(b), rows, jax.random.key(0), {"lm_coef": 0.5})
    )

    def metrics(split):
        batch = train_batches(split, batch_size=12, seed=0)[0]  # two rows are padding
        return batch, {name: float(x) for name, x in run(batch, jnp.arange(12))[1].items()}

    plain_batch, plain = metrics(split)
    batch, weighted = metrics(with_class_weights(split, ("a=1", "b=2", "c=7"), THREE))
    w = np.where(plain_batch["weight"] > 0, np.array([1, 2, 7])[batch["label"]], 0)
    np.testing.assert_array_equal(batch["weight"], w)
    nll = np.asarray(task_outputs(model, params, batch)["task_nll"])
    assert weighted["task_loss"] == pytest.approx((nll * w).sum() / w.sum(), rel=1e-5)
    assert weighted["task_loss"] != pytest.approx(plain["task_loss"], rel=1e-3)
    for name in ("lm_loss", "accuracy"):
        assert weighted[name] == pytest.approx(plain[name], rel=1e-6)
    # Only ratios matter.
    _, doubled = metrics(with_class_weights(split, ("a=2", "b=4", "c=14"), THREE))
    assert doubled["task_loss"] == pytest.approx(weighted["task_loss"], rel=1e-6)


def test_each_example_keeps_its_weight_in_any_batch():
    split = with_class_weights(split_of(LABELS), ("a=1", "b=2", "c=7"), THREE)
    some = eval_batches(split, batch_size=3)
    for i in range(len(some)):
        index = some[i]["index"]
        expected = np.where(index >= 0, split.weights[index], 0)
        np.testing.assert_array_equal(some[i]["weight"], expected)


def test_weights_are_checked_without_examples():
    check_class_weights((), ReadOut("multiple_choice", ("a", "b")))
    check_class_weights(("balanced",), THREE)
    check_class_weights(("a=1", "b=2", "c=3"), THREE)
    for weights, readout, message in [
        (("balanced",), ReadOut("multiple_choice", ("a", "b")), "the task has answers, not classes"),
        (("balanced",), ReadOut("similarity", score_range=(0.0, 5.0), score_points=6), "the task has scores"),
        (("a=1", "b=2"), THREE, "'c' has none"),
    ]:
        with pytest.raises(InputError, match=message):
            check_class_weights(weights, readout)
