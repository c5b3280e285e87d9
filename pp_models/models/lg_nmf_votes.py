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
from jax.scipy.special import log_ndtr, ndtr
from numpyro.distributions import constraints
from scipy.special import ndtri

from pp_models import families as fam
from pp_models.data import types as data_
from pp_models.elimination import probit
from pp_models.errors import InputError
from pp_models.model import Count, Flag, Learning, Marginal, Model, Positive, Topics, Votes, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf


class Hyper(NamedTuple):
    """num_topics: K. alpha1, alpha2: precisions of bills' weights and members' tastes; None: unknown. a0, b0: shape and rate of their priors.

    bias: each member has an inclination to yea, offsets: given, or the probit of the member's share of yeas with one yea and one nay added.
    """

    num_topics: Count = 10
    alpha1: Positive | None = None
    alpha2: Positive | None = None
    a0: Positive = lg.WEAK
    b0: Positive = lg.WEAK
    bias: Flag = False
    offsets: tuple[float, ...] | None = None


def resolve(hyper, data):
    if not hyper.bias:
        if hyper.offsets is not None:
            raise InputError(
                "offsets are members' inclinations, which bias=False leaves out: set bias=True or leave offsets out."
            )
        return hyper
    if hyper.offsets is None:
        yeas, cast = (
            np.bincount(data.votes.indices, w, minlength=data.num_members)
            for w in (data.votes.data, None)
        )
        hyper = hyper._replace(offsets=tuple(ndtri((yeas + 1) / (cast + 2))))
    number = getattr(
        data, "num_members", len(hyper.offsets)
    )  # a fit that was stored knows only the shape of its text
    if np.shape(hyper.offsets) != (number,) or not np.all(np.isfinite(hyper.offsets)):
        raise InputError(f"offsets must be {number} finite numbers, one for each member.")
    return hyper


def offsets(hyper):
    return 0.0 if hyper.offsets is None else jnp.asarray(hyper.offsets)


def table(batch):
    """(bills, members) votes and whether they were cast."""
    cast = batch.votes.dense(batch.num_members, fill=jnp.nan)
    return jnp.where(jnp.isnan(cast), 0, cast), ~jnp.isnan(cast)


def known_votes(batch):
    """The same, rows of padding left out."""
    cast, seen = table(batch)
    return cast, seen & (batch.mask[:, None] > 0)


def generate(hyper, data):
    alpha1, alpha2 = lg.sample_precision(hyper, "alpha1"), lg.sample_precision(hyper, "alpha2")
    d1 = lg.sample_rows(
        "d1",
        lg.locations(hyper.num_topics, hyper.num_topics, True),
        data.num_columns,
        hyper.num_topics,
    )
    d2 = lg.sample_rows(
        "d2", lg.locations(alpha2, hyper.num_topics, False), data.num_members, hyper.num_topics
    )
    cast, seen = table(data)
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, True))
        numpyro.sample(
            "counts",
            dist.Normal(s @ d1.T, 1.0).to_event(1),
            obs=data.entries.dense(data.num_columns),
        )
        numpyro.sample(
            "votes",
            dist.Bernoulli(logits=probit.logit(s @ d2.T + offsets(hyper))).mask(seen).to_event(1),
            obs=cast,
        )


def guide(hyper, data):
    lg.guide_precisions(hyper)
    d1 = lg.guide_positive("d1", data.num_columns, hyper.num_topics)
    s = lg.guide_positive("s", data.num_data_rows, hyper.num_topics)
    size = hyper.num_topics
    loc = numpyro.param("d2_loc", jnp.zeros((data.num_members, size)))
    tril = numpyro.param(
        "d2_tril",
        jnp.broadcast_to(0.3 * jnp.eye(size), (data.num_members, size, size)),
        constraint=constraints.lower_cholesky,
    )
    lg.sample_rows("d1", d1(), data.num_columns, hyper.num_topics)
    lg.sample_rows("d2", dist.MultivariateNormal(loc, scale_tril=tril), data.num_members, size)
    with documents(data):
        numpyro.sample("s", s(data.positions))


def log_global(hyper, t):
    members = lg.log_table(t["d2"], lg.precision(hyper, t, "alpha2"), False)
    return lg_nmf.log_words(hyper, t["d1"]) + members + lg.log_precisions(hyper, t)


def log_utilities(model, hyper, t, batch, key=None):
    """What is left of the votes' utilities once they are eliminated, their squares aside (`probit.votes`)."""
    cast, seen = known_votes(batch)
    return probit.votes(t["s"].first @ t["d2"].first.T, cast, seen, key, offsets(hyper))


def log_votes(hyper, t, batch, key=None):
    """The part of F that votes bring."""
    _, seen = known_votes(batch)
    squares = jnp.einsum(
        "jkl,jkl->",
        t["s"].second,
        jnp.einsum("ji,ikl->jkl", seen.astype(t["s"].first.dtype), t["d2"].second),
    )
    return log_utilities(MODEL, hyper, t, batch, key) - 0.5 * squares


def log_local(hyper, t, batch, key=None):
    return lg_nmf.log_local(hyper, t, batch) + log_votes(hyper, t, batch, key)


def init(key, hyper, data):
    """As `lg_nmf`; members at random, near zero."""
    words_key, members_key = jax.random.split(key)
    tastes = 0.1 * jax.random.normal(members_key, (data.num_members, hyper.num_topics))
    first = lg_nmf.init(words_key, hyper, data)
    return {
        "s": first.pop("s"),
        "d1": first.pop("d1"),
        "d2": lg.around(tastes, 0.1, False),
        **first,
    }


# Moves that need no utilities ------------------------------------------------------------------------------------------------------

STEPS = (0.03, 0.1, 0.3, 1.0)  # of the logarithm of all members' scale: one of them suits


def elliptical(key, x, centre, noise, log_likelihood):
    """A slice-sampling step of every row of x, whose prior is normal about `centre`, given a draw of its `noise` (Murray, Adams & MacKay 2010).

    log_likelihood: (rows, K) -> (rows,), the rows' own, -inf where they cannot be. Rows stop one by one, on an ellipse through x and the noise.
    """
    level_key, angle_key, loop_key = jax.random.split(key, 3)
    level = log_likelihood(x) - jax.random.exponential(level_key, x.shape[:1], x.dtype)
    angle = jax.random.uniform(angle_key, x.shape[:1], x.dtype, maxval=2 * jnp.pi)

    def place(angle):
        return centre + jnp.cos(angle)[:, None] * (x - centre) + jnp.sin(angle)[:, None] * noise

    def shrink(carry):
        key, angle, low, high, _ = carry
        key, draw_key = jax.random.split(key)
        inside = log_likelihood(place(angle)) > level
        low, high = (
            jnp.where(~inside & (angle < 0), angle, low),
            jnp.where(~inside & (angle >= 0), angle, high),
        )
        again = low + (high - low) * jax.random.uniform(draw_key, angle.shape, angle.dtype)
        return key, jnp.where(inside, angle, again), low, high, inside | (high - low < 1e-5)

    begin = (loop_key, angle, angle - 2 * jnp.pi, angle, jnp.zeros(x.shape[:1], bool))
    _, angle, low, high, _ = jax.lax.while_loop(lambda carry: ~jnp.all(carry[4]), shrink, begin)
    return jnp.where((high - low < 1e-5)[:, None], x, place(angle))


def moves(hyper, key, values, batch):
    """`latent_gaussian.scale_moves`, and steps that forget the utilities, whose draws tie bills and members to where they are.

    Members, then bills, on ellipses of what is normal about them: d2's prior, and of s its prior and the text, cut off at zero. Then all members
    scaled by c and alpha2 by c^-2, which leaves d2's prior as it is: log c has the density of the votes times c^(-2 a0) exp(-b0 alpha2 / c^2).
    """
    scale_key, noise_key, member_key, text_key, bill_key, line_key = jax.random.split(key, 6)
    values = lg.scale_moves(hyper, scale_key, values, batch)
    if batch.num_members == 0:
        return values
    cast, seen = known_votes(batch)
    sign = jnp.where(cast > 0, 1.0, -1.0).astype(values["s"].dtype)

    def fits(s, d2):
        return jnp.where(seen, log_ndtr(sign * (s @ d2.T + offsets(hyper))), 0)

    known = lg.precisions_at(hyper, values)
    noise = jax.random.normal(noise_key, values["d2"].shape, values["d2"].dtype) / jnp.sqrt(
        known["alpha2"]
    )
    d2 = elliptical(
        member_key,
        values["d2"],
        jnp.zeros_like(noise),
        noise,
        lambda x: jnp.sum(fits(values["s"], x), 0),
    )
    text = lg.rows_of_text(fam.positive_tied.stats(values["d1"]), known["alpha1"], batch)
    centre = fam.normal_tied.mode(text).first
    noise = fam.normal_tied.sample(text_key, text).first - centre
    s = elliptical(
        bill_key,
        values["s"],
        centre,
        noise,
        lambda x: jnp.where(jnp.all(x > 0, 1), jnp.sum(fits(x, d2), 1), -jnp.inf),
    )
    values = {**values, "s": s, "d2": d2}
    if "alpha2" not in values:
        return values

    def along(log_c):
        return (
            jnp.sum(fits(s, jnp.exp(log_c) * d2))
            - 2 * hyper.a0 * log_c
            - hyper.b0 * known["alpha2"] * jnp.exp(-2 * log_c)
        )

    def attempt(log_c, step):
        move_key, accept_key = jax.random.split(jax.random.fold_in(line_key, step[0]))
        new = log_c + step[1] * jax.random.normal(move_key, (), d2.dtype)
        return jnp.where(
            -jax.random.exponential(accept_key, (), d2.dtype) < along(new) - along(log_c),
            new,
            log_c,
        ), None

    log_c, _ = jax.lax.scan(
        attempt, jnp.zeros((), d2.dtype), (jnp.arange(len(STEPS)), jnp.asarray(STEPS, d2.dtype))
    )
    return {**values, "d2": jnp.exp(log_c) * d2, "alpha2": jnp.exp(-2 * log_c) * values["alpha2"]}


def predict(hyper, values):
    """Probabilities of yea, (bills, members). Expected counts are `lg_nmf.predict`."""
    return ndtr(values["s"] @ values["d2"].T + offsets(hyper))


def example(key):
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    hyper, text = lg_nmf.example(key)
    counts = text.matrix.toarray()
    votes = (
        rng.normal(size=(len(counts), 5)) + counts @ rng.normal(size=(counts.shape[1], 5)) / 4 > 0
    ).astype(float)
    votes[rng.random(votes.shape) < 0.2] = np.nan
    return Hyper(**hyper._asdict()), data_.text_and_votes(counts, votes)


FAMILIES = {
    "s": fam.positive,
    "d1": fam.positive_tied,
    "d2": fam.normal,
    "alpha1": fam.gamma,
    "alpha2": fam.gamma,
}


def balance(hyper):
    """Scaling d1 and d2 up and s down leaves the likelihood as it is."""
    return {"d1": float(hyper.num_topics), "d2": hyper.alpha2}, {"s": hyper.alpha1}


def variant(hyper, kind):
    """alpha1 and alpha2 are sites where they are not given."""
    return VARIANTS[hyper.alpha1 is None, hyper.alpha2 is None]


def prior_of_rows(hyper, t, batch):
    """The normals that prior and text make of s."""
    return lg.rows_of_text(t["d1"], lg.precision(hyper, t, "alpha1").second, batch)


MODEL = Model(
    Hyper=Hyper,
    generate=generate,
    guide=guide,
    families=FAMILIES,
    log_global=log_global,
    log_local=log_local,
    init=init,
    predict=predict,
    symmetry="permutation",
    example=example,
    resolve=resolve,
    topics=Topics(lambda hyper, values: values["s"], lambda hyper, values: values["d1"].T),
    variant=variant,
    moves=moves,
    curved=frozenset({"s", "d2"}),
    marginal=Marginal(("alpha1", "alpha2"), balance, log_utilities),
    learning=Learning(lg.given),
    votes=Votes("s", "d2", "alpha2", offsets, prior_of_rows),
)

VARIANTS = {
    (True, True): MODEL,
    (True, False): lg.with_given(MODEL, alpha2=1.3),
    (False, True): lg.with_given(MODEL, alpha1=0.7),
    (False, False): lg.with_given(MODEL, alpha1=0.7, alpha2=1.3),
}
