"""Latent Gaussian nonnegative matrix factorisation (LG-NMF, H 2.1; Hu et al. 2014).

Counts are Gaussian about a product of nonnegative factors whose priors are normals cut off at zero:

    alpha1 ~ Gamma(a0, b0)
    d1_i   ~ N+(0, I / K)                  words i = 1..p
    s_j    ~ N+(0, I / alpha1)             documents j = 1..n
    C_ij   ~ N(d1_i's_j, 1)                                                             H(3)

With t(d1) = (d1_i, sum_i d1_i d1_i') and t(s) = (s_j, s_j s_j'), F is `latent_gaussian.log_text` and the priors; zeros of C are in the two Gram
matrices. A row's coordinates are coupled: the conditional of s_j has the precision alpha1 I + sum_i d1_i d1_i' (H 10, which calls it Sigma), and a
product of independent positive normals is fitted to it one coordinate at a time (`families.positive`).

| here   | H             |
|--------|---------------|
| d1     | D_1 (words x K) |
| s      | S (documents x K) |
| alpha1 | alpha_1: a number if given, else a site with prior Gamma(a0, b0) |
| a0, b0 | 1e-6 |

H(6) lacks the factor 1/2 of the squared error, and its f holds -(n K / 2) log alpha1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination.row_solver import RowInfo
from pp_models.families import Pair
from pp_models.model import Count, Learning, Marginal, Model, Positive, Topics, documents
from pp_models.models import _latent_gaussian as lg


class Hyper(NamedTuple):
    """num_topics: K. alpha1: precision of the documents' weights; None: unknown. a0, b0: shape and rate of its prior."""

    num_topics: Count = 10
    alpha1: Positive | None = None
    a0: Positive = lg.WEAK
    b0: Positive = lg.WEAK


def generate(hyper, data):
    alpha1 = lg.sample_precision(hyper, "alpha1")
    d1 = lg.sample_rows(
        "d1",
        lg.locations(hyper.num_topics, hyper.num_topics, True),
        data.num_columns,
        hyper.num_topics,
    )
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, True))
        numpyro.sample(
            "counts",
            dist.Normal(s @ d1.T, 1.0).to_event(1),
            obs=data.entries.dense(data.num_columns),
        )


def log_words(hyper, d1):
    """The prior of d1, whose precision is K."""
    return lg.log_table(d1, Pair(jnp.log(float(hyper.num_topics)), float(hyper.num_topics)), True)


def log_global(hyper, t):
    return log_words(hyper, t["d1"]) + lg.log_precisions(hyper, t)


def log_local(hyper, t, batch, key=None):
    return lg.log_batch(t["s"], lg.precision(hyper, t, "alpha1"), True, batch) + lg.log_text(
        t["s"], t["d1"], batch
    )


def solve_local(hyper, t, batch, start, options, summary):
    """Rows share their precision, alpha1 I + sum_i d1_i d1_i', and what words say of them does not depend on where they are: their natural
    parameters are known at once.

    The mode keeps one precision for all rows, which makes settling them one product of matrices (`positive_normal`), and their statistics another.
    Rows that only fill the batch up are zero there.
    """
    alpha1 = lg.precision(hyper, t, "alpha1").second
    natural = lg.rows_of_text(t["d1"], alpha1, batch)
    if summary != "mode":
        natural = Pair(
            natural.first,
            jnp.broadcast_to(natural.second, (batch.num_rows, *natural.second.shape[1:])),
        )
    return (
        {"s": natural},
        RowInfo(jnp.ones(batch.num_rows, int), jnp.zeros(batch.num_rows, batch.mask.dtype)),
        batch,
    )


def init(key, hyper, data):
    begin = lg.start(key, hyper, data)
    known = {name: Pair(jnp.full(1, 10.0), -10.0 / begin[name]) for name in lg.latent(hyper)}
    return {
        "s": lg.around(begin["s"], 0.3 * begin["s"][:, :1], False),
        "d1": lg.around(begin["d1"], 0.1 / jnp.sqrt(hyper.num_topics), True),
        **known,
    }


def predict(hyper, values):
    """Expected counts."""
    return values["s"] @ values["d1"].T


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    words, weights = np.abs(rng.normal(size=(7, 2))), np.abs(rng.normal(size=(9, 2)))
    counts = np.maximum(np.round(3 * weights @ words.T + rng.normal(size=(9, 7))), 0)
    return Hyper(num_topics=2, a0=4.0, b0=2.0), data_.counts(counts)


def variant(hyper, kind):
    """alpha1 is a site where it is not given."""
    return MODEL if hyper.alpha1 is None else FIXED


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    families={"s": fam.positive, "d1": fam.positive_tied, "alpha1": fam.gamma},
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    solve_local=solve_local,
    topics=Topics(lambda hyper, values: values["s"], lambda hyper, values: values["d1"].T),
    variant=variant,
    moves=lg.scale_moves,
    marginal=Marginal(
        ("alpha1",), lambda hyper: ({"d1": float(hyper.num_topics)}, {"s": hyper.alpha1})
    ),
    learning=Learning(lg.given),
)
FIXED = lg.with_given(MODEL, alpha1=0.7)
