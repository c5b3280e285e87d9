"""What every engine promises, for every discovered model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.distributions import biject_to

import inference
import pp_models
from inference.calibration import engine_laws
from inference.comparison import coordinates
from inference.core import objective as obj
from inference.core.posterior import full_bound
from inference.engines import _coordinate_ascent as ascent
from inference.engines import _natural_step as svi
from inference.run import fit as fitting
from pp_models import model as base
from pp_models.data import Data
from pp_models.elimination.row_solver import RowOptions
from pp_models.errors import InputError


def run(problem, engine, **options):
    return inference.fit(
        problem.model.name,
        problem.data,
        engine,
        problem.hyper,
        jax.random.key(1),
        progress=False,
        devices=problem.devices,
        **options,
    )


_FITS = {}  # one fit per model and engine serves all the tests that only look at it


@pytest.fixture
def fitted(problem, engine_name, quick):
    place = problem.model.name, engine_name
    if place not in _FITS:
        _FITS[place] = run(problem, engine_name, **quick[engine_name])
    return _FITS[place]


def test_posterior_answers(problem, fitted):
    """mean, sd and sample have the sites' shapes, are finite, and draws average to the mean (six
    standard errors). Chains know their log density.
    """
    shapes = {site: np.shape(x) for site, x in _example_values(problem).items()}
    draws = fitted.posterior.sample(jax.random.key(0), 40)
    for site in problem.model.families:
        mean, sd = fitted.posterior.mean(site), fitted.posterior.sd(site)
        assert mean.shape == sd.shape == shapes[site] and draws[site].shape == (40, *shapes[site])
        assert np.all(np.isfinite(mean)) and np.all(sd >= 0)
        assert np.all(np.abs(draws[site].mean(0) - mean) <= 6 * sd / np.sqrt(40) + 0.5 * sd + 1e-9)
    assert np.all(np.isfinite(fitted.log_joint(draws)))
    if fitted.posterior.kind == "variational":
        assert np.all(np.isfinite(fitted.posterior.log_density(draws)))
    else:
        with pytest.raises(InputError):
            fitted.posterior.log_density(draws)
    if fitted.posterior.kind == "draws":
        np.testing.assert_allclose(
            fitted.posterior.sample_stats["lp"].ravel(), _log_densities(fitted), rtol=1e-6
        )


def _log_densities(fit):
    """The log joint density of every draw of the chains; of nuts, which moves in unconstrained
    coordinates, the density there.
    """
    draws = {site: x.reshape(-1, *x.shape[2:]) for site, x in fit.posterior.draws.items()}
    found = np.asarray(fit.log_joint(draws))
    for site, support in coordinates.supports(fit).items() if fit.engine == "nuts" else ():
        to = biject_to(support)
        slopes = jax.jit(lambda x, to=to: to.log_abs_det_jacobian(to.inv(x), x))(draws[site])
        found = found + np.asarray(slopes).reshape(len(found), -1).sum(1)
    return found


def _example_values(problem):
    natural = problem.model.init(jax.random.key(0), problem.hyper, problem.data)
    return {
        site: family.value(family.mean(natural[site]))
        for site, family in problem.model.families.items()
    }


class Killed(BaseException):
    """What a process that is killed would not notice."""


def test_an_interrupted_run_ends_with_the_same_bits(problem, engine_name, fitted, quick, tmp_path):
    """Whatever the moment: after the second step, or after the last one; and a run that is over is
    not run again.
    """
    last = len(fitted.history["step"]) - 1
    checkpoint, steps = tmp_path / "run.checkpoint", []

    def go_on(until=None):
        def watch(step, seconds, posterior):
            steps.append(step)
            if step == until:
                raise Killed

        return run(
            problem,
            engine_name,
            checkpoint=checkpoint,
            checkpoint_steps=1,
            watch=watch,
            **quick[engine_name],
        )

    moments = sorted({1, last} & set(range(1, last + 1)))
    for moment in moments:
        with pytest.raises(Killed):
            go_on(moment)
    found = go_on()
    assert sorted(steps) == sorted(
        [*range(last + 1), *moments]
    )  # only the step that was under way is made again
    assert_same_bits(fitted, found)
    steps.clear()
    assert_same_bits(fitted, go_on())
    assert not steps


def assert_same_bits(one, other):
    """Everything but the time it took."""
    assert one.options == other.options and one.history.keys() == other.history.keys()
    for name in one.history.keys() - {"seconds"}:
        np.testing.assert_array_equal(one.history[name], other.history[name])
    for site in one.model.families:
        for part in ("draws", "natural", "values"):
            if hasattr(one.posterior, part) and isinstance(getattr(one.posterior, part), dict):
                np.testing.assert_array_equal(
                    getattr(one.posterior, part)[site],
                    getattr(other.posterior, part)[site],
                    err_msg=site,
                )
        np.testing.assert_array_equal(
            one.posterior.mean(site), other.posterior.mean(site), err_msg=site
        )
        np.testing.assert_array_equal(
            one.posterior.sd(site), other.posterior.sd(site), err_msg=site
        )


def test_history(problem, fitted):
    """Every step leaves a row; time moves forward; bounds of the evidence of whole numbers are
    below zero, as no probability is above one.
    """
    assert {"step", "seconds", "bound"} <= set(fitted.history)
    bounds = fitted.history["bound"]
    if fitted.posterior.kind == "variational" and _is_discrete(problem.model):
        assert np.all(bounds[~np.isnan(bounds)] < 0)
    assert len({len(column) for column in fitted.history.values()}) == 1
    assert np.all(np.diff(fitted.history["seconds"]) >= 0) and fitted.seconds > 0


def test_the_bound_is_that_of_all_rows(problem, fitted):
    """`fit.bound` does not depend on how rows are split into batches. It is at most the ELBO with
    auxiliaries summed out, the mean of log p / q over draws of q (five standard errors).
    """
    posterior = fitted.posterior
    if not posterior.has_density:
        return
    model, natural = problem.model, posterior.natural
    shared, local = ({s: natural(s) for s in sites} for sites in (model.shared, model.local))
    if fitted.engine == "cavi":  # the same for all engines, and it compiles
        parts = full_bound(posterior.problem, shared, local, batch_size=3)
        np.testing.assert_allclose(parts, fitted.bound, rtol=1e-9)
    if all(family.has_density for family in model.families.values()):
        draws = posterior.sample(jax.random.key(3), 300)
        ratios = fitted.log_joint(draws) - posterior.log_density(draws)
        assert fitted.bound <= ratios.mean() + 5 * ratios.std() / np.sqrt(len(ratios)) + 1e-6


def test_the_bound_lies_between_two_sweeps(problem):
    """A sweep's bound is taken before it updates the global sites, which raises it. The next sweep
    solves the rows there, which raises it again: `fit.bound` is in between, to rounding.
    """
    first, second = (run(problem, "cavi", num_epochs=n, tolerance=0.0) for n in (2, 3))
    before, after = first.history["bound"][-1], second.history["bound"][-1]
    rounding = 1e-9 * abs(after)
    assert before - rounding <= first.bound <= after + rounding
    assert before < after


@functools.cache
def _is_discrete(model):
    """Whether the observations of the model's example have probabilities, not densities."""
    hyper, data = model.example(jax.random.key(0))
    trace = handlers.trace(handlers.seed(model.generate, jax.random.key(0))).get_trace(
        base.make_hyper(model, hyper, data), data.pack()
    )
    return trace[model.observed]["fn"].support.is_discrete


def test_save_and_load(problem, fitted, tmp_path):
    """A stored fit answers exactly as before, with its data or without. Posteriors that solve rows
    for every draw (`needs_data`) draw rows with their data only.
    """
    path = fitted.save(tmp_path / "fit")
    for data in (None, problem.data):
        again = inference.load(path, data)
        assert again.engine == fitted.engine and again.options == fitted.options
        for site in problem.model.families:
            np.testing.assert_array_equal(again.posterior.mean(site), fitted.posterior.mean(site))
            np.testing.assert_array_equal(again.posterior.sd(site), fitted.posterior.sd(site))
        without_rows = data is None and fitted.posterior.needs_data
        sites = problem.model.shared if without_rows else list(problem.model.families)
        draws = fitted.posterior.sample(jax.random.key(2), 3, sites)
        for site, x in again.posterior.sample(jax.random.key(2), 3, sites).items():
            np.testing.assert_array_equal(x, draws[site])
    np.testing.assert_array_equal(again.log_joint(draws), fitted.log_joint(draws))
    np.testing.assert_array_equal(again.history["bound"], fitted.history["bound"])


def test_to_arviz(problem, fitted, tmp_path):
    """The ArviZ object has the posterior, with a proper prior the observations, their log
    likelihoods and predictions, on request log likelihoods of rows, and survives the disk.
    """
    tree = fitted.to_arviz(num_draws=20)
    names = (
        {str(name).strip("/") for name in tree.groups}
        if not callable(tree.groups)
        else set(tree.groups())
    )
    assert set(problem.model.families) <= set(tree["posterior"].data_vars)
    if problem.model.proper(problem.hyper):
        assert {"log_likelihood", "observed_data", "posterior_predictive"} <= names
        observed = problem.model.observed
        assert tree["log_likelihood"][observed].shape[2] == len(tree["observed_data"][observed])
        by_row = fitted.to_arviz(num_draws=2, by_row=True)["log_likelihood"][observed]
        assert by_row.shape[2] == problem.data.num_rows
    tree.to_netcdf(tmp_path / "fit.nc")
    assert (tmp_path / "fit.nc").stat().st_size > 0


def test_same_key_same_result(problem, engine_name, fitted, quick):
    """The same seed gives the same numbers."""
    again = run(problem, engine_name, **quick[engine_name])
    for site in problem.model.families:
        np.testing.assert_array_equal(again.posterior.mean(site), fitted.posterior.mean(site))


def test_bound_never_falls(problem):
    """CAVI and MAP raise their objective at every sweep, to rounding."""
    for engine, options in (
        ("cavi", {}),
        ("map", {"basis": "identity"}),
        ("map", {"basis": "log"}),
    ):
        engine_laws.bound_rises(problem, engine, num_epochs=60, **options)


def test_cavi_optimum_is_a_fixed_point(problem):
    """At CAVI's end every natural parameter equals its target: the natural gradient is zero."""
    posterior = run(
        problem, "cavi", num_epochs=3000, num_local=100, local_tolerance=1e-12, tolerance=1e-15
    ).posterior
    model, batch = problem.model, problem.data.pack()
    natural = {site: jax.tree.map(jnp.asarray, posterior.natural(site)) for site in model.families}
    stats = obj.summarise(model, natural)
    for site in model.families:
        gradient = jax.grad(
            lambda t, site=site: (
                model.log_global(problem.hyper, {s: {**stats, site: t}[s] for s in model.shared})
                + model.log_local(problem.hyper, {**stats, site: t}, batch)
            )
        )(stats[site])
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(natural[site]), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)


def test_full_batch_svi_with_rate_one_is_cavi(problem):
    """kappa = 0 makes rho = 1: with all rows in the batch, a step is a sweep, as long as global
    sites do not meet in the rows' part of F.
    """
    engine_laws.full_batch_is_a_sweep(problem)


def test_svi_rates(problem):
    """The schedule is (tau + t)^-kappa; the adaptive rate stays in [0, 1] and moves."""
    rates = run(problem, "svi", num_epochs=2, batch_size=4, tau=3.0, kappa=0.6).history["rate"]
    np.testing.assert_allclose(rates, (3.0 + np.arange(len(rates))) ** -0.6, rtol=1e-12)
    adaptive = run(problem, "svi", num_epochs=20, batch_size=4, rate="adaptive")
    rates = adaptive.history["rate"]
    assert (
        np.all(rates[: svi.PROBE_STEPS - 1] == 0)
        and np.all((rates >= 0) & (rates <= 1))
        and rates[svi.PROBE_STEPS :].max() > 0.01
    )
    assert adaptive.history["bound"][-5:].mean() > adaptive.history["bound"][:5].mean()


def test_svi_reaches_cavis_neighbourhood(problem):
    """From the same random start, long SVI at its default rate ends within 1 % of CAVI's bound,
    well above where it began.
    """
    best = run(problem, "cavi", num_epochs=1000, tolerance=1e-12)
    last = run(problem, "svi", num_epochs=80, batch_size=5)
    again = run(
        problem,
        "cavi",
        num_epochs=1,
        num_local=100,
        init={s: last.posterior.natural(s) for s in problem.model.shared},
    )
    assert again.bound > best.bound - 0.01 * abs(best.bound)
    assert again.bound > best.history["bound"][0] + 0.5 * (best.bound - best.history["bound"][0])


def test_single_precision_bound_rises(problem):
    """In float32 a sweep may lower the bound by rounding only.

    The bound is what is left of terms of both signs whose sizes add up to several times its own,
    each good to 6e-8: 3e-6 of it is some ten roundings.
    """
    with jax.enable_x64(False):
        bounds = inference.fit(
            problem.model.name,
            problem.data,
            "cavi",
            problem.hyper,
            num_epochs=60,
            tolerance=0.0,
            progress=False,
        ).history["bound"]
    assert np.all(np.diff(bounds) > -3e-6 * np.abs(bounds[1:])), np.diff(bounds).min()


def test_numpyro_svi_reaches_cavis_neighbourhood(problem):
    """Stock SVI on the guide ends with an ELBO no lower than CAVI's bound (3 % for Monte-Carlo
    noise and local optima).
    """
    best = run(problem, "cavi", num_epochs=1000).bound
    stock = run(problem, "numpyro_svi", num_epochs=1500, num_particles=1)
    assert stock.history["bound"][-300:].mean() > best - 0.03 * abs(best)


def test_nothing_recompiles_per_batch(problem, compiled):
    """After the first steps of an epoch, further batches, epochs and local iterations compile
    nothing.
    """
    jax.jit(lambda x: 3 * x + len(compiled))(1.0)
    assert compiled or jax.config.jax_compilation_cache_dir, "the listener must hear compilations"
    run(problem, "svi", num_epochs=1, batch_size=5, num_local=7)
    compiled.clear()
    run(problem, "svi", num_epochs=4, batch_size=5, num_local=8)
    assert not compiled


def test_devices_change_nothing(problem):
    """Rows dealt out to three shares, some of them padded, give the same fit as one share (all
    shares on this device).
    """
    shared = {"num_epochs": 3, "num_local": 20, "progress": False}
    fits = [
        inference.fit(
            problem.model.name,
            problem.data,
            "cavi",
            problem.hyper,
            devices=[problem.devices[0]] * size,
            **shared,
        )
        for size in (1, 3)
    ]
    np.testing.assert_allclose(fits[0].history["bound"], fits[1].history["bound"], rtol=1e-9)
    for site in problem.model.families:
        np.testing.assert_allclose(
            fits[0].posterior.mean(site), fits[1].posterior.mean(site), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("name", "hyper", "tied"),
    [
        ("pmf", {"rank": 3}, False),
        ("lg_nmf", {"num_topics": 3, "alpha1": 1.0}, True),
    ],
)
def test_map_shares_out_the_columns(name, hyper, tied):
    """A site with many rows is solved by three devices as by one, statistics that are sums over the
    rows included (sums in another order: 1e-9).
    """
    rng = np.random.default_rng(0)
    size = 2 * ascent.FEW_ROWS + 1
    counts = rng.poisson(0.3, (12, size))
    users, items = np.nonzero(counts)
    data = (
        pp_models.data.counts(counts)
        if name == "lg_nmf"
        else pp_models.data.ratings(users, items, rng.normal(size=len(users)), shape=counts.shape)
    )
    one = jax.local_devices()[:1]
    shared = {"num_epochs": 3, "tolerance": 0.0, "progress": False}
    fits = [
        inference.fit(name, data, "map", hyper, devices=one * number, **shared) for number in (1, 3)
    ]
    np.testing.assert_allclose(fits[0].history["bound"], fits[1].history["bound"], rtol=1e-9)
    site = "d1" if tied else "v"
    np.testing.assert_allclose(
        fits[0].posterior.mean(site), fits[1].posterior.mean(site), rtol=1e-6, atol=1e-9
    )


def test_lazy_local_sites_are_solved_for_all_rows(problem):
    """SVI keeps no rows; asking for a local site solves every row given the topics, in the data's
    order.
    """
    fit = run(problem, "svi", num_epochs=3, batch_size=5)
    model, hyper, batch = problem.model, problem.hyper, problem.data.pack()
    stats = obj.summarise(model, {site: fit.posterior.natural(site) for site in model.shared})
    part = obj.local_part(
        model, hyper, stats, batch, obj.start_local(model, hyper, batch), RowOptions(100, 1e-4)
    )
    for site in model.local:
        for a, b in zip(
            jax.tree.leaves(part.natural[site]),
            jax.tree.leaves(fit.posterior.natural(site)),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.filterwarnings(
    "ignore:rank . is above the number of topics:UserWarning",
    "ignore:.*(cut short|come to rest):UserWarning",
)
def test_degenerate_data_in_single_precision(problem, engine_name, quick):
    """One factor and an empty row, in single precision, the default: every engine runs and stays
    finite.
    """
    model = problem.model
    size = base.number_of_factors(model)
    with jax.enable_x64(False):
        data = problem.data.select(np.arange(2))
        if data.kind == "counts":
            matrix = data.matrix.toarray()
            matrix[0] = 0
            data = Data("counts", matrix=type(data.matrix)(matrix))
        hyper = problem.hyper._replace(**{size: 1})
        fit = inference.fit(
            model.name,
            data,
            engine_name,
            hyper,
            jax.random.key(1),
            progress=False,
            **quick[engine_name],
        )
        for site in model.families:
            assert fit.posterior.mean(site).dtype == np.float32
            assert np.all(np.isfinite(fit.posterior.mean(site)))


def test_starting_points_are_checked(problem, engine_name, quick):
    """An unknown site or a wrong shape is refused in a sentence, as is any start by engines that
    choose their own.
    """
    for start in ({"betaa": np.ones(3)}, {problem.model.shared[0]: np.ones((1, 1, 1))}):
        with pytest.raises(InputError):
            run(problem, engine_name, init=start, **quick[engine_name])


def test_unknown_names_suggest_the_nearest(problem, engine_name):
    """A mistyped option is refused before anything is compiled, with the nearest name."""
    option = fitting.load_engine(engine_name).Options._fields[0]
    with pytest.raises(InputError, match=option):
        run(problem, engine_name, **{option + "s": 3})
    with pytest.raises(InputError, match=f"Did you mean '{engine_name}'"):
        run(problem, engine_name[:-1] + "x" + engine_name[-1])
