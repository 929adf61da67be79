"""The transformer block: attention mixes across positions, a small network computes within one."""

from torch import Tensor, nn
from torch.nn import functional as F

from .size import NORMS, check_choice, check_dropout, check_positive


class FeedForward(nn.Module):
    """Each position by itself: widen by ``expansion``, GELU, narrow again; (..., d) -> (..., d).

    The GELU is the exact one, x * Phi(x) (Hendrycks and Gimpel 2016). ``dropout`` falls on the
    output.
    """

    def __init__(self, d_model: int, expansion: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(d_model=d_model, expansion=expansion)
        check_dropout(dropout)
        self.expand = nn.Linear(d_model, expansion * d_model)
        self.contract = nn.Linear(expansion * d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.expand(x))                                       # (..., expansion * d)
        x = self.dropout(self.contract(x))
        return x                                                         # (..., d)


class Block(nn.Module):
    """A mixer across positions, then a feed-forward network within each; (B, T, d) -> (B, T, d).

    mixer         a module (B, T, d) -> (B, T, d), or None for a block that never mixes.
    norm          where the LayerNorm of a sub-layer f stands:
                  "pre"   x + f(LN(x))    the path from x to the sum is never normalised
                  "post"  LN(x + f(x))    Vaswani et al. 2017; the norm is on that path
                  "none"  x + f(x)
    feed_forward  False leaves the network out, with its LayerNorm.
    residual      False lets the mixer's output REPLACE the token; the network's is always added.
    dropout       on the output of each sub-layer, before the addition.

    The sub-modules are mixer, ff, ln1 and ln2; one that the settings leave out is None.
    """

    def __init__(
        self,
        d_model: int,
        mixer: nn.Module | None,
        *,
        norm: str = "pre",
        feed_forward: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(d_model=d_model)
        check_choice("norm", norm, NORMS)
        check_dropout(dropout)
        normed = norm != "none"
        self.norm, self.residual = norm, residual
        self.ln1 = nn.LayerNorm(d_model) if normed and mixer is not None else None
        self.mixer = mixer
        self.ln2 = nn.LayerNorm(d_model) if normed and feed_forward else None
        self.ff = FeedForward(d_model, dropout=dropout) if feed_forward else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:                              # (B, T, d)
        if self.mixer is not None:
            mixed = self.dropout(self.mixer(self._before(x, self.ln1)))
            x = self._after(x + mixed if self.residual else mixed, self.ln1)
        if self.ff is not None:
            x = self._after(x + self.ff(self._before(x, self.ln2)), self.ln2)
        return x

    def _before(self, x: Tensor, ln: nn.LayerNorm | None) -> Tensor:
        """What a sub-layer reads."""
        return ln(x) if ln is not None and self.norm == "pre" else x

    def _after(self, x: Tensor, ln: nn.LayerNorm | None) -> Tensor:
        """What goes on to the next sub-layer."""
        return ln(x) if ln is not None and self.norm == "post" else x
