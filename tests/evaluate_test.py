"""Perplexity and bits per byte against sums done by hand; what cannot be evaluated."""

import json

import numpy as np
import pytest

from gpt1_jax import InputError, evaluate, load_pretrained, predict, save_pretrained


def test_the_loss_of_a_text_is_the_mean_over_all_its_tokens(pretrained, tmp_path):
    text = "the film was warm and number 7 had a lovely cast .\nthe pace was dull .\n" * 5
    (tmp_path / "a.txt").write_text(text)
    result = evaluate.run(pretrained, {"source": f"text:{tmp_path}/a.txt", "batch_size": 8})

    model, params, tokenizer = load_pretrained(pretrained)
    ids = [*tokenizer.encode(text), *tokenizer.document_separator]
    n_ctx, nll = model.config.n_ctx, 0.0
    for start in range(0, len(ids) - 1, n_ctx - 1):
        window = ids[start : start + n_ctx]
        logits = np.asarray(model.apply({"params": params}, np.array([window])))[0].astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nll -= sum(log_p[i, token] for i, token in enumerate(window[1:]))
    assert result["loss"] == pytest.approx(nll / (len(ids) - 1), rel=1e-5)
    assert result["perplexity"] == pytest.approx(np.exp(result["loss"]))
    # Bytes are known for each document as a whole; here it is one, less its first token.
    n_bytes = len(text.encode()) * (len(ids) - 1) / len(ids)
    assert result["bits_per_byte"] == pytest.approx(nll / np.log(2) / n_bytes, rel=1e-3)


def test_a_pretrained_run_is_evaluated_on_its_own_heldout_text(pretrained):
    stored = json.loads((pretrained / "results.json").read_text())
    result = evaluate.run(pretrained, {"batch_size": 16})
    assert result["loss"] == pytest.approx(stored["heldout_loss"], rel=1e-5)


def test_what_cannot_be_evaluated(pretrained, corpus, tmp_path):
    with pytest.raises(InputError, match="without a task head"):
        evaluate.run(pretrained, {"data": (str(corpus / "test.csv"),)})
    with pytest.raises(InputError, match="batch_size=12"):
        evaluate.run(pretrained, {"batch_size": 12})
    with pytest.raises(InputError, match="not both"):
        evaluate.run(pretrained, {"source": "text:a.txt", "data": ("a.csv",)})
    model, params, tokenizer = load_pretrained(pretrained)
    save_pretrained(tmp_path / "saved", model, params, tokenizer)
    with pytest.raises(InputError, match="no held-out text of its own"):
        evaluate.run(tmp_path / "saved")
    with pytest.raises(InputError, match="no task head"):
        predict(model, params, tokenizer, ["good"])


def test_results_table_lines_up():
    table = evaluate.results_table({"test": {"accuracy": 0.5, "f1": 0.25}, "loss": 1.0})
    assert table.splitlines() == ["test accuracy  0.5000", "test f1        0.2500", "loss           1.0000"]
