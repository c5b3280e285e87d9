"""LG-NMF, with votes, and LG-OP (H): probit links, what joins and separates the three."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from numpyro.infer.util import log_density

import inference
import pp_models
from inference.core import objective
from inference.engines import _gibbs_sweep as gibbs
from inference.engines import _held
from inference.run import fit as fitting
from pp_models import data as data_
from pp_models import families as fam
from pp_models import model as base
from pp_models.elimination import probit
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.models import _latent_gaussian as lg
from pp_models.models import lg_nmf, lg_nmf_votes

# Links -------------------------------------------------------------------------------------------


def test_votes_gradient_is_the_mean_utility():
    """d/dm of log Phi(+-(m + o)) + m^2/2 is E[u] - o of a truncated normal; with a key, drawn
    utilities average to it (five standard errors)."""
    m, outcome = jnp.asarray([[-2.0, 0.3, 1.5, -40.0]]), jnp.asarray([[1.0, 0.0, 1.0, 1.0]])
    seen = jnp.ones(m.shape, bool).at[0, 1].set(False)
    gradient = jax.grad(lambda m: probit.votes(m, outcome, seen, None, 0.7))(m)
    expected = scipy.stats.truncnorm(-(m + 0.7), np.inf, loc=m + 0.7).mean() - 0.7
    np.testing.assert_allclose(gradient[0, [0, 2]], expected[0, [0, 2]], rtol=1e-9)
    assert gradient[0, 1] == 0 and np.isfinite(gradient[0, 3])
    draws = jax.vmap(jax.grad(lambda m, key: probit.votes(m, outcome, seen, key, 0.7)), (None, 0))(
        m, jax.random.split(jax.random.key(0), 20_000)
    )
    error = draws.std(0) / np.sqrt(20_000)
    assert np.all(np.abs(draws.mean(0) - gradient)[0, [0, 2]] < 5 * error[0, [0, 2]])


def ordinal_reference(rows, columns, counts):
    m = rows @ columns
    low = np.where(counts > 0, counts - 1, -np.inf) - m
    return np.sum(
        np.log(
            scipy.stats.norm.cdf(np.where(counts > 0, counts, 0) - m) - scipy.stats.norm.cdf(low)
        )
        + 0.5 * m**2
    )


@pytest.mark.slow
def test_ordinal_is_the_dense_sum():
    """Value and both gradients, over more rows than are visited at a time, with padding; draws of
    utilities fall into their intervals."""
    rng = np.random.default_rng(0)
    counts = np.maximum(rng.poisson(1.0, (37, 9)) - 1, 0)
    counts[0, 0] = 1
    batch = data_.counts(counts).pack(np.arange(37), 40)
    rows, columns = (
        jnp.asarray(rng.normal(size=(40, 3)) * 0.5),
        jnp.asarray(rng.normal(size=(3, 9)) * 0.5),
    )

    def value(rows, columns, key=None):
        return probit.ordinal(rows, columns, batch.entries, batch.mask, key)

    np.testing.assert_allclose(
        value(rows, columns),
        ordinal_reference(np.asarray(rows[:37]), np.asarray(columns), counts),
        rtol=1e-10,
    )
    found, wanted = (
        jax.grad(f, (0, 1))(rows, columns)
        for f in (value, lambda r, c: _dense_ordinal(r[:37], c, counts))
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = jax.lax.map(
        lambda k: jax.grad(value)(rows, jnp.eye(3, 9), k)[:37], keys
    )  # utilities of the first three columns, at their means
    expected = jax.grad(value)(rows, jnp.eye(3, 9))[:37]
    error = np.asarray(drawn).std(0) / np.sqrt(4000)
    assert np.all(np.abs(np.asarray(drawn).mean(0) - expected) < 5.5 * error)
    low = np.where(counts[:, :3] > 0, counts[:, :3] - 1, -np.inf)
    assert np.all(
        (np.asarray(drawn) >= low)
        & (np.asarray(drawn) <= np.where(counts[:, :3] > 0, counts[:, :3], 0))
    )


def _dense_ordinal(rows, columns, counts):
    m = rows @ columns
    return jnp.sum(probit.log_probability(m, jnp.asarray(counts, float)) + 0.5 * m**2)


def test_ordinal_gradients_are_the_mean_utilities():
    """Of both sides, those of the dense sum, whose log probabilities are differentiated as they
    are."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(1.0, (4, 3))
    batch = data_.counts(counts).pack()
    sides = jnp.asarray(rng.normal(size=(4, 2))), jnp.asarray(rng.normal(size=(2, 3)))
    found = jax.grad(lambda r, c: probit.ordinal(r, c, batch.entries, batch.mask), (0, 1))(*sides)
    for a, b in zip(
        found, jax.grad(lambda r, c: _dense_ordinal(r, c, counts), (0, 1))(*sides), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_ordinal_probabilities_add_up():
    """Over all counts to one, with the mean that `expected_count` gives; far out they stay
    finite."""
    mean = jnp.asarray([-3.0, 0.0, 1.7, 4.0, 11.3])
    counts = jnp.arange(40.0)
    p = jnp.exp(probit.log_probability(mean[:, None], counts))
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(p @ counts, probit.expected_count(mean), atol=1e-7)
    with jax.enable_x64(False):
        far = probit.log_probability(
            jnp.asarray([-60.0, 60.0, 0.0, 500.0], jnp.float32),
            jnp.asarray([3.0, 0.0, 900.0, 900.0], jnp.float32),
        )
        assert np.all(np.isfinite(far)) and np.all(far < -100)


# The models --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_votes_of_nobody_change_nothing():
    """Without members `lg_nmf_votes` is `lg_nmf`: the same joint density and the same fit."""
    hyper, data = lg_nmf.example(jax.random.key(0))
    both = data_.text_and_votes(data.matrix, np.zeros((data.num_rows, 0)))
    options = {"key": jax.random.key(1), "progress": False, "num_epochs": 5, "tolerance": 0.0}
    alone = fitting.make_problem("lg_nmf", data, hyper)
    start = {
        site: alone.model.init(jax.random.key(3), alone.hyper, data)[site]
        for site in ("d1", "alpha1")
    }
    fits = [
        inference.fit(
            name,
            rows,
            "cavi",
            hyper._asdict() | ({"alpha2": 1.0} if name == "lg_nmf_votes" else {}),
            init=start,
            **options,
        )
        for name, rows in (("lg_nmf", data), ("lg_nmf_votes", both))
    ]
    np.testing.assert_allclose(fits[0].history["bound"], fits[1].history["bound"], rtol=1e-12)
    for site in ("d1", "s", "alpha1"):
        np.testing.assert_allclose(
            fits[0].posterior.mean(site), fits[1].posterior.mean(site), rtol=1e-9
        )


@pytest.mark.parametrize(
    ("name", "tied"),
    [("lg_nmf", True), ("lg_nmf", False), ("lg_nmf_votes", False), ("lg_op", False)],
)
def test_padding_is_nothing(name, tied):
    """Rows that only fill a batch up change no density, whatever is in them; where rows' squares
    are added up beforehand, they are not among them."""
    model = pp_models.load(name)
    hyper, data = model.example(jax.random.key(0))
    hyper = hyper._replace(
        **{precision: 0.7 for precision in lg.PRECISIONS if precision in hyper._fields}
    )
    rng = np.random.default_rng(0)
    s = jnp.asarray(rng.gamma(1.0, 1.0, (data.num_rows + 3, 2)))
    others = {
        site: rng.gamma(1.0, 1.0, (size, 2))
        for site, size in (("d1", data.num_columns), ("d2", 5))
        if site in model.families
    }
    t = {site: model.families[site].stats(jnp.asarray(x)) for site, x in others.items()}

    def rows(s):
        real = s[: data.num_rows]
        return fam.Pair(s, (real.T @ real)[None]) if tied else model.families["s"].stats(s)

    alone, padded = (
        model.log_local(
            hyper, {**t, "s": rows(s[:size])}, data.pack(np.arange(data.num_rows), size)
        )
        for size in (data.num_rows, len(s))
    )
    np.testing.assert_allclose(padded, alone, rtol=1e-12)


def test_rows_of_points_are_nonnegative_least_squares():
    """Fresh rows, of a stochastic step or a held-out document, end at NNLS with a ridge, though a
    sweep of `map` goes only a part of the way."""
    rng = np.random.default_rng(0)
    d1 = np.abs(rng.normal(size=(40, 6)))
    counts = np.maximum(
        np.round(4 * np.abs(rng.normal(size=(25, 6))) @ d1.T + rng.normal(size=(25, 40))), 0
    )
    problem = fitting.make_problem(
        "lg_nmf",
        data_.counts(counts),
        {"num_topics": 6, "alpha1": 0.5},
        devices=jax.local_devices()[:1],
    )
    batch = problem.data.pack()
    shared, start = (
        {"d1": fam.positive_tied.stats(jnp.asarray(d1))},
        objective.start_local(problem.model, problem.hyper, batch, "mode"),
    )
    part = objective.local_part(
        problem.model, problem.hyper, shared, batch, start, RowOptions(2000, 0.0), "mode"
    )
    stacked = np.concatenate([d1, np.sqrt(0.5) * np.eye(6)])
    wanted = np.stack(
        [scipy.optimize.nnls(stacked, np.concatenate([row, np.zeros(6)]))[0] for row in counts]
    )
    np.testing.assert_allclose(part.stats["s"].first, wanted, atol=1e-7)


def test_rows_without_text_have_their_prior():
    """Votes alone: what words say of a bill is nothing, so that Gibbs' moves along the text work
    without any."""
    batch = data_.text_and_votes(None, [[1.0, 0.0], [0.0, 1.0]]).pack()
    found = lg.rows_of_text(fam.positive_tied.stats(jnp.zeros((0, 3))), 0.7, batch)
    np.testing.assert_allclose(found.first, np.zeros((2, 3)))
    np.testing.assert_allclose(-2 * found.second[0], 0.7 * np.eye(3))


@pytest.mark.slow
def test_votes_alone():
    """Without text, votes are explained by themselves; members who never vote have the prior."""
    rng = np.random.default_rng(0)
    taste, bills = rng.normal(size=(6, 2)), np.abs(rng.normal(size=(30, 2)))
    votes = (3 * bills @ taste.T + rng.normal(size=(30, 6)) > 0).astype(float)
    votes[:, 5] = np.nan
    data = data_.text_and_votes(None, votes)
    fit = inference.fit(
        "lg_nmf_votes",
        data,
        "cavi",
        {"num_topics": 2, "alpha1": 1.0, "alpha2": 1.0},
        progress=False,
        num_epochs=20,
    )
    said = np.asarray(
        lg_nmf_votes.predict(
            fit.hyper, {site: fit.posterior.mean(site) for site in ("s", "d1", "d2")}
        )
    )
    seen = ~np.isnan(votes)
    assert np.mean((said > 0.5)[seen] == votes[seen]) > 0.8
    np.testing.assert_allclose(fit.posterior.mean("d2")[5], 0, atol=1e-6)
    np.testing.assert_allclose(fit.posterior.sd("d2")[5], 1, rtol=1e-6)
    batch = data.pack()
    values = {
        site: fit.posterior.sample(jax.random.key(0), 1)[site][0] for site in ("s", "d1", "d2")
    }
    theirs, _ = log_density(
        lg_nmf_votes.generate, (fit.hyper, batch), {}, {site: values[site] for site in ("s", "d2")}
    )
    np.testing.assert_allclose(
        base.log_joint(fit.model, fit.hyper, values, batch), theirs, rtol=1e-9
    )


def test_counts_of_equal_length():
    """Rows of about the length asked for, rounded to whole numbers; a length that cannot be is
    refused."""
    scaled = data_.of_equal_length([[3, 4, 0], [300, 0, 400], [0, 0, 0]], 50).toarray()
    np.testing.assert_array_equal(scaled, [[30, 40, 0], [30, 0, 40], [0, 0, 0]])
    for length in (0, -1.0, float("nan"), True):
        with pytest.raises(InputError, match="length must be"):
            data_.of_equal_length([[1]], length)


def test_bias_is_each_members_inclination():
    """Offsets are probits of smoothed shares of yeas; without s they are all the votes say."""
    _, data = lg_nmf_votes.example(jax.random.key(0))
    offsets = base.make_hyper(lg_nmf_votes.MODEL, {"num_topics": 2, "bias": True}, data).offsets
    dense = data.votes.toarray()
    cast = np.bincount(data.votes.indices, minlength=5)
    np.testing.assert_allclose(offsets, scipy.stats.norm.ppf((dense.sum(0) + 1) / (cast + 2)))
    with pytest.raises(InputError, match="bias=False leaves out"):
        base.make_hyper(lg_nmf_votes.MODEL, {"offsets": (1.0,) * 5}, data)
    with pytest.raises(InputError, match="offsets must be 5"):
        base.make_hyper(lg_nmf_votes.MODEL, {"bias": True, "offsets": (1.0, 2.0)}, data)


@pytest.mark.slow
def test_no_dense_array_of_words_and_documents():
    """F of LG-NMF and its gradients never hold an array with a number for each cell of the
    matrix."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(
        0.05, (161, 103)
    )  # tables have lines of 64 numbers, of which a cell may not be one
    problem = fitting.make_problem(
        "lg_nmf", data_.counts(counts), {"num_topics": 3}, devices=jax.local_devices()[:1]
    )
    batch = problem.data.pack()
    stats = {
        site: family.mean(problem.model.init(jax.random.key(0), problem.hyper, problem.data)[site])
        for site, family in problem.model.families.items()
    }
    jaxpr = jax.make_jaxpr(jax.grad(lambda t: base.joint(problem.model, problem.hyper, t, batch)))(
        stats
    )
    assert max(_sizes(jaxpr.jaxpr)) < 161 * 103


def _sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (int(np.prod(v.aval.shape)) for v in equation.outvars)
        for parameter in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from _sizes(inner)


@pytest.mark.slow
def test_scale_moves_leave_the_product_alone():
    """They change scales and alpha1, not d1 s' nor d2 s'; Geweke's test, with them in the sweep, is
    shared by all models."""
    hyper, data = lg_nmf_votes.example(jax.random.key(0))
    values = base.simulate(lg_nmf_votes.MODEL, hyper, data.pack(), jax.random.key(1))
    before = {site: values[site] for site in lg_nmf_votes.MODEL.families}
    after = lg.scale_moves(hyper, jax.random.key(2), before, data.pack())
    for site in ("d1", "d2"):
        np.testing.assert_allclose(
            after["s"] @ after[site].T, before["s"] @ before[site].T, rtol=1e-9
        )
    assert np.all(after["s"] != before["s"]) and after["alpha1"] != before["alpha1"]


@pytest.mark.slow
def test_scale_moves_mix():
    """Effective draws of alpha1 in 2,000 sweeps: more than half with the moves, some tens
    without."""
    import dataclasses

    import arviz

    rng = np.random.default_rng(0)
    rate = 4 * np.abs(rng.normal(size=(40, 3))) @ np.abs(rng.normal(size=(60, 3))).T / np.sqrt(3)
    problem = fitting.make_problem(
        "lg_nmf",
        data_.counts(np.maximum(np.round(rate), 0)),
        {"num_topics": 3},
        devices=jax.local_devices()[:1],
    )
    batch = problem.data.pack()

    def effective(model):
        def one(stats, key):
            stats = gibbs.sweep(model, problem.hyper, key, stats, batch)
            return stats, jnp.log(stats["alpha1"].second[0])

        natural = model.init(jax.random.key(0), problem.hyper, problem.data)
        stats = {
            site: family.sample(jax.random.key(1), natural[site])
            for site, family in model.families.items()
        }
        _, draws = jax.jit(
            lambda s: jax.lax.scan(one, s, jax.random.split(jax.random.key(2), 2200))
        )(stats)
        return float(arviz.ess(np.asarray(draws[200:])[None]))

    assert effective(problem.model) > 4 * effective(dataclasses.replace(problem.model, moves=None))


@pytest.mark.parametrize("name", ["lg_nmf", "lg_nmf_votes", "lg_op"])
def test_bad_hyper_parameters(name):
    _, data = pp_models.load(name).example(jax.random.key(0))
    for given, complaint in (
        ({"alpha1": -1.0}, "alpha1 must be positive"),
        ({"a0": 0.0}, "a0"),
        ({"num_topics": 0}, "num_topics"),
    ):
        with pytest.raises(InputError, match=complaint):
            base.make_hyper(pp_models.load(name), given, data)


def test_bad_votes():
    """Votes other than 0, 1 and missing, another number of bills, and a bill of which nothing is
    known are refused in a sentence."""
    for C, B, complaint in (
        ([[1, 0], [0, 1]], [[1, 2], [0, 1]], "one is 2"),
        ([[1, 0], [0, 1]], [[1, 0]], "one row per bill"),
        ([[1, 0], [0, 0]], [[1, 0], [np.nan, np.nan]], "neither words nor votes"),
        (None, [1, 0], "two-dimensional"),
    ):
        with pytest.raises(InputError, match=complaint):
            data_.text_and_votes(C, B)


def sparse_text(num_rows, num_columns, length, num_topics):
    """Documents of LDA, most of whose counts are 0 or 1."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(num_columns, 0.05), num_topics)
    shares = rng.dirichlet(np.full(num_topics, 0.2), num_rows)
    return pp_models.data.counts([rng.multinomial(length, p) for p in shares @ topics])


def cosines(fit):
    """Between all pairs of topics."""
    words = np.asarray(fit.posterior.mean("d1"), float).T
    units = words / np.linalg.norm(words, axis=1, keepdims=True)
    return (units @ units.T)[np.triu_indices(len(units), 1)]


@pytest.mark.parametrize("engine", ["map", "stochastic_map"])
def test_points_hold_an_unknown_precision_below_the_spike(engine):
    """The joint density has a spike at s = 0, alpha1 = infinity, with equal topics. A hundred
    sweeps of mean-field inference come within 10 % of where it converges, slowly. With alpha1
    given, or a prior that keeps it from infinity, nothing is held."""
    data, options = sparse_text(150, 200, 60, 4), {"num_epochs": 30, "progress": False}
    fit = inference.fit("lg_nmf", data, engine, {"num_topics": 4}, **options)
    exact = inference.fit("lg_nmf", data, "cavi", {"num_topics": 4}, progress=False)
    np.testing.assert_allclose(
        fit.posterior.mean("alpha1"), exact.posterior.mean("alpha1"), rtol=0.1
    )
    assert cosines(fit).max() < 0.5
    for hyper in ({"alpha1": 2.0}, {"a0": 4.0, "b0": 2.0}):
        problem = fitting.make_problem("lg_nmf", data, hyper)
        assert not _held.held_sites(problem)


@pytest.mark.filterwarnings("ignore:.* are copies of another")
@pytest.mark.parametrize("engine", ["map", "stochastic_map", "cavi"])
def test_text_below_the_noise_is_said(engine):
    """The noise has variance 1 and the counts 0.04: the largest singular value is below that of
    noise, and the posterior of alpha1 by gibbs is about 3,000. The answer is empty, and said so."""
    data = sparse_text(200, 1000, 30, 5)
    with pytest.warns(UserWarning, match="All factors of lg_nmf are flat"):
        inference.fit("lg_nmf", data, engine, {"num_topics": 5}, num_epochs=60, progress=False)
