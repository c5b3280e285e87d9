"""Latent Gaussian factorisation of text and votes (H 2.2; Hu et al. 2014).

`lg_nmf` for the text of bills, whose weights s_j also decide the votes on them: member i's utility of bill j is d2_i's_j with unit noise, positive
meaning yea.

    alpha1, alpha2 ~ Gamma(a0, b0)
    d1_i ~ N+(0, I / K)                    words
    d2_i ~ N(0, I / alpha2)                members                                      H(5)
    s_j  ~ N+(0, I / alpha1)               bills
    C_ij ~ N(d1_i's_j, 1)
    B_ij ~ Bernoulli(Phi(d2_i's_j + offset_i))                                          H(4) with the probit link of H(2)

Votes that were not cast are missing and say nothing; members without any vote have the prior. Without text (`text_and_votes(None, B)`) votes are
explained alone; without members it is `lg_nmf`.

F is `lg_nmf`'s, with the utilities eliminated (`probit.votes`): sum log Phi(+-m_ij) + m_ij^2 / 2 - E (d2_i's_j)^2 / 2 over the votes seen.

| here   | H   |
|--------|-----|
| d1, d2 | D_1, D_2 |
| s      | S   |
| alpha1, alpha2 | alpha_1, alpha_2: numbers if given, else sites with prior Gamma(a0, b0) |
| bias, offsets | - (none, as in H; with bias=True each member's own) |
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import ndtr
from numpyro.distributions import constraints
from scipy.special import ndtri

from pp_models import data as data_
from pp_models import families as fam
from pp_models import latent_gaussian as lg
from pp_models import lg_nmf, probit
from pp_models.base import Model, documents
from pp_models.errors import InputError


class Hyper(NamedTuple):
    """num_topics: K. alpha1, alpha2: precisions of bills' weights and members' tastes; None: unknown. a0, b0: shape and rate of their priors.

    bias: each member has an inclination to yea, offsets: given, or the probit of the member's share of yeas with one yea and one nay added.
    """

    num_topics: int = 10
    alpha1: float | None = None
    alpha2: float | None = None
    a0: float = lg.WEAK
    b0: float = lg.WEAK
    bias: bool = False
    offsets: tuple[float, ...] | None = None


def resolve(hyper, data):
    hyper = lg.resolve(hyper, data)
    if not isinstance(hyper.bias, bool):
        raise InputError(f"bias must be True or False, not {hyper.bias!r}.")
    if not hyper.bias:
        if hyper.offsets is not None:
            raise InputError("offsets are members' inclinations, which bias=False leaves out: set bias=True or leave offsets out.")
        return hyper
    if hyper.offsets is None:
        yeas, cast = (np.bincount(data.votes.indices, w, minlength=data.num_members) for w in (data.votes.data, None))
        hyper = hyper._replace(offsets=tuple(ndtri((yeas + 1) / (cast + 2))))
    number = getattr(data, "num_members", len(hyper.offsets))  # a fit that was stored knows only the shape of its text
    if np.shape(hyper.offsets) != (number,) or not np.all(np.isfinite(hyper.offsets)):
        raise InputError(f"offsets must be {number} finite numbers, one for each member.")
    return hyper


def offsets(hyper):
    return 0.0 if hyper.offsets is None else jnp.asarray(hyper.offsets)


def table(batch):
    """(bills, members) votes and whether they were cast."""
    cast = batch.votes.dense(batch.num_members, fill=jnp.nan)
    return jnp.where(jnp.isnan(cast), 0, cast), ~jnp.isnan(cast)


def generate(hyper, data):
    alpha1, alpha2 = lg.sample_precision(hyper, "alpha1"), lg.sample_precision(hyper, "alpha2")
    d1 = lg.sample_rows("d1", lg.locations(hyper.num_topics, hyper.num_topics, True), data.num_columns, hyper.num_topics)
    d2 = lg.sample_rows("d2", lg.locations(alpha2, hyper.num_topics, False), data.num_members, hyper.num_topics)
    cast, seen = table(data)
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, True))
        numpyro.sample("counts", dist.Normal(s @ d1.T, 1.0).to_event(1), obs=data.entries.dense(data.num_columns))
        numpyro.sample("votes", dist.Bernoulli(logits=probit.logit(s @ d2.T + offsets(hyper))).mask(seen).to_event(1), obs=cast)


def guide(hyper, data):
    lg.guide_precisions(hyper)
    d1 = lg.guide_positive("d1", data.num_columns, hyper.num_topics)
    s = lg.guide_positive("s", data.num_data_rows, hyper.num_topics)
    size = hyper.num_topics
    loc = numpyro.param("d2_loc", jnp.zeros((data.num_members, size)))
    tril = numpyro.param("d2_tril", jnp.broadcast_to(0.3 * jnp.eye(size), (data.num_members, size, size)), constraint=constraints.lower_cholesky)
    lg.sample_rows("d1", d1(), data.num_columns, hyper.num_topics)
    lg.sample_rows("d2", dist.MultivariateNormal(loc, scale_tril=tril), data.num_members, size)
    with documents(data):
        numpyro.sample("s", s(data.positions))


def log_global(hyper, t):
    members = lg.log_table(t["d2"], lg.precision(hyper, t, "alpha2"), False)
    return lg_nmf.log_words(hyper, t["d1"]) + members + lg.log_precisions(hyper, t)


def log_votes(hyper, t, batch, key=None):
    """The part of F that votes bring."""
    cast, seen = table(batch)
    seen = seen & (batch.mask[:, None] > 0)
    squares = jnp.einsum("jkl,jkl->", t["s"].second, jnp.einsum("ji,ikl->jkl", seen.astype(t["s"].first.dtype), t["d2"].second))
    return probit.votes(t["s"].first @ t["d2"].first.T, cast, seen, key, offsets(hyper)) - 0.5 * squares


def log_local(hyper, t, batch, key=None):
    return lg_nmf.log_local(hyper, t, batch) + log_votes(hyper, t, batch, key)


def init(key, hyper, data):
    """As `lg_nmf`; members at random, near zero."""
    words_key, members_key = jax.random.split(key)
    tastes = 0.1 * jax.random.normal(members_key, (data.num_members, hyper.num_topics))
    first = lg_nmf.init(words_key, hyper, data)
    return {"s": first.pop("s"), "d1": first.pop("d1"), "d2": lg.around(tastes, 0.1, False), **first}


def predict(hyper, values):
    """Probabilities of yea, (bills, members). Expected counts are `lg_nmf.predict`."""
    return ndtr(values["s"] @ values["d2"].T + offsets(hyper))


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    hyper, text = lg_nmf.example(key)
    counts = text.matrix.toarray()
    votes = (rng.normal(size=(len(counts), 5)) + counts @ rng.normal(size=(counts.shape[1], 5)) / 4 > 0).astype(float)
    votes[rng.random(votes.shape) < 0.2] = np.nan
    return Hyper(**hyper._asdict()), data_.text_and_votes(counts, votes)


FAMILIES = {"s": fam.positive, "d1": fam.positive_tied, "d2": fam.normal, "alpha1": fam.gamma, "alpha2": fam.gamma}


def variant(hyper, kind):
    """alpha1 and alpha2 are sites where they are not given."""
    return VARIANTS[hyper.alpha1 is None, hyper.alpha2 is None]


MODEL = Model(
    name="lg_nmf_votes",
    kind="text_and_votes",
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families=FAMILIES,
    local=frozenset({"s"}),
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    observed="votes",
    resolve=resolve,
    weights=lambda hyper, values: values["s"],
    topics=lambda hyper, values: values["d1"].T,
    coupled="prior",
    variant=variant,
    moves=lg.scale_moves,
    gridded=("alpha1", "alpha2"),
    balance=lambda hyper: ({"d1": float(hyper.num_topics), "d2": hyper.alpha2}, {"s": hyper.alpha1}),
    curved=frozenset({"s", "d2"}),
    learn=lambda hyper: {name: getattr(hyper, name) for name in lg.PRECISIONS if getattr(hyper, name) is not None},
)


def _without(*names):
    return Model(**{**MODEL.__dict__, "families": {site: family for site, family in FAMILIES.items() if site not in names}})


VARIANTS = {
    (True, True): MODEL,
    (True, False): _without("alpha2"),
    (False, True): _without("alpha1"),
    (False, False): _without("alpha1", "alpha2"),
}
