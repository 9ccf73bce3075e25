"""Fine-tuning with the paper's recipe: 3 epochs, batch 32, 6.25e-5 with a linear decay to 0, lambda 0.5.

    python launch/finetune.py --config=configs/finetune.py:custom --config.task.train=reviews.csv \
        --config.task.fields.text=review --config.task.label=sentiment --init_from=W --workdir=NEW

custom (default)  Your own CSV, TSV or JSONL files. Without config.task.validation a tenth of the training rows is held
                  out. Small models want a higher rate: try 5e-4. Pairs, scores and choices, beside single texts:

    --config.task.kind=entailment --config.task.fields.premise=passage --config.task.fields.hypothesis=question
    --config.task.kind=similarity --config.task.score_range=0,5     (and .score_loss=squared; see gpt1_jax/scores.py)
    --config.task.kind=multiple_choice --config.task.fields.answers=ending1,ending2 --config.task.labels=1,2

                  Rare classes: --config.class_weights=balanced, or a weight for each, negative=1,positive=5.

The paper's data sets, from a folder with their official files (config.task.data=FOLDER) or, but for story_cloze, from
TensorFlow Datasets (config.task.data=tfds): snli, mnli, qnli, rte, scitail; race, race_middle, race_high, story_cloze;
mrpc, qqp, stsb; sst2, cola.

story_cloze repeats the original program as it was published with the weights (openai/finetune-transformer-lm, default
settings): also its batches, its order of the examples and its two oddities of the network.

    python launch/finetune.py --config=configs/finetune.py:story_cloze --config.task.data=FOLDER \
        --init_from=finetune-transformer-lm/model --workdir=NEW

FOLDER has the two files of the Story Cloze Test, spring2016. To expect on the test split: 85.8 % accuracy, the median
of 10 runs by the authors' README; the paper's single run has 86.5 % (table 3). The seed is the original's, 42; ten runs
as theirs: --config.seeds=10. Dropout and the task head are not TensorFlow's draws, so that no run is one of theirs.

Other recipes, for any task:

    --config.seeds=5                                  as many runs; median, minimum and maximum of every metric
    --config.sweep.learning_rate=3e-5,6.25e-5,1e-4    every combination with .batch_size, .epochs and .lm_coef; the
                                                      validation split chooses, and the seeds are run with the best
    --config.lm_coef=0                                L1, then L2
    --config.lm_coef_schedule=linear                  lambda falls to 0: linear, cosine, or step at .lm_coef_drop
    --config.n_transfer=6                             the embeddings and the first 6 blocks; 0 embeddings only; -1 L3
                                                      from scratch with the model's architecture and tokenizer
    --config.model.trunk=lstm --config.tokenizer=W    from scratch with the paper's LSTM in place of the blocks (table
                                                      5); for a pre-trained one, pre-train with model.trunk=lstm
    --config.freeze=trunk                             only the task head and the special tokens are trained
    --config.early_stopping=2                         ends after 2 epochs without improvement
    --config.adapt.source=task                        first goes on with L1 on the training texts, or on text:GLOB;
                                                      .adapt.epochs, .adapt.optimizer.learning_rate
"""

from ml_collections import ConfigDict

from gpt1_jax.config import to_config_dict
from gpt1_jax.finetune_config import FinetuneConfig, as_the_original
from gpt1_jax.tasks.config import check_name


def get_config(task: str = "custom") -> ConfigDict:
    """The config of a task."""
    check_name(task)
    recipe = FinetuneConfig()  # the paper's
    config = to_config_dict(as_the_original(recipe) if task == "story_cloze" else recipe)
    config.task.name = task
    return config
