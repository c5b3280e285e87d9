r"""Latent Gaussian nonnegative matrix factorisation (LG-NMF; Hu et al. 2014).

Counts are Gaussian about a product of nonnegative factors, whose priors are normals truncated at
zero (Hu et al., H):

$$\begin{align*}
\alpha_1 &\sim \operatorname{Gamma}(a_0, b_0) && \text{precision} \\
d_{1i} &\sim \operatorname{N}^+(0, I / K) && i = 1, \dots, p \text{: words} \\
s_j &\sim \operatorname{N}^+(0, I / \alpha_1) && j = 1, \dots, n \text{: documents} \\
C_{ij} &\sim \operatorname{N}(d_{1i}^\top s_j, 1) && \text{counts, H(3)}
\end{align*}$$

With $t(d_1) = (d_{1i}, \sum_i d_{1i} d_{1i}^\top)$ and $t(s) = (s_j, s_j s_j^\top)$,

$$F = \text{priors} - \frac12 \Bigl(n p \log 2 \pi + \sum_{ij} C_{ij}^2\Bigr)
+ \sum_{C_{ij} > 0} C_{ij} \, d_{1i}^\top s_j
- \frac12 \langle \sum_i d_{1i} d_{1i}^\top, \sum_j s_j s_j^\top \rangle.$$

The coordinates of a row are coupled: the conditional of $s_j$ has the precision
$\alpha_1 I + \sum_i d_{1i} d_{1i}^\top$ (H 10, which calls it $\Sigma$). A product of independent
positive normals is fitted to it one coordinate at a time (`families.positive`).

| here | H |
|---|---|
| `d1` | $D_1$ (words × K) |
| `s` | $S$ (documents × K) |
| `alpha1` | $\alpha_1$: a number if given, else a site with a gamma prior |
| `a0`, `b0` | $10^{-6}$ |

H(6) lacks the factor 1/2 of the squared error, and its $f$ must hold
$-\frac{n K}{2} \log \alpha_1$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.row_solver import RowInfo
from pp_models.model import Count, Learning, Marginal, Model, Positive, Topics, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models._examples import generator

SMALLEST = 1e-3  # mean count of a row to start with, for empty rows


class Hyper(NamedTuple):
    """num_topics: K. alpha1: precision of the documents' weights; None: unknown. a0, b0: shape and
    rate of its prior."""

    num_topics: Count = 10
    alpha1: Positive | None = None
    a0: Positive = lg.WEAK
    b0: Positive = lg.WEAK


def generate(hyper, data):
    alpha1 = lg.sample_precision(hyper, "alpha1")
    d1 = lg.sample_words(hyper, data, positive=True)
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, True))
        lg.sample_text(s, d1, data)


def log_global(hyper, t):
    return lg.log_words(hyper, t["d1"], True) + lg.log_precisions(hyper, t)


def log_local(hyper, t, batch, key=None):
    prior = lg.log_batch(t["s"], lg.precision(hyper, t, "alpha1"), True, batch)
    return prior + lg.log_text(t["s"], t["d1"], batch)


def solve_local(hyper, t, batch, start, options, summary):
    """Rows share their precision, and the words' part does not depend on the rows: their natural
    parameters are known at once.

    The mode keeps one precision for all rows, so that its iteration is one matrix product
    (`positive_normal`), and the statistics another. Rows of padding are zero there.
    """
    natural = lg.rows_of_text(t["d1"], lg.precision(hyper, t, "alpha1").second, batch)
    if summary != "mode":
        shape = (batch.num_rows, *natural.second.shape[1:])
        natural = natural._replace(second=jnp.broadcast_to(natural.second, shape))
    once = jnp.ones(batch.num_rows, int), jnp.zeros(batch.num_rows, batch.mask.dtype)
    return {"s": natural}, RowInfo(*once), batch


def init(key, hyper, data):
    """Words: random, about the size of their prior. Documents: such that the row's mean count comes
    out, whatever other rows there are."""
    num_topics, size = hyper.num_topics, 1 / jnp.sqrt(hyper.num_topics)
    mean = jnp.asarray(data.totals, float)[:, None] / max(data.num_columns, 1)
    words = size * (0.2 + jax.random.uniform(key, (data.num_columns, num_topics)))
    weight = jnp.maximum(mean, SMALLEST) / (num_topics * 0.7 * size)
    return {
        "s": lg.around(weight * jnp.ones((data.num_rows, num_topics)), 0.3 * weight, False),
        "d1": lg.around(words, 0.1 / jnp.sqrt(num_topics), True),
        **lg.start_precisions(hyper),
    }


def predict(hyper, values):
    """Expected counts."""
    return values["s"] @ values["d1"].T


def example(key):
    rng = generator(key)
    words, weights = np.abs(rng.normal(size=(7, 2))), np.abs(rng.normal(size=(9, 2)))
    counts = np.maximum(np.round(3 * weights @ words.T + rng.normal(size=(9, 7))), 0)
    return Hyper(num_topics=2, a0=4.0, b0=2.0), data_.counts(counts)


def balance(hyper):
    """Scaling d1 up and s down leaves the likelihood as it is."""
    return {"d1": float(hyper.num_topics)}, {"s": hyper.alpha1}


MODEL = Model.of(
    globals(),
    families={"s": fam.positive, "d1": fam.positive_tied, "alpha1": fam.gamma},
    symmetry="permutation",
    moves=lg.scale_moves,
    topics=Topics(lambda hyper, values: values["s"], lambda hyper, values: values["d1"].T),
    marginal=Marginal(("alpha1",), balance, held=lg.held),
    learning=Learning(lg.PRECISIONS),
)
