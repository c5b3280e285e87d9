"""Latent Gaussian topic model with ordinal probit counts (LG-OP, H 2.1; Hu et al. 2014).

A count h says in which interval a Gaussian fell whose mean is a product of factors of either sign:

    alpha1 ~ Gamma(a0, b0)
    d1_i   ~ N(0, I / K)                   words i = 1..p
    s_j    ~ N(0, I / alpha1)              documents j = 1..n
    g_ij   ~ N(d1_i's_j, 1)
    C_ij   = h if c_h <= g_ij < c_(h+1),   c_0 = -inf, c_1 = 0, c_2 = 1, ...            H(2)

F is `probit.ordinal`, which eliminates g, minus half of sum_ij E (d1_i's_j)^2 = <sum_i d1_i d1_i', sum_j s_j s_j'>, and the priors. All cells are
visited, zeros too: use it for small corpora. Factors are known up to a rotation.

| here   | H   |
|--------|-----|
| d1, s  | D_1, S |
| alpha1 | alpha_1: a number if given, else a site with prior Gamma(a0, b0) |
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
from pp_models.families import Pair
from pp_models.model import Learning, Model, Rotation, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf

Hyper = lg_nmf.Hyper


class Ordinal(dist.Distribution):
    """H(2): the interval that a N(mean, 1) variable falls into, [h - 1, h) for h = 1, 2, ... and below zero for h = 0."""

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
    d1 = lg.sample_rows(
        "d1",
        lg.locations(hyper.num_topics, hyper.num_topics, False),
        data.num_columns,
        hyper.num_topics,
    )
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, False))
        numpyro.sample(
            "counts", Ordinal(s @ d1.T).to_event(1), obs=data.entries.dense(data.num_columns)
        )


def log_global(hyper, t):
    size = float(hyper.num_topics)
    return lg.log_table(t["d1"], Pair(jnp.log(size), size), False) + lg.log_precisions(hyper, t)


def log_local(hyper, t, batch, key=None):
    prior = batch.sum(lg.log_rows(t["s"], lg.precision(hyper, t, "alpha1"), False))
    counted = probit.ordinal(t["s"].first, t["d1"].first.T, batch.entries, batch.mask, key)
    return prior + counted - 0.5 * lg.products(t["s"], t["d1"], batch)


def init(key, hyper, data):
    size = 1 / jnp.sqrt(hyper.num_topics)
    words = size * jax.random.normal(key, (data.num_columns, hyper.num_topics))
    known = {name: Pair(jnp.full(1, 10.0), -jnp.full(1, 10.0)) for name in lg.latent(hyper)}
    return {
        "s": lg.around(jnp.zeros((data.num_rows, hyper.num_topics)), 0.3, False),
        "d1": lg.around(words, 0.1 * size, True),
        **known,
    }


def predict(hyper, values):
    """Expected counts: E C = sum_(h >= 0) P(C > h) = sum_h Phi(x - h)."""
    mean = values["s"] @ values["d1"].T
    return probit.expected_count(mean)


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    mean = rng.normal(size=(9, 2)) @ rng.normal(size=(7, 2)).T + 0.4 + rng.normal(size=(9, 7))
    return Hyper(num_topics=2, a0=4.0, b0=2.0), data_.counts(
        np.where(mean < 0, 0, np.floor(mean) + 1)
    )


def variant(hyper, kind):
    """alpha1 is a site where it is not given."""
    return MODEL if hyper.alpha1 is None else FIXED


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"s": fam.normal, "d1": fam.normal_tied, "alpha1": fam.gamma},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="rotation",
    rotation=Rotation(("d1", "s")),
    example=example,
    variant=variant,
    moves=lg.scale_moves,
    curved=frozenset({"s", "d1"}),
    marginal=lg_nmf.MODEL.marginal,
    learning=Learning(lg.given),
)
FIXED = lg.with_given(MODEL, alpha1=0.7)
