r"""Latent Gaussian factorisation of text and votes (Hu et al. 2014).

`lg_nmf` for the text of bills, whose weights $s_j$ also decide the votes on them: member $i$ has
the utility $d_{2i}^\top s_j$ of bill $j$ with unit noise, and votes yea if it is positive (Hu et
al., H):

$$\begin{align*}
\alpha_1, \alpha_2 &\sim \operatorname{Gamma}(a_0, b_0) && \text{precisions} \\
d_{1i} &\sim \operatorname{N}^+(0, I / K) && \text{words} \\
d_{2i} &\sim \operatorname{N}(0, I / \alpha_2) && \text{members, H(5)} \\
s_j &\sim \operatorname{N}^+(0, I / \alpha_1) && \text{bills} \\
C_{ij} &\sim \operatorname{N}(d_{1i}^\top s_j, 1) && \text{counts} \\
B_{ij} &\sim \operatorname{Bernoulli}(\Phi(d_{2i}^\top s_j + \text{offset}_i)) && \text{votes, H(4)}
\end{align*}$$

The probit link is that of H(2). Votes that were not cast are missing; members without any vote have
the prior. Without text (`text_and_votes(None, B)`) votes are explained alone; without members this
is `lg_nmf`.

F is that of `lg_nmf` and the votes, with their utilities eliminated (`probit.votes`). Over the
votes seen, with $m_{ij} = E[d_{2i}]^\top E[s_j]$ and the sign $\pm$ of the vote,

$$\sum_{ij} \log \Phi(\pm (m_{ij} + \text{offset}_i)) + \frac12 m_{ij}^2
- \frac12 E (d_{2i}^\top s_j)^2.$$

| here | H |
|---|---|
| `d1`, `d2` | $D_1, D_2$ |
| `s` | $S$ |
| `alpha1`, `alpha2` | $\alpha_1, \alpha_2$: numbers if given, else sites with a gamma prior |
| `bias`, `offsets` | – (none, as in H; with `bias=True` one per member) |
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
from pp_models.model import Count, Flag, Learning, Marginal, Model, Positive, Votes, documents
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf
from pp_models.models._examples import generator


class Hyper(NamedTuple):
    """num_topics: K. alpha1, alpha2: precisions of bills' weights and members' tastes; None:
    unknown. a0, b0: shape and rate of their priors. bias: each member has an inclination to yea.
    offsets: the inclinations; by default the probit of the member's share of yeas, with one yea and
    one nay added."""

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
                "offsets are members' inclinations, which bias=False leaves out: "
                "set bias=True or leave offsets out."
            )
        return hyper
    if hyper.offsets is None:
        members, number = data.votes.indices, data.num_members
        yeas, cast = (np.bincount(members, w, minlength=number) for w in (data.votes.data, None))
        hyper = hyper._replace(offsets=tuple(ndtri((yeas + 1) / (cast + 2))))
    # A stored fit knows only the shape of its text.
    number = getattr(data, "num_members", len(hyper.offsets))
    if np.shape(hyper.offsets) != (number,) or not np.all(np.isfinite(hyper.offsets)):
        raise InputError(f"offsets must be {number} finite numbers, one for each member.")
    return hyper


def offsets(hyper):
    return 0.0 if hyper.offsets is None else jnp.asarray(hyper.offsets)


def table(batch):
    """(bills, members) votes, and whether they were cast."""
    cast = batch.votes.dense(batch.num_members, fill=jnp.nan)
    return jnp.where(jnp.isnan(cast), 0, cast), ~jnp.isnan(cast)


def known_votes(batch):
    """The same, without rows of padding."""
    cast, seen = table(batch)
    return cast, seen & (batch.mask[:, None] > 0)


def generate(hyper, data):
    alpha1, alpha2 = (lg.sample_precision(hyper, name) for name in lg.PRECISIONS)
    d1 = lg.sample_words(hyper, data, positive=True)
    tastes = lg.locations(alpha2, hyper.num_topics, False)
    d2 = lg.sample_rows("d2", tastes, data.num_members)
    cast, seen = table(data)
    with documents(data):
        s = numpyro.sample("s", lg.locations(alpha1, hyper.num_topics, True))
        lg.sample_text(s, d1, data)
        votes = dist.Bernoulli(logits=probit.logit(s @ d2.T + offsets(hyper)))
        numpyro.sample("votes", votes.mask(seen).to_event(1), obs=cast)


def guide(hyper, data):
    K, members = hyper.num_topics, data.num_members

    def positive_normals(name, size):
        def begin(key):
            return 0.5 + 0.5 * jax.random.uniform(key, (size, K))

        loc, narrow = numpyro.param(f"{name}_loc", begin), 0.3 * jnp.ones((size, K))
        return loc, numpyro.param(f"{name}_scale", narrow, constraint=constraints.positive)

    for name in lg.latent(hyper):
        a, b = (
            numpyro.param(f"{name}_{part}", 5.0 * jnp.ones(1), constraint=constraints.positive)
            for part in ("shape", "rate")
        )
        numpyro.sample(name, dist.Gamma(a, b).to_event(1))
    d1 = positive_normals("d1", data.num_columns)
    loc, scale = positive_normals("s", data.num_data_rows)
    d2, narrow = numpyro.param("d2_loc", jnp.zeros((members, K))), 0.3 * jnp.eye(K)
    spread = jnp.broadcast_to(narrow, (members, K, K))
    tril = numpyro.param("d2_tril", spread, constraint=constraints.lower_cholesky)
    lg.sample_rows("d1", fam.PositiveNormal(*d1).to_event(1), data.num_columns)
    lg.sample_rows("d2", dist.MultivariateNormal(d2, scale_tril=tril), members)
    with documents(data):
        rows = fam.PositiveNormal(loc[data.positions], scale[data.positions])
        numpyro.sample("s", rows.to_event(1))


def log_global(hyper, t):
    members = lg.log_table(t["d2"], lg.precision(hyper, t, "alpha2"), False)
    return lg.log_words(hyper, t["d1"], True) + members + lg.log_precisions(hyper, t)


def log_utilities(model, hyper, t, batch, key=None):
    """The votes' part of F without the squares of the utilities (`probit.votes`)."""
    cast, seen = known_votes(batch)
    return probit.votes(t["s"].first @ t["d2"].first.T, cast, seen, key, offsets(hyper))


def log_local(hyper, t, batch, key=None):
    _, seen = known_votes(batch)
    members = jnp.einsum("ji,ikl->jkl", seen.astype(t["s"].first.dtype), t["d2"].second)
    squares = jnp.einsum("jkl,jkl->", t["s"].second, members)
    votes = log_utilities(MODEL, hyper, t, batch, key) - 0.5 * squares
    return lg_nmf.log_local(hyper, t, batch) + votes


def init(key, hyper, data):
    """As `lg_nmf`; members at random, near zero."""
    words_key, members_key = jax.random.split(key)
    tastes = 0.1 * jax.random.normal(members_key, (data.num_members, hyper.num_topics))
    return {**lg_nmf.init(words_key, hyper, data), "d2": lg.around(tastes, 0.1, False)}


# Moves that need no utilities -----------------------------------------------------------------

STEPS = (0.03, 0.1, 0.3, 1.0)  # of the logarithm of all members' scale: one of them suits


def elliptical(key, x, centre, noise, log_likelihood):
    """An elliptical slice-sampling step of every row of x (Murray, Adams & MacKay 2010).

    The prior of a row is normal about `centre`, and `noise` a draw of its deviation.
    log_likelihood: (rows, K) -> (rows,), -inf outside the support. Rows stop one by one.
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
        low = jnp.where(~inside & (angle < 0), angle, low)
        high = jnp.where(~inside & (angle >= 0), angle, high)
        again = low + (high - low) * jax.random.uniform(draw_key, angle.shape, angle.dtype)
        return key, jnp.where(inside, angle, again), low, high, inside | (high - low < 1e-5)

    begin = (loop_key, angle, angle - 2 * jnp.pi, angle, jnp.zeros(x.shape[:1], bool))
    _, angle, low, high, _ = jax.lax.while_loop(lambda carry: ~jnp.all(carry[4]), shrink, begin)
    return jnp.where((high - low < 1e-5)[:, None], x, place(angle))


def moves(hyper, key, values, batch):
    """`scale_moves`, and steps without the utilities, whose draws slow bills and members down.

    Members, then bills, move on ellipses of their normal part: the prior of d2; of s, prior and
    text, truncated at zero. Then all members are scaled together with alpha2.
    """
    scale_key, noise_key, member_key, text_key, bill_key, line_key = jax.random.split(key, 6)
    values = lg.scale_moves(hyper, scale_key, values, batch)
    if batch.num_members == 0:
        return values
    cast, seen = known_votes(batch)
    dtype, known = values["s"].dtype, lg.precisions_at(hyper, values)
    sign = jnp.where(cast > 0, 1.0, -1.0).astype(dtype)

    def fits(s, d2):
        return jnp.where(seen, log_ndtr(sign * (s @ d2.T + offsets(hyper))), 0)

    def of_members(d2):
        return jnp.sum(fits(values["s"], d2), 0)

    def of_bills(s):
        return jnp.where(jnp.all(s > 0, 1), jnp.sum(fits(s, d2), 1), -jnp.inf)

    noise = jax.random.normal(noise_key, values["d2"].shape, dtype) / jnp.sqrt(known["alpha2"])
    d2 = elliptical(member_key, values["d2"], jnp.zeros_like(noise), noise, of_members)
    text = lg.rows_of_text(fam.positive_tied.stats(values["d1"]), known["alpha1"], batch)
    centre = fam.normal_tied.mode(text).first
    noise = fam.normal_tied.sample(text_key, text).first - centre
    s = elliptical(bill_key, values["s"], centre, noise, of_bills)
    values = {**values, "s": s, "d2": d2}
    if "alpha2" not in values:
        return values
    log_c = _scale(line_key, hyper, known["alpha2"], lambda c: jnp.sum(fits(s, c * d2)), dtype)
    return {**values, "d2": jnp.exp(log_c) * d2, "alpha2": jnp.exp(-2 * log_c) * values["alpha2"]}


def _scale(key, hyper, alpha2, log_likelihood, dtype):
    r"""log c after Metropolis steps that scale all members by c and alpha2 by $c^{-2}$.

    This leaves the prior of d2 as it is; log c has the density of the votes times
    $c^{-2 a_0} \exp(-b_0 \alpha_2 / c^2)$.
    """

    def height(log_c):
        prior = -2 * hyper.a0 * log_c - hyper.b0 * alpha2 * jnp.exp(-2 * log_c)
        return log_likelihood(jnp.exp(log_c)) + prior

    def attempt(log_c, step):
        move_key, accept_key = jax.random.split(jax.random.fold_in(key, step[0]))
        new = log_c + step[1] * jax.random.normal(move_key, (), dtype)
        log_uniform = -jax.random.exponential(accept_key, (), dtype)
        return jnp.where(log_uniform < height(new) - height(log_c), new, log_c), None

    steps = jnp.arange(len(STEPS)), jnp.asarray(STEPS, dtype)
    return jax.lax.scan(attempt, jnp.zeros((), dtype), steps)[0]


def predict(hyper, values):
    """Probabilities of yea, (bills, members). Expected counts are `lg_nmf.predict`."""
    return ndtr(values["s"] @ values["d2"].T + offsets(hyper))


def example(key):
    rng, (hyper, text) = generator(key), lg_nmf.example(key)
    counts = text.matrix.toarray()
    utilities = rng.normal(size=(len(counts), 5))
    utilities += counts @ rng.normal(size=(counts.shape[1], 5)) / 4
    votes = (utilities > 0).astype(float)
    votes[rng.random(votes.shape) < 0.2] = np.nan
    return Hyper(**hyper._asdict()), data_.text_and_votes(counts, votes)


def balance(hyper):
    """Scaling d1 and d2 up and s down leaves the likelihood as it is."""
    return {"d1": float(hyper.num_topics), "d2": hyper.alpha2}, {"s": hyper.alpha1}


def prior_of_rows(hyper, t, batch):
    """The normals that the prior and the text make of s."""
    return lg.rows_of_text(t["d1"], lg.precision(hyper, t, "alpha1").second, batch)


FACTORS = {"s": fam.positive, "d1": fam.positive_tied, "d2": fam.normal}

MODEL = Model.of(
    globals(),
    families={**FACTORS, "alpha1": fam.gamma, "alpha2": fam.gamma},
    symmetry="permutation",
    topics=lg_nmf.MODEL.topics,
    curved=frozenset({"s", "d2"}),
    marginal=Marginal(lg.PRECISIONS, balance, log_utilities, lg.held),
    learning=Learning(lg.PRECISIONS),
    votes=Votes("s", "d2", "alpha2", offsets, prior_of_rows),
)
