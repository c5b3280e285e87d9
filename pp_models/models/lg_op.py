r"""Latent Gaussian topic model with ordinal probit counts (LG-OP; Hu et al. 2014).

A count $h$ says in which interval a Gaussian fell, whose mean is a product of factors of either
sign (Hu et al., H):

$$\begin{align*}
\alpha_1 &\sim \operatorname{Gamma}(a_0, b_0) && \text{precision} \\
d_{1i} &\sim \operatorname{N}(0, I / K) && i = 1, \dots, p \text{: words} \\
s_j &\sim \operatorname{N}(0, I / \alpha_1) && j = 1, \dots, n \text{: documents} \\
g_{ij} &\sim \operatorname{N}(d_{1i}^\top s_j, 1) && \text{utilities} \\
C_{ij} &= h \text{ if } c_h \le g_{ij} < c_{h+1} && \text{counts, H(2)}
\end{align*}$$

The cutpoints are $c_0 = -\infty, c_1 = 0, c_2 = 1, \dots$ The utilities $g$ are eliminated
(`probit.ordinal`). With $m_{ij} = E[d_{1i}]^\top E[s_j]$,

$$F = \text{priors} + \sum_{ij} \Bigl(\log P(C_{ij} \mid m_{ij}) + \frac{m_{ij}^2}{2}\Bigr)
- \frac12 \langle \sum_i d_{1i} d_{1i}^\top, \sum_j s_j s_j^\top \rangle.$$

All cells are visited, zeros too: use it for small corpora. Factors are known up to a rotation.

| here | H |
|---|---|
| `d1`, `s` | $D_1, S$ |
| `alpha1` | $\alpha_1$: a number if given, else a site with a gamma prior |
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination import probit
from pp_models.model import Learning, Model, Rotation, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf
from pp_models.models._examples import generator

Hyper = lg_nmf.Hyper


class Ordinal(dist.Distribution):
    """H(2): the interval of a N(mean, 1) variable, h for [h - 1, h) and 0 below zero."""

    arg_constraints = {"mean_utility": constraints.real}  # noqa: RUF012 (NumPyro's own convention)
    support = constraints.nonnegative_integer

    def __init__(self, mean_utility, *, validate_args=None):
        self.mean_utility = mean_utility
        super().__init__(jnp.shape(mean_utility), (), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        shape = (*sample_shape, *self.batch_shape)
        utility = self.mean_utility + jax.random.normal(key, shape, self.mean_utility.dtype)
        return jnp.where(utility < 0, 0, jnp.floor(utility) + 1)

    def log_prob(self, value):
        return probit.log_probability(self.mean_utility, value)


def generate(hyper, data):
    alpha1 = lg.sample_precision(hyper, "alpha1")
    d1 = lg.sample_words(hyper, data, positive=False)
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, False))
        words = Ordinal(s @ d1.T).to_event(1)
        numpyro.sample("counts", words, obs=data.entries.dense(data.num_columns))


def log_global(hyper, t):
    return lg.log_words(hyper, t["d1"], False) + lg.log_precisions(hyper, t)


def log_local(hyper, t, batch, key=None):
    prior = batch.sum(lg.log_rows(t["s"], lg.precision(hyper, t, "alpha1"), False))
    counted = probit.ordinal(t["s"].first, t["d1"].first.T, batch.entries, batch.mask, key)
    return prior + counted - 0.5 * lg.products(t["s"], t["d1"], batch)


def init(key, hyper, data):
    size = 1 / jnp.sqrt(hyper.num_topics)
    words = size * jax.random.normal(key, (data.num_columns, hyper.num_topics))
    return {
        "s": lg.around(jnp.zeros((data.num_rows, hyper.num_topics)), 0.3, False),
        "d1": lg.around(words, 0.1 * size, True),
        **lg.start_precisions(hyper),
    }


def predict(hyper, values):
    """Expected counts."""
    return probit.expected_count(values["s"] @ values["d1"].T)


def example(key):
    rng = generator(key)
    mean = rng.normal(size=(9, 2)) @ rng.normal(size=(7, 2)).T + 0.4 + rng.normal(size=(9, 7))
    counts = np.where(mean < 0, 0, np.floor(mean) + 1)
    return Hyper(num_topics=2, a0=4.0, b0=2.0), data_.counts(counts)


MODEL = Model.of(
    globals(),
    families={"s": fam.normal, "d1": fam.normal_tied, "alpha1": fam.gamma},
    symmetry="rotation",
    rotation=Rotation(("d1", "s")),
    moves=lg.scale_moves,
    curved=frozenset({"s", "d1"}),
    marginal=lg_nmf.MODEL.marginal,
    learning=Learning(lg.PRECISIONS),
)
