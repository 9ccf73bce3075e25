"""The paper's tables 2 to 5 and figure 2, on whatever data there are.

    config -> plan of cells -> each through `pretrain.run`, `finetune.run` or `evaluate.run` -> scores -> tables, page

| module | what |
|---|---|
| `config` | `ReproduceConfig`: tasks, recipes, sizes, how many seeds |
| `paper` | the numbers to compare with, and GLUE's average |
| `tasks` | which tasks have their data, what they are scored by |
| `plan` | which cells there are to run, as plain values |
| `cells` | one cell: whether it is done, and how it is run |
| `workflow` | `run`: what is missing is run, then everything is shown |
| `scores` | the scores of finished cells, their medians and ranges |
| `estimate` | the time that is left |
| `series` | the points of figure 2 |
| `tables`, `figures`, `claims` | what the paper shows, made of scores; whether its order holds |
| `examples` | example data for a laptop |
| `page` | all of it as one HTML page, PNGs and CSV files |
"""
