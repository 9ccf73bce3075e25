"""`original_batches`: fine-tuning with the original program's batches, from a config to its results."""

from __future__ import annotations

import json

import pytest

from gpt1_jax import InputError, evaluate, finetune, load_pretrained
from gpt1_jax.metrics import read_metrics
from gpt1_jax.tasks.predictions import read_predictions

N_CTX = 28
MOST = N_CTX // 2 - 2


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A choice between two endings; the odd rows have a story that is longer than may be kept."""
    folder = tmp_path_factory.mktemp("choices")
    for name, n in (("train", 21), ("validation", 13), ("test", 9)):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for i in range(n):
                endings = ["a warm and funny one", "a dull and empty one"]
                row = {
                    "context": "the film was" + " so very" * (12 if i % 2 else 1),
                    "answers": endings if i % 3 else endings[::-1],
                    "label": "1" if i % 3 else "2",
                }
                file.write(json.dumps(row) + "\n")
    return {
        "task": {
            "kind": "multiple_choice",
            "fields": {"context": "context", "answers": "answers"},
            "labels": ["1", "2"],
            **{split: [str(folder / f"{split}.jsonl")] for split in ("train", "validation", "test")},
        },
        "model": {"n_ctx": N_CTX},
        "original_batches": True,
        "batch_size": 8,
        "epochs": 2,
        "optimizer": {"learning_rate": 1e-3, "schedule": "warmup_linear", "warmup_steps": None},
        "log_every": 1,
    }


@pytest.fixture(scope="module")
def run(settings, pretrained, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    return finetune.run(settings, workdir, pretrained), workdir


def test_the_context_shrinks_and_whole_batches_count(run):
    result, workdir = run
    tokenizer = load_pretrained(workdir)[2]
    # Each text is cut on its own, so that the longest stream has room to spare.
    texts = ["the film was" + " so very" * 12, "a warm and funny one", "a dull and empty one"]
    story, *endings = (min(MOST, len(ids)) for ids in tokenizer.encode_batch(texts))
    assert story == MOST
    stored = json.loads((workdir / "config.json").read_text())
    assert result.model.config.n_ctx == stored["model"]["n_ctx"] == story + max(endings) + 3
    assert stored["max_text_tokens"] == MOST
    assert json.loads((workdir / "results.json").read_text())["n_steps"] == 2 * (21 // 8)
    assert [m["step"] for m in read_metrics(workdir) if "validation_accuracy" in m] == [2, 4]
    assert len(read_predictions(workdir / "predictions" / "test.jsonl")) == 9


def test_an_evaluation_reads_the_examples_as_the_run_did(run):
    result, workdir = run
    for split, metrics in evaluate.run(workdir, {"splits": ("validation", "test"), "batch_size": 8}).items():
        assert metrics == pytest.approx(result.metrics[split], abs=1e-6), split


def test_started_again_it_has_nothing_left_to_do(settings, run, pretrained):
    result, workdir = run
    before = read_metrics(workdir)
    again = finetune.run(settings, workdir, pretrained)
    assert again.metrics == result.metrics
    assert read_metrics(workdir) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": [28]}, "contradicts original_batches"),
        ({"batch_size": 24}, "leaves all 21 training examples out"),
        ({"model": {"n_ctx": 5}}, "use at least 6"),
    ],
)
def test_what_contradicts_them_is_refused(settings, pretrained, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        finetune.run({**settings, **changes}, tmp_path / "run", pretrained)
    assert not (tmp_path / "run" / "config.json").exists()
