"""Four ways to tell positions, and none, trained on windows of 64 tokens (l.155 to l.159).

Scored at 64, 128 and 256 tokens over all positions, and once more on the last 64 tokens of each
window alone. Blocks, steps and batch are not printed: the ladder's block at its budget is the
reading taken. The table of learned positions has 256 rows, of which 64 are ever in a batch.
"""

from __future__ import annotations

from dataclasses import replace

from claims.experiments import BATCH, LENGTH, RATE, small
from claims.experiments.rungs import ONE_BLOCK
from claims.training.experiment import Budgets, Experiment
from claims.training.spec import FASTEST, Evaluation, RunSpec, Text

SCHEMES = ("learned", "sinusoidal", "rotary", "alibi")
LENGTHS = (64, 128, 256)
ALL = tuple(Evaluation(length) for length in LENGTHS)
LAST_64 = tuple(Evaluation(length, stride=64) for length in LENGTHS[1:])

# At the small budget the windows are half as long.
SMALL_LENGTHS = (32, 64, 128)
SMALL_ALL = tuple(Evaluation(length) for length in SMALL_LENGTHS)
LAST_32 = (Evaluation(128, stride=32),)

# Within the trained length, but each scored token with at least three quarters of it as context.
NEAR = {"ci": Evaluation(32, stride=8), "document": Evaluation(64, stride=16)}
# Four times the trained length, over all positions and over the last ones alone, by budget.
LONGEST = {"ci": (SMALL_ALL[-1], LAST_32[-1]), "document": (ALL[-1], LAST_64[-1])}

POSITION_RUNS: Budgets = {
    "ci": Experiment(
        {
            scheme: RunSpec(
                replace(small(ONE_BLOCK.model, context=128), positions=scheme), Text(LENGTH),
                steps=400, batch=BATCH, learning_rate=RATE,
                evaluations=(*SMALL_ALL, *LAST_32, NEAR["ci"]),
            )
            for scheme in (*SCHEMES, "none")
        },
        seeds=8,
        earlier=(3, 5),
    ),
    "document": Experiment(
        {
            scheme: RunSpec(
                replace(ONE_BLOCK.model, context=256, positions=scheme), Text(64), steps=3000,
                batch=64, precision=FASTEST, evaluations=(*ALL, *LAST_64, NEAR["document"]),
            )
            for scheme in (*SCHEMES, "none")
        },
        seeds=3,
    ),
}

# With three seeds the interval of a further run is wider than what would matter, and with ten of
# the same spread it is not.
PRINTED_RUNS: Budgets = {"document": replace(POSITION_RUNS["document"], seeds=10)}
