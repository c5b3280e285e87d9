"""The loop around the engines: ending a run by the clock, watching it, and what both leave
unchanged.

Time is made by hand: every step takes as long as the test says, and nothing else takes any.
"""

import types
from typing import NamedTuple

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core import registry
from inference.core.engine import Algorithm
from inference.core.registry import load_engine
from inference.engines import nuts
from inference.io import arviz, fits
from inference.run import fit as fitting
from inference.run import loop
from inference.run.callbacks import Progress
from pp_models.errors import InputError, TooLarge
from pp_models.model import value_shapes

HYPER, DATA = pp_models.load("lda").example(jax.random.key(0))
STEPWISE = {"num_samples": 200, "num_warmup": 500}  # 10 + 4 chunks of gibbs


def run(engine="cavi", **arguments):
    return inference.fit(
        "lda", DATA, engine, HYPER, jax.random.key(1), **{"progress": False, **arguments}
    )


@pytest.fixture
def clock(monkeypatch):
    """A clock that steps move: `clock.step` seconds each, `clock.first` the first one."""
    hands = types.SimpleNamespace(now=0.0, first=100.0, step=1.0, steps=0)

    def slowed(name):
        engine = load_engine(name)

        def build(problem, options):
            algorithm = engine.build(problem, options)

            def step(*arguments):
                hands.now += hands.step if hands.steps else hands.first
                hands.steps += 1
                return algorithm.step(*arguments)

            return algorithm._replace(step=step)

        return engine._replace(build=build)

    monkeypatch.setattr(registry, "load_engine", slowed)
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(perf_counter=lambda: hands.now))
    return hands


class Counted(NamedTuple):
    bound: float


class Notes(loop.Callback):
    """Notes every call, and ends the run after the third step."""

    def __init__(self):
        self.calls = []

    def begin(self, run):
        self.calls.append("begin")
        return False

    def before_step(self, run, batches):
        self.calls.append(f"before {batches}")
        return {"batch": batches}

    def after_step(self, run):
        self.calls.append(f"after {run.earlier[-1]} -> {run.state}")
        return run.state == 3

    def settled(self, run, numbers):
        self.calls.append(f"bound {numbers['bound']:g}")

    def end(self, run):
        self.calls.append("end")


def test_callbacks_are_called_around_every_step():
    """The numbers of a step are read once, when the next one has been dispatched or the run ends;
    True ends the run.
    """
    algorithm = Algorithm(
        None, lambda key, state, batches: (state + 1, Counted(10.0 * state)), None
    )
    running = loop.Run(fitting.make_problem("lda", DATA, HYPER), algorithm, "cavi", None)
    notes = Notes()
    running.state, running.callbacks = 0, [notes]
    loop.advance(running, iter(range(5, 100)), jax.random.key(0))
    begun = [
        "begin",
        "before 5",
        "after 0 -> 1",
        "before 6",
        "bound 0",
        "after 1 -> 2",
        "before 7",
        "bound 10",
        "after 2 -> 3",
    ]
    assert notes.calls == [*begun, "bound 20", "end"]
    assert [(row["step"], row["bound"], row["batch"]) for row in running.history] == [
        (0, 0.0, 5.0),
        (1, 10.0, 6.0),
        (2, 20.0, 7.0),
    ]


def test_the_run_ends_with_the_first_step_that_ends_later(clock):
    """Steps end at 100, 101, 102, 103 and 104 seconds; 3.5 seconds after the first one is during
    the fifth.
    """
    fit = run(num_epochs=30, tolerance=0.0, max_seconds=3.5)
    assert fit.stopped == "stopped by max_seconds after 5 of 30 steps"
    np.testing.assert_array_equal(fit.history["seconds"], [100, 101, 102, 103, 104])
    short = run(num_epochs=5, tolerance=0.0)
    assert short.stopped is None
    np.testing.assert_array_equal(fit.history["bound"], short.history["bound"])
    np.testing.assert_array_equal(fit.posterior.mean("beta"), short.posterior.mean("beta"))


def test_a_run_that_is_over_anyway_was_not_stopped(clock):
    """Time that is over at the last step, or at the one where the stopping rule is met, ended
    nothing.
    """
    assert run(num_epochs=5, tolerance=0.0, max_seconds=3.5).stopped is None
    settled = run(num_epochs=50, tolerance=0.5)
    assert len(settled.history["step"]) < 50
    assert (
        run(num_epochs=50, tolerance=0.5, max_seconds=len(settled.history["step"]) - 1.5).stopped
        is None
    )


def test_the_clock_stands_still_while_watched(clock):
    """watch takes 50 seconds each time, of which neither the history, nor max_seconds, nor the
    fit's seconds see anything.
    """
    seen = []

    def watch(step, seconds, posterior):
        clock.now += 50
        seen.append((step, seconds, posterior().mean("beta")))

    fit = run(num_epochs=6, tolerance=0.0, max_seconds=5.5, watch=watch)
    assert fit.stopped is None and fit.seconds == 105
    assert [(step, seconds) for step, seconds, _ in seen] == [(i, 100.0 + i) for i in range(6)]
    np.testing.assert_array_equal(fit.history["seconds"], 100 + np.arange(6))
    np.testing.assert_array_equal(seen[-1][2], fit.posterior.mean("beta"))
    assert np.abs(seen[0][2] - seen[-1][2]).max() > 0


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in (
        "map",
        "stochastic_map",
        "numpyro_svi",
        "streaming",
        "svb",
        "streaming_batch",
        "memoized",
    )
]


@pytest.mark.parametrize(
    "engine",
    ["cavi", "svi", "trust_region", "gibbs", pytest.param("nuts", marks=pytest.mark.slow), *SLOW],
)
def test_watching_changes_nothing(engine, quick):
    """With watch, and with a max_seconds that is not reached, the fit is the same bit for bit, and
    every step shows a posterior.
    """
    seen = []

    def watch(step, seconds, posterior):
        seen.append((step, seconds, posterior().sample(jax.random.key(0), 2)))

    plain, watched = (
        run(engine, **quick[engine]),
        run(engine, **quick[engine], watch=watch, max_seconds=1e6),
    )
    assert watched.stopped is None
    assert [step for step, _, _ in seen] == list(watched.history["step"])
    assert [seconds for _, seconds, _ in seen] == list(watched.history["seconds"])
    assert all(np.all(np.isfinite(x)) for _, _, draws in seen for x in draws.values())
    for name in set(plain.history) - {"seconds"}:
        np.testing.assert_array_equal(plain.history[name], watched.history[name])
    for site in plain.model.families:
        np.testing.assert_array_equal(plain.posterior.mean(site), watched.posterior.mean(site))


def test_a_sampler_keeps_the_draws_it_has(clock):
    """Time for two chunks of draws: every chain has their 100 draws, the first 100 of the whole
    run, and their log joints.
    """
    whole = run("gibbs", num_samples=200, num_warmup=50, num_chains=3)
    clock.steps = 0
    fit = run("gibbs", num_samples=200, num_warmup=50, num_chains=3, max_seconds=1.5)
    assert fit.stopped == "stopped by max_seconds after 3 of 5 steps"
    assert fit.posterior.sample_stats["lp"].shape == (3, 100)
    for site, draws in fit.posterior.draws.items():
        assert draws.shape[:2] == (3, 100)
        np.testing.assert_array_equal(draws, whole.posterior.draws[site][:, :100])


def test_a_sampler_in_warm_up_shows_where_its_chains_are():
    """During warm-up the posterior is one draw of every chain, and then another one; then the
    draws.
    """
    for engine, options in (
        ("gibbs", {"num_samples": 100, "num_warmup": 100}),
        ("nuts", {"num_samples": 10, "num_warmup": 15}),
    ):
        seen = []
        run(
            engine,
            **options,
            num_chains=2,
            watch=lambda step, seconds, posterior, seen=seen: seen.append(posterior()),
        )
        lengths = [posterior.draws["beta"].shape[:2] for posterior in seen]
        assert lengths[:2] == [(2, 1), (2, 1)] and lengths[-1] == (2, options["num_samples"])
        assert sorted(lengths) == lengths and all(
            posterior.sample_stats["lp"].shape == length
            for posterior, length in zip(seen, lengths, strict=True)
        )
        assert np.all(seen[0].draws["beta"] != seen[lengths.count((2, 1)) - 1].draws["beta"])


def test_no_draws_in_time(clock):
    """Of 14 chunks of 1 second, 10 of warm-up, the fourth ends 3 seconds after the first: 13
    seconds are needed after that one.
    """
    with pytest.raises(
        TooLarge,
        match=(
            r"lda by gibbs would take about 13 seconds, but max_seconds is 2\.5 and it is "
            r"still warming up: give it more"
        ),
    ):
        run("gibbs", **STEPWISE, max_seconds=2.5)
    assert clock.steps == 4


def test_thinned_draws_take_longer(clock):
    """Of 10 chunks of warm-up and 4 of draws with two sweeps dropped for each kept, 22 chunks' time
    in all, 21 are to come after the first.
    """
    with pytest.raises(TooLarge, match="would take about 21 seconds"):
        run("gibbs", **STEPWISE, thin=3, max_seconds=2.5)


def test_a_hopeless_run_ends_early(clock):
    """10 seconds a chunk, more than 100 of them and 25 seconds: after the first and two more chunks
    the sampler gives up, not after the time.
    """
    clock.step = 10
    with pytest.raises(TooLarge, match="would take about 1,030 seconds"):
        run("gibbs", num_samples=200, num_warmup=5000, max_seconds=25)
    assert clock.steps == 3


def test_a_slow_beginning_is_not_hopeless(clock):
    """The same pace at first, but less than a tenth of the time gone, and then faster: the run goes
    on, until it is interrupted.
    """

    def faster(step, seconds, posterior):
        clock.step = 10 if step < 2 else 1e-3
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("gibbs", num_samples=200, num_warmup=5000, max_seconds=201, watch=faster)
    assert clock.steps == 6


def test_draws_that_do_not_fit_into_memory():
    """A billion numbers are refused before a step is made, with the way out."""
    for engine, remedy in (
        ("gibbs", "lower num_samples and raise thin"),
        ("nuts", "lower num_samples"),
    ):
        with pytest.raises(TooLarge, match=f"more than 1e\\+09: {remedy}"):
            run(engine, num_samples=10**8)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), True, "10"])
def test_bad_times(bad):
    with pytest.raises(InputError, match="max_seconds must be a positive number"):
        run(max_seconds=bad)


def test_bad_watch_and_progress():
    with pytest.raises(InputError, match=r"watch must be a function \(step, seconds, posterior\)"):
        run(watch=3)
    with pytest.raises(InputError, match="progress must be True, False, None, or text"):
        run(progress=2)


def test_an_interrupt_closes_the_bar(monkeypatch):
    """Ctrl-C goes through as it is, and leaves no bar behind."""
    bars = []

    class Seen(Progress):
        def __exit__(self, *error):
            super().__exit__(*error)
            bars.append(error[0])

    def interrupt(step, seconds, posterior):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "Progress", Seen)
    with pytest.raises(KeyboardInterrupt):
        run(watch=interrupt)
    assert bars == [KeyboardInterrupt]


def test_the_bar_names_the_phase(capsys):
    """Samplers show warm-up and draws; text is put before the title, and shown on a
    terminal only.
    """
    run("gibbs", num_samples=50, num_warmup=50, progress=True)
    shown = capsys.readouterr().err
    assert "lda by gibbs, warm-up" in shown and "lda by gibbs, draws" in shown
    run("gibbs", num_samples=50, num_warmup=50, progress="engine 3 of 7")
    assert capsys.readouterr().err == ""
    with Progress("lda by gibbs", 2, "engine 3 of 7") as bar:
        assert bar._title == "engine 3 of 7: lda by gibbs"


def test_plan_of_nuts():
    """Chunks add up to the warm-up and to the draws, grow from one transition to the largest, and
    are some forty.
    """
    for warmup, samples in ((1000, 1000), (0, 100), (1, 1), (20, 20), (500, 3)):
        sizes = nuts.plan(nuts.Options(num_samples=samples, num_warmup=warmup))
        assert (
            sum(sizes) == warmup + samples
            and warmup in np.cumsum([0, *sizes])
            and sizes[0] == 1
            and len(sizes) <= nuts.REPORTS + 12
        )


@pytest.mark.parametrize("engine", ["svi", "stochastic_map"])
def test_rows_too_many_to_store_come_back_from_the_data(engine, tmp_path, monkeypatch):
    """A fit whose rows are solved only when asked for leaves them out of its file beyond a limit,
    and solves them again: the same numbers.
    """
    model = pp_models.load("lda")
    hyper, data = model.example(jax.random.key(0))
    fit = inference.fit("lda", data, engine, hyper, progress=False, num_epochs=2, batch_size=7)
    monkeypatch.setattr(fits, "MOST_SOLVED", 0)
    path = fit.save(tmp_path / "fit")
    with np.load(path) as file:
        assert {name.split("/")[0] for name in file.files} & set(model.families) == set(
            model.shared
        )
    again, bare = inference.load(path, data), inference.load(path)
    for site in model.families:
        np.testing.assert_allclose(again.posterior.mean(site), fit.posterior.mean(site), rtol=1e-10)
    np.testing.assert_allclose(bare.posterior.mean("beta"), fit.posterior.mean("beta"), rtol=1e-10)
    with pytest.raises(InputError, match="without theta"):
        bare.posterior.mean("theta")
    assert set(bare.to_arviz()["posterior"].data_vars) == set(model.shared)
    copied = inference.load(bare.save(tmp_path / "copy"), data)
    np.testing.assert_allclose(
        copied.posterior.mean("theta"), fit.posterior.mean("theta"), rtol=1e-10
    )


def test_draws_for_arviz_are_as_many_as_are_affordable(monkeypatch):
    """Fewer draws of all sites, and where they would be too few, many of the global ones alone."""
    model = pp_models.load("lda")
    hyper, data = model.example(jax.random.key(0))
    fit = inference.fit("lda", data, "svi", hyper, progress=False, num_epochs=1)
    shapes = value_shapes(model, fit.hyper, data)
    beta, theta = (int(np.prod(shapes[site])) for site in ("beta", "theta"))
    for room, draws, sites in (
        (10**9, 1000, None),
        (60 * (beta + theta), 60, None),
        (40 * (beta + theta), 40 * (beta + theta) // beta, ["beta"]),
    ):
        monkeypatch.setattr(arviz, "MOST_NUMBERS", room)
        assert arviz.affordable(fit) == (draws, sites)
    tree = fit.to_arviz()
    assert set(tree["posterior"].data_vars) == {"beta"}
    assert tree["posterior"]["beta"].shape[1] == draws


@pytest.mark.parametrize("last", [0, 1, 5])
def test_a_run_that_goes_on_counts_its_time_as_one_that_was_not_interrupted(clock, tmp_path, last):
    """Killed in warm-up: the first step after it, which compiles, counts as long as the one before,
    and the estimate of the whole is the same.
    """

    def stop(step, seconds, posterior):
        if step == last + 1:
            raise RuntimeError("killed")

    whole = run("gibbs", **STEPWISE, max_seconds=50.0)
    clock.steps = 0
    options = {
        **STEPWISE,
        "max_seconds": 50.0,
        "checkpoint": tmp_path / "run.checkpoint",
        "checkpoint_steps": 1,
    }
    with pytest.raises(RuntimeError, match="killed"):
        run("gibbs", **options, watch=stop)
    clock.now, clock.steps = 1e6, 0  # another process, another clock, and a step that compiles
    found = run("gibbs", **options)
    for site in ("theta", "beta"):
        np.testing.assert_array_equal(found.posterior.draws[site], whole.posterior.draws[site])
    if last:
        np.testing.assert_allclose(found.history["seconds"], whole.history["seconds"])
    assert found.stopped == whole.stopped
