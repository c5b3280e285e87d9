"""What stops a run that goes wrong, what it says, and what it leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import inference
import pp_models
from inference.cli import main
from inference.core import registry
from inference.core.registry import load_engine, make_options
from inference.run import fit as fitting
from inference.run import guards
from pp_models import data
from pp_models.errors import Diverged

HYPER, DATA = pp_models.load("lda").example(jax.random.key(0))


def run(engine="cavi", hyper=HYPER, rows=DATA, **options):
    return inference.fit("lda", rows, engine, hyper, jax.random.key(1), progress=False, **options)


def spoiled(monkeypatch, at, spoil):
    """Engines whose state is spoiled in step `at`."""

    def load(name):
        engine = load_engine(name)

        def build(problem, options):
            algorithm = engine.build(problem, options)
            made = iter(range(10**9))

            def step(*arguments):
                state, info = algorithm.step(*arguments)
                return (spoil(state) if next(made) == at else state), info

            return algorithm._replace(step=step)

        return engine._replace(build=build)

    monkeypatch.setattr(registry, "load_engine", load)


def with_nan(state):
    return state._replace(shared=jax.tree.map(lambda x: x.at[0, 0].set(jnp.nan), state.shared))


@pytest.mark.parametrize("engine", ["cavi", "svi"])
def test_numbers_that_are_not_finite_stop_the_run_with_the_step_and_the_block(monkeypatch, engine):
    """Spoiled in step 5, which shows in the bound of step 6.

    The last good state is that after step 4.
    """
    spoiled(monkeypatch, 5, with_nan)
    with pytest.raises(
        Diverged, match=r"lda by \w+ went wrong in beta: bound became nan at step 6. Likely cause: "
    ) as stopped:
        run(engine, num_epochs=20)
    monkeypatch.undo()
    options = {"num_epochs": 20} if engine == "svi" else {"num_epochs": 5}  # five steps of all rows
    good = stopped.value.fit
    assert np.all(np.isfinite(good.posterior.mean("beta")))
    if engine == "cavi":
        np.testing.assert_array_equal(
            good.posterior.mean("beta"), run(engine, **options).posterior.mean("beta")
        )


def test_an_engine_without_a_bound_is_found_out_at_its_end(monkeypatch):
    spoiled(monkeypatch, 3, with_nan)
    with pytest.raises(Diverged, match="in beta"):
        run("svi", bound_every=0, num_epochs=2)


def test_a_state_that_is_not_finite_never_replaces_a_checkpoint(monkeypatch, tmp_path):
    """The run ends, and the checkpoint of the step before is what there was without the fault."""
    spoiled(monkeypatch, 5, with_nan)
    with pytest.raises(Diverged):
        run("svi", num_epochs=2, checkpoint=tmp_path / "run.checkpoint", checkpoint_steps=1)
    monkeypatch.undo()
    found = run("svi", num_epochs=2, checkpoint=tmp_path / "run.checkpoint", checkpoint_steps=1)
    np.testing.assert_array_equal(
        found.posterior.mean("beta"), run("svi", num_epochs=2).posterior.mean("beta")
    )


@pytest.mark.parametrize("engine", ["cavi", "map", "memoized"])
def test_a_falling_bound_stops_engines_that_ascend(monkeypatch, engine):
    """Topics are mixed up after three passes, which no step that ascends can do."""
    options = {"basis": "log"} if engine == "map" else {}
    spoiled(
        monkeypatch,
        3 if engine != "memoized" else 20,
        lambda state: state._replace(shared=jax.tree.map(lambda x: x[:, ::-1], state.shared)),
    )
    with pytest.raises(
        Diverged, match=r"in beta: the bound, which cannot fall, fell from \S+ to \S+ at step"
    ):
        run(engine, num_epochs=30, tolerance=0.0, **options)


def fit_precise_ratings(engine, num_epochs):
    """Ratings with noise of sd 0.01, by whose square the terms of the bound are divided, in single
    precision."""
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(100, 2)), rng.normal(size=(60, 2))
    users, items = np.nonzero(rng.random((100, 60)) < 0.4)
    values = np.sum(u[users] * v[items], 1) + 0.01 * rng.normal(size=len(users))
    ratings = data.ratings(users, items, values, shape=(100, 60))
    hyper, options = {"rank": 2, "sigma2": 1e-4}, {"num_epochs": num_epochs, "tolerance": 0.0}
    with jax.enable_x64(False):
        return inference.fit(
            "pmf", ratings, engine, hyper, jax.random.key(0), progress=False, **options
        )


@pytest.mark.parametrize("engine", ["cavi", "map"])
def test_rounding_of_terms_that_cancel_stops_no_run(engine):
    """The terms add up to 9e7 nats, of which single precision holds ten. The fit says so. In
    double precision the bound rises."""
    with pytest.warns(UserWarning, match="terms of the bound of pmf add up to .* nearly cancel"):
        fit = fit_precise_ratings(engine, 60)
    falls = np.maximum.accumulate(fit.history["bound"]) - fit.history["bound"]
    assert 1 < falls.max() < 200 and len(falls) == 60


@pytest.mark.filterwarnings("ignore:The terms of the bound")
@pytest.mark.parametrize("engine", ["cavi", "map"])
def test_a_wrong_update_is_found_beside_terms_that_cancel(monkeypatch, engine):
    """The means of half of the items are off by a hundredth: some 1e-4 of the terms, which is
    fifty times what rounding explains."""

    def spoil(state):
        v, c = state.shared["v"], 1.01
        first = v.first.at[::2].multiply(c)
        second = v.second.at[::2].multiply(1.0 if engine == "cavi" else c**2)
        return state._replace(shared={"v": v._replace(first=first, second=second)})

    spoiled(monkeypatch, 30, spoil)
    with pytest.raises(Diverged, match="the bound, which cannot fall, fell from"):
        fit_precise_ratings(engine, 40)


def test_states_of_every_engine_are_looked_at(engine_name):
    """A state whose numbers are all nan has a part that the guard names, whatever the engine."""
    engine = load_engine(engine_name)
    model = next(m for m in map(pp_models.load, ("lda", "lg_nmf")) if not engine.suits(m))
    hyper, data = model.example(jax.random.key(0))
    problem = fitting.make_problem(model.name, data, hyper, jax.local_devices()[:1])
    options = engine.settle(make_options(engine, dict(engine.tiny)), data)
    state = engine.build(problem, options).init(jax.random.key(0), {})

    def spoil(x):
        numbers = isinstance(x, jax.Array | np.ndarray) and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.full_like(x, jnp.nan) if numbers else x

    assert guards.bad_sites(model, jax.tree.map(spoil, state))


@pytest.mark.slow
def test_stock_engines_say_what_went_wrong():
    """Steps of Adam that are far too long; draws whose log joint density is not finite."""
    with pytest.raises(
        Diverged,
        match=r"numpyro_svi went wrong in the guide's parameters: bound became \S+ at step",
    ):
        run("numpyro_svi", learning_rate=1e6, num_epochs=200)


@pytest.mark.slow
def test_a_density_that_passes_zero_runs_through():
    """Log densities of observations may add up to nearly nothing, and the rounding of what cancels
    stays. Data scaled so, in single precision.
    """
    rng = np.random.default_rng(0)
    rows = 0.17 * (
        rng.normal(size=(4000, 20)) + 4 * rng.normal(size=(5, 20))[rng.integers(5, size=4000)]
    )
    options = {"num_epochs": 60, "tolerance": 0.0, "progress": False}
    with jax.enable_x64(False):
        fit = inference.fit(
            "gaussian_mixture", data.dense(rows), "memoized", {"num_components": 8}, **options
        )
    assert len(fit.history["bound"]) == 480


def test_rounding_is_no_fall():
    guards.check_row(3, {"bound": -1e6 * (1 + 1e-9)}, -1e6, 100.0)
    with jax.enable_x64(False):
        guards.check_row(3, {"bound": -1e6 * (1 + 1e-6)}, -1e6, 100.0)
        guards.check_row(
            3, {"bound": 63.954}, 63.988, 80_000.0
        )  # a sum of 80,000 terms that cancel
        with pytest.raises(Diverged):
            guards.check_row(3, {"bound": -1e6 * (1 + 1e-3)}, -1e6, 100.0)


def test_the_likely_cause_names_what_is_extreme():
    def cause(hyper, rows):
        return guards.likely_cause(fitting.make_problem("lda", rows, hyper))

    assert "eta = 1e-30 is extreme" in cause(HYPER._replace(eta=1e-30), DATA)
    assert "hyper-parameters or the scale" in cause(HYPER, DATA)
    with jax.enable_x64(False):
        large = data.counts(np.full((2, 12), 2**23))
        assert "seven digits" in cause(HYPER, large) and "jax_enable_x64" in cause(HYPER, large)


def test_the_command_line_keeps_the_last_good_state(monkeypatch, tmp_path, capsys):
    spoiled(monkeypatch, 5, with_nan)
    out = tmp_path / "out"
    assert (
        main(
            [
                "fit",
                "lda",
                "--engine",
                "cavi",
                "--out",
                str(out),
                "--quiet",
                "--set",
                "num_epochs=20",
            ]
        )
        == 1
    )
    said = capsys.readouterr().err
    assert "went wrong in beta" in said and "last-good.npz" in said and "Traceback" not in said
    assert np.all(np.isfinite(inference.load(out / "last-good.npz").posterior.mean("beta")))
