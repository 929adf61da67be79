"""Settings of the chapter's experiments, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from claims.training.spec import ModelSettings


@dataclass(frozen=True)
class Rung:
    """One row of the chapter's ladder (l.124), which adds one piece to a row above it.

    The rows' table is missing from the document, and their settings are deduced. What it prints
    fixes most of them: width, context and vocabulary; 16,512 parameters for four heads (so W_o has
    a bias, W_q, W_k and W_v have none, and the single head has no W_o); 768 for the LayerNorms (so
    one ends the stack); 500,000 for the model (so the output head is untied). Left to a reading:
    the fourth row has no positions, so that it differs from the second by the addition alone; the
    later ones have the table.
    """

    label: str
    model: ModelSettings


NO_CONTEXT = Rung(
    "no context",
    ModelSettings(n_blocks=0, mixer="none", feed_forward=False, norm="none", positions="none"),
)
AVERAGE_REPLACING = Rung(
    "uniform average, replacing",
    replace(NO_CONTEXT.model, n_blocks=1, mixer="average", residual=False),
)
AVERAGE_WITH_POSITIONS = Rung(
    "+ learned positions", replace(AVERAGE_REPLACING.model, positions="learned")
)
AVERAGE_ADDED = Rung("uniform average, added", replace(AVERAGE_REPLACING.model, residual=True))
HEAD_REPLACING = Rung("one head, replacing", replace(AVERAGE_WITH_POSITIONS.model, mixer="head"))
HEAD_ADDED = Rung("one head, added", replace(HEAD_REPLACING.model, residual=True))
FOUR_HEADS = Rung("four heads", replace(HEAD_ADDED.model, mixer="heads"))
WITH_MLP = Rung("+ MLP", replace(FOUR_HEADS.model, feed_forward=True))
ONE_BLOCK = Rung("+ LayerNorm = one block", replace(WITH_MLP.model, norm="pre"))
TWO_BLOCKS = Rung("two blocks", replace(ONE_BLOCK.model, n_blocks=2))

LADDER = (
    NO_CONTEXT,
    AVERAGE_REPLACING,
    AVERAGE_WITH_POSITIONS,
    AVERAGE_ADDED,
    HEAD_REPLACING,
    HEAD_ADDED,
    FOUR_HEADS,
    WITH_MLP,
    ONE_BLOCK,
    TWO_BLOCKS,
)
