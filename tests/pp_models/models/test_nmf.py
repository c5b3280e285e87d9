"""Nonnegative matrix factorisation against Lee and Seung's updates as C18 prints them,
scikit-learn, and Bayesian NMF with a flat prior."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from numpyro.infer.util import log_density

import inference
import pp_models
from inference.core import objective as obj
from inference.run import fit as fitting
from pp_models import model as base
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError
from pp_models.models import nmf

OBJECTIVES = ("divergence", "squared_error")
KINDS = {"counts": pp_models.data.counts, "dense": pp_models.data.dense}


def some(seed=0, shape=(20, 15), num_topics=4):
    """Counts with empty cells, an empty row, and factors to start from."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(1.5, shape).astype(float)
    X[3] = 0
    return X, rng.gamma(2, 1, (shape[0], num_topics)), rng.gamma(2, 1, (num_topics, shape[1]))


def run(X, W, H, objective, kind="counts", **options):
    hyper = {"num_topics": len(H), "objective": objective}
    options = {"num_epochs": 10, "tolerance": 0.0, "progress": False, **options}
    return inference.fit(
        "nmf", KINDS[kind](X), "map", hyper, init={"theta": W, "beta": H}, **options
    )


def lee_and_seung(X, W, H, objective):
    """C18, rows' weights first."""
    if objective == "divergence":
        W = W * ((X / (W @ H)) @ H.T) / H.sum(1)
        return W, H * (W.T @ (X / (W @ H))) / W.sum(0)[:, None]
    W = W * (X @ H.T) / (W @ H @ H.T)
    return W, H * (W.T @ X) / (W.T @ W @ H)


def loss(X, W, H, objective):
    R = W @ H
    return (
        np.sum(R - X * np.log(np.where(X > 0, R, 1)))
        if objective == "divergence"
        else 0.5 * np.sum((X - R) ** 2)
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_sweeps_are_the_printed_updates(objective, kind):
    """Ten sweeps from the same start, to rounding. One row is empty: its weights become zero, where
    the printed update divides by zero later on."""
    X, W, H = some()
    fit = run(X, W, H, objective, kind)
    full = X.sum(1) > 0
    for _ in range(10):
        W, H = lee_and_seung(X[full], W[full] if len(W) == len(X) else W, H, objective)
    np.testing.assert_allclose(fit.posterior.mean("theta")[full], W, rtol=1e-9)
    np.testing.assert_allclose(fit.posterior.mean("beta"), H, rtol=1e-9)
    np.testing.assert_array_equal(fit.posterior.mean("theta")[~full], 0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_trajectories_are_scikit_learns(objective):
    """The same approximation as NMF(solver='mu') after 5 and 20 sweeps; 1e-5, since scikit-learn
    keeps denominators away from zero."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    X, W, H = some(3, (25, 12), 3)
    X[3] = 1
    for num_epochs in (5, 20):
        loss_name = {"divergence": "kullback-leibler", "squared_error": "frobenius"}[objective]
        peer = decomposition.NMF(
            3, init="custom", solver="mu", beta_loss=loss_name, max_iter=num_epochs, tol=0
        )
        theirs = peer.fit_transform(X, W=W.copy(), H=H.copy()) @ peer.components_
        fit = run(X, W, H, objective, num_epochs=num_epochs)
        np.testing.assert_allclose(
            fit.posterior.mean("theta") @ fit.posterior.mean("beta"), theirs, rtol=1e-5
        )


def test_divergence_is_bayesian_nmf_with_a_flat_prior():
    """The same factors after every number of sweeps, to the 1e-6 that tokens plus one, less one,
    leave of the smallest weights."""
    X, W, H = some(4)
    flat = {"num_topics": 4, "flat": True}
    for num_epochs in (1, 7, 30):
        ours = run(X, W, H, "divergence", num_epochs=num_epochs)
        options = {"num_epochs": num_epochs, "tolerance": 0.0, "progress": False}
        theirs = inference.fit(
            "bayesian_nmf",
            pp_models.data.counts(X),
            "map",
            flat,
            init={"theta": W, "beta": H},
            **options,
        )
        for site in ("theta", "beta"):
            np.testing.assert_allclose(
                ours.posterior.mean(site), theirs.posterior.mean(site), rtol=1e-6, atol=1e-12
            )
        np.testing.assert_allclose(ours.bound, theirs.bound, rtol=1e-10)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_objective_never_rises_and_zeros_stay(objective, kind):
    """1,000 sweeps, to 1e-12 of the objective; entries that start at zero are zero at the end, all
    others are not negative.

    The last bound belongs to the point before its topics were updated: the last point is no worse.
    """
    X, W, H = some(5)
    W[[0, 7], [1, 2]], H[[2, 3], [3, 11]] = 0, 0
    fit = run(X, W, H, objective, kind, num_epochs=1000)
    bounds, theta, beta = (
        fit.history["bound"],
        fit.posterior.mean("theta"),
        fit.posterior.mean("beta"),
    )
    assert np.all(np.diff(bounds) >= -1e-12 * np.abs(bounds[1:])), np.diff(bounds).min()
    assert theta[0, 1] == theta[7, 2] == beta[2, 3] == beta[3, 11] == 0
    assert np.all(theta >= 0) and np.all(beta >= 0)
    assert fit.log_joint(fit.posterior.sample(jax.random.key(0), 1))[0] >= bounds[-1] - 1e-12 * abs(
        bounds[-1]
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_joint_is_numpyros_log_density(objective, kind):
    """F(t(x)) is the log density that NumPyro computes, and minus the objective up to what does not
    depend on the factors."""
    X, W, H = some(6)
    problem = fitting.make_problem("nmf", KINDS[kind](X), {"num_topics": 4, "objective": objective})
    batch, values = problem.data.pack(), {"theta": jnp.asarray(W), "beta": jnp.asarray(H)}
    ours = base.log_joint(problem.model, problem.hyper, values, batch)
    theirs, _ = log_density(problem.model.generate, (problem.hyper, batch), {}, values)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11)
    other = {"theta": 2 * values["theta"], "beta": values["beta"] + 0.1}
    gain = base.log_joint(problem.model, problem.hyper, other, batch) - ours
    np.testing.assert_allclose(
        gain, loss(X, W, H, objective) - loss(X, 2 * W, H + 0.1, objective), rtol=1e-10
    )


@pytest.mark.parametrize("kind", KINDS)
def test_squared_error_is_its_auxiliary_functions_envelope(kind):
    """At shares p = theta beta / rate, dF/dt is ((X beta'), -(rate beta') / (2 theta)): Lee and
    Seung's auxiliary function touches F there."""
    X, W, H = some(7)
    problem = fitting.make_problem(
        "nmf", KINDS[kind](X), {"num_topics": 4, "objective": "squared_error"}
    )
    t = {
        "theta": nmf.nonnegative.stats(jnp.asarray(W)),
        "beta": nmf.nonnegative.stats(jnp.asarray(H)),
    }
    gradient = jax.grad(lambda t: base.joint(problem.model, problem.hyper, t, problem.data.pack()))(
        t
    )
    R = W @ H
    for site, first, second in (("theta", X @ H.T, R @ H.T / W), ("beta", W.T @ X, W.T @ R / H)):
        np.testing.assert_allclose(gradient[site].first, first, rtol=1e-10)
        np.testing.assert_allclose(gradient[site].second, -0.5 * second, rtol=1e-10)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_exchangeable_and_padding_is_nothing(objective, kind):
    """Rows dealt out to three shares, some of them padded, give the same fit as one share."""
    X, W, H = some(8)
    device = jax.local_devices()[0]
    fits = [run(X, W, H, objective, kind, devices=[device] * size) for size in (1, 3)]
    np.testing.assert_allclose(fits[0].history["bound"], fits[1].history["bound"], rtol=1e-10)
    for site in ("theta", "beta"):
        np.testing.assert_allclose(
            fits[0].posterior.mean(site), fits[1].posterior.mean(site), rtol=1e-8
        )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_padding_does_not_matter(objective, kind):
    """F of a batch with two rows more than there are is that of the rows, whatever weights those
    two have."""
    X, W, H = some(9)
    problem = fitting.make_problem("nmf", KINDS[kind](X), {"num_topics": 4, "objective": objective})
    model, data = problem.model, problem.data
    beta = model.families["beta"].stats(jnp.asarray(H))

    def height(theta):
        t = {"theta": model.families["theta"].stats(jnp.asarray(theta)), "beta": beta}
        return model.log_local(problem.hyper, t, data.pack(np.arange(data.num_rows), len(theta)))

    np.testing.assert_allclose(height(np.concatenate([W, W[:2]])), height(W), rtol=1e-12)


def test_fused_solver_is_the_gradient_iterated():
    """Seven updates of theta at fixed topics: fused, by the gradient of F, and on dense rows. Zeros
    included."""
    X, W, H = some(9)
    W[0, 1], H[2, 3] = 0, 0
    answers = []
    for kind, generic in (("counts", False), ("counts", True), ("dense", True)):
        problem = fitting.make_problem("nmf", KINDS[kind](X), {"num_topics": 4})
        families, batch = problem.model.families, problem.data.pack()
        stats, start = (
            {"beta": families["beta"].stats(jnp.asarray(H))},
            {"theta": families["theta"].stats(jnp.asarray(W))},
        )
        arguments = problem.hyper, stats, batch, start, RowOptions(7, 0.0), "mode"
        natural = (
            obj._fixed_point(problem.model, *arguments)[0]
            if generic
            else problem.model.solve_local(*arguments)[0]
        )
        answers.append(
            np.asarray(families["theta"].value(families["theta"].mode(natural["theta"])))
        )
    for answer in answers:
        np.testing.assert_allclose(answer, answers[1], rtol=1e-9, atol=1e-200)
        assert answer[0, 1] == 0


def test_sparse_squared_error_forms_nothing_dense():
    """Neither X, rows x columns, nor one number per entry and factor is in the compiled update."""
    rng = np.random.default_rng(0)
    rows, columns, topics = 311, 1009, 31  # tables have lines of 64 numbers
    matrix = scipy.sparse.csr_array(
        (rng.integers(1, 5, (rows, columns)) * (rng.random((rows, columns)) < 0.02)).astype(float)
    )
    problem = fitting.make_problem(
        "nmf", pp_models.data.counts(matrix), {"num_topics": topics, "objective": "squared_error"}
    )
    batch, natural = (
        problem.data.pack(),
        problem.model.init(jax.random.key(0), problem.hyper, problem.data),
    )
    update = jax.jit(jax.value_and_grad(lambda t: problem.model.log_local(problem.hyper, t, batch)))
    text = update.lower(obj.summarise(problem.model, natural)).compile().as_text()
    shapes = {
        tuple(map(int, found.split(","))) for found in re.findall(r"f64\[(\d+(?:,\d+)*)\]", text)
    }
    assert max(int(np.prod(shape)) for shape in shapes) < matrix.nnz * topics
    assert not [shape for shape in shapes if {rows, columns} <= set(shape)]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_topics_sum_to_one_and_leave_the_product(objective):
    """C18, step 3."""
    fit = run(*some(10), objective)
    found = inference.topics(fit)
    np.testing.assert_allclose(found.topics.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(
        found.weights @ found.topics,
        fit.posterior.mean("theta") @ fit.posterior.mean("beta"),
        rtol=1e-12,
    )


def test_divergence_keeps_the_totals():
    """At a fixed point, and after every sweep for columns, the approximation has X's marginal
    totals: a property of the divergence alone."""
    X, W, H = some(11)
    fit = run(X, W, H, "divergence", num_epochs=3)
    np.testing.assert_allclose(
        (fit.posterior.mean("theta") @ fit.posterior.mean("beta")).sum(0), X.sum(0), rtol=1e-10
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_hyper_parameters_and_data_choose_the_declaration(objective, kind, tmp_path):
    """And a stored fit finds the same one again, object for object: nothing is compiled twice."""
    X, W, H = some(12)
    fit = run(X, W, H, objective, kind, num_epochs=2)
    assert fit.model.kind == kind and fit.model.name == "nmf"
    assert (fit.model.families["theta"] is nmf.nonnegative) == (objective == "squared_error")
    again = inference.load(fit.save(tmp_path / "fit"), KINDS[kind](X))
    assert again.model is fit.model
    np.testing.assert_array_equal(again.posterior.mean("beta"), fit.posterior.mean("beta"))
    draws = fit.posterior.sample(jax.random.key(0), 2)
    np.testing.assert_array_equal(again.log_joint(draws), fit.log_joint(draws))


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_held_out_words_are_scored(objective):
    """Better than a uniform guess on documents with structure, and finite even for a document with
    a single token."""
    rng = np.random.default_rng(13)
    X = rng.poisson(rng.gamma(0.5, 4, (40, 2)) @ np.kron(np.eye(2), np.full(6, 1.0)))
    X[0] = np.eye(12, dtype=int)[0]
    fit = inference.fit(
        "nmf",
        pp_models.data.counts(X),
        "map",
        {"num_topics": 2, "objective": objective},
        progress=False,
    )
    assert inference.document_completion(fit, pp_models.data.counts(X)).value > -np.log(12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_single_precision(objective):
    """Within 1e-3 of double precision after 20 sweeps, on weights that are a thousandth of the
    largest or more."""
    X, W, H = some(14)
    exact = run(X, W, H, objective, num_epochs=20).posterior
    with jax.enable_x64(False):
        single = run(X, W, H, objective, num_epochs=20).posterior
        assert single.mean("theta").dtype == np.float32
    for site in ("theta", "beta"):
        large = exact.mean(site) > 1e-3 * exact.mean(site).max()
        np.testing.assert_allclose(single.mean(site)[large], exact.mean(site)[large], rtol=1e-3)


@pytest.mark.parametrize("engine", ["cavi", "svi", "trust_region", "gibbs", "nuts", "numpyro_svi"])
def test_only_a_point_can_be_found(engine):
    with pytest.raises(InputError, match=r"proper prior, but nmf has none .* use engine 'map'"):
        inference.fit("nmf", pp_models.data.counts(np.ones((4, 5))), engine)


def test_bad_input_is_refused_in_a_sentence():
    counts = pp_models.data.counts(np.ones((4, 5)))
    for data, hyper, words in (
        (
            pp_models.data.dense(np.array([[1.0, -0.5], [0.0, 2.0]])),
            {},
            "nonnegative observations, but one is -0.5",
        ),
        (counts, {"objective": "kl"}, "objective"),
        (counts, {"num_topics": 0}, "num_topics"),
        (
            pp_models.data.ratings([0], [0], [1.0]),
            {},
            "explains counts data, but these are ratings",
        ),
    ):
        with pytest.raises(InputError, match=words):
            inference.fit("nmf", data, "map", hyper)
