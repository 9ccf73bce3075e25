"""Natural-language inference (table 2 of the paper): whether a premise entails a hypothesis.

| task | files |
|---|---|
| snli | snli_1.0_train.jsonl and the like. Pairs without a majority have the label "-" and are left out, counted |
| mnli | GLUE's tables (gold_label is the last column), or MultiNLI 1.0 in JSONL, where "-" occurs too. Two validation sets, matched (the genres of the training set) and mismatched, and two test sets without labels. GLUE's diagnostic set, where it lies beside them, is one more |
| qnli | GLUE's tables. The sentence is the premise and the question the hypothesis, so that the question is never cut. There are two releases; GLUE has withdrawn the first, which the paper's figure is of |
| rte | GLUE's tables |
| scitail | SciTailV1.1/tsv_format: tables of premise, hypothesis and label, without header or quoting; or snli_format: JSON lines in .txt files, which write "entailment" for "entails" |

TensorFlow Datasets has 23,097 training pairs of SciTail, not 23,596: it takes the quotes in the tables for quoting.
"""  # noqa: E501

from __future__ import annotations

from gpt1_jax.tasks.datasets.glue import HOMEPAGE, glue_layout, tfds_layout, three_splits
from gpt1_jax.tasks.datasets.official import NO_QUOTES, DataSet, Layout
from gpt1_jax.tasks.spec import Submission

_THREE = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")
_SENTENCES = {"premise": "sentence1", "hypothesis": "sentence2"}
_BY_NAME = {"premise": "premise", "hypothesis": "hypothesis"}
_QUESTION = {"premise": "sentence", "hypothesis": "question"}
_NO_MAJORITY = ("-", "-1")
_DEV = {"train": "train", "validation": "dev", "test": "test"}
_MNLI_UNLABELLED = ("test_matched", "test_mismatched", "diagnostic")
_MNLI_SPLITS = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")


def _labelled_tfds(name: str, splits: tuple[str, ...] = tuple(_DEV)) -> Layout:
    """A data set of TensorFlow Datasets all of whose splits have labels."""
    return Layout(
        name=f"TFDS {name}",
        files={split: (f"{name}/{split}",) for split in splits},
        fields=_BY_NAME,
        label="label",
        reader="tfds",
    )


SNLI = DataSet(
    name="snli",
    kind="entailment",
    labels=_THREE,
    drop_labels=_NO_MAJORITY,
    homepage="https://nlp.stanford.edu/projects/snli",
    layouts=(
        Layout(
            name="SNLI 1.0",
            files={split: (f"snli_1.0_{file}.jsonl",) for split, file in _DEV.items()},
            fields=_SENTENCES,
            label="gold_label",
            folders=("snli_1.0",),
        ),
    ),
    tfds=(_labelled_tfds("snli"),),
    sizes={"SNLI 1.0": three_splits(549_367, 9_842, 9_824)},
    paper={"test": {"accuracy": 89.9}},
)

MNLI = DataSet(
    name="mnli",
    kind="entailment",
    labels=_THREE,
    drop_labels=_NO_MAJORITY,
    homepage=f"{HOMEPAGE} or https://cims.nyu.edu/~sbowman/multinli",
    layouts=(
        glue_layout(
            "MNLI",
            _SENTENCES,
            "gold_label",
            files={split: (f"{split.replace('validation', 'dev')}.tsv",) for split in _MNLI_SPLITS},
            extra={"diagnostic": ("diagnostic.tsv", "AX.tsv", "../diagnostic/diagnostic.tsv", "../AX.tsv")},
            unlabelled=_MNLI_UNLABELLED,
            ids=dict.fromkeys(_MNLI_UNLABELLED, "index"),
        ),
        Layout(
            name="MultiNLI 1.0",
            files={
                "train": ("multinli_1.0_train.jsonl",),
                "validation_matched": ("multinli_1.0_dev_matched.jsonl",),
                "validation_mismatched": ("multinli_1.0_dev_mismatched.jsonl",),
                "test_matched": ("multinli_0.9_test_matched_unlabeled.jsonl",),
                "test_mismatched": ("multinli_0.9_test_mismatched_unlabeled.jsonl",),
            },
            fields=_SENTENCES,
            label="gold_label",
            folders=("multinli_1.0", "MNLI/original", "original"),
            unlabelled=_MNLI_UNLABELLED,
        ),
    ),
    tfds=(
        tfds_layout("glue/mnli", _BY_NAME, splits=_MNLI_SPLITS),
        _labelled_tfds("multi_nli", _MNLI_SPLITS[:3]),
    ),
    sizes={
        "MultiNLI": {
            "train": 392_702,
            "validation_matched": 9_815,
            "validation_mismatched": 9_832,
            "test_matched": 9_796,
            "test_mismatched": 9_847,
            "diagnostic": 1_104,
        }
    },
    submission=Submission(
        {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"}, _THREE
    ),
    paper={"test_matched": {"accuracy": 82.1}, "test_mismatched": {"accuracy": 81.4}},
)

QNLI = DataSet(
    name="qnli",
    kind="entailment",
    labels=_TWO,
    homepage=HOMEPAGE,
    layouts=(glue_layout("QNLI", _QUESTION, "label", folders=("QNLI", "glue_data/QNLI", "QNLIv2")),),
    tfds=(tfds_layout("glue/qnli", _QUESTION),),
    sizes={
        "QNLIv2": three_splits(104_743, 5_463, 5_463),
        "the first release": three_splits(108_436, 5_732, 5_740),
    },
    submission=Submission({"test": "QNLI.tsv"}, _TWO),
    paper={"test": {"accuracy": 88.1}},
)

RTE = DataSet(
    name="rte",
    kind="entailment",
    labels=_TWO,
    homepage=HOMEPAGE,
    layouts=(glue_layout("RTE", _SENTENCES, "label"),),
    tfds=(tfds_layout("glue/rte", _SENTENCES),),
    sizes={"GLUE": three_splits(2_490, 277, 3_000)},
    submission=Submission({"test": "RTE.tsv"}, _TWO),
    paper={"test": {"accuracy": 56.0}},
)


def _scitail_json(suffix: str) -> Layout:
    return Layout(
        name=f"snli_format, {suffix}",
        files={split: (f"scitail_1.0_{file}.{suffix}",) for split, file in _DEV.items()},
        fields=_SENTENCES,
        label="gold_label",
        folders=("snli_format", "SciTailV1.1/snli_format"),
        options={"format": "jsonl"},
        renames={"entailment": "entails"},
    )


SCITAIL = DataSet(
    name="scitail",
    kind="entailment",
    labels=("entails", "neutral"),
    homepage="https://allenai.org/data/scitail",
    layouts=(
        Layout(
            name="tsv_format",
            files={split: (f"scitail_1.0_{file}.tsv",) for split, file in _DEV.items()},
            fields=_BY_NAME,
            label="label",
            folders=("tsv_format", "SciTailV1.1/tsv_format"),
            options={**NO_QUOTES, "header": ("premise", "hypothesis", "label")},
        ),
        _scitail_json("txt"),
        _scitail_json("jsonl"),
    ),
    tfds=(_labelled_tfds("sci_tail"),),
    sizes={
        "SciTail 1.1": three_splits(23_596, 1_304, 2_126),
        "TFDS, which takes quotes for quoting": three_splits(23_097, 1_304, 2_126),
    },
    paper={"test": {"accuracy": 88.3}},
)
