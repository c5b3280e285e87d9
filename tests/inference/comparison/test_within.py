"""Engines judged within the mode that they found, by chains that start at their answer."""

import jax
import numpy as np
import pytest

import inference
from inference.comparison import agreement, measure, modes
from inference.core import align
from inference.core.posteriors import Draws
from inference.io.fits import Fit
from pp_models import datasets
from pp_models import models as discovery


@pytest.fixture(scope="module")
def problem():
    model = discovery.load("bernoulli_mixture")
    hyper, data, _ = datasets.synthetic(model, jax.random.key(3), num_rows=60, num_columns=8)
    return model, hyper, data


def judged(found):
    sample = measure.draw(found, jax.random.key(1), 2000, 0)
    return modes.judge_within(found, sample, jax.random.key(2), 0, None)


def test_draws_of_the_mode_are_right_and_narrowed_ones_are_not(problem):
    """An engine that returns draws of a long chain is right. The same draws with half of their
    deviations are far too narrow (0.5 is the limit of those words), or too narrow.
    """
    model, hyper, data = problem
    chain = inference.fit(model.name, data, "gibbs", hyper, jax.random.key(5), progress=False)
    flat = {site: chain.posterior.flat(site) for site in chain.posterior.sites}
    aligned, _ = align.common_labels(model, flat, {site: x[0] for site, x in flat.items()})
    right = judged(_renamed(chain, aligned))
    assert right.verdict == "means agree; right width" and right.rhat < 1.05
    narrow = {site: x.mean(0) + 0.5 * (x - x.mean(0)) for site, x in aligned.items()}
    assert "too narrow" in judged(_renamed(chain, narrow)).verdict


def _renamed(chain, draws):
    """The draws as those of an engine of another name."""
    posterior = Draws(chain.problem, {site: x[None] for site, x in draws.items()})
    return Fit(chain.problem, "planted", {}, posterior, chain.history, 0.0)


def test_a_rising_log_joint_is_said():
    """Chains whose log joint rises have left the answer; of flat ones only that is not said."""
    noise = np.random.default_rng(0).normal(size=(2, 500))
    said = [
        modes._moving(
            measure.Sample((2, 500), True, {}, np.empty(0), {"log joint": x.reshape(-1, 1)})
        )
        for x in (noise, noise + np.linspace(0, 100, 500))
    ]
    assert (
        "have not settled" in said[0]
        and "rises by 80 nats from the first to the last fifth" in said[1]
    )


def test_numbers_whose_chains_disagree_are_left_out():
    """Of 40 numbers and 10 of the expected data the first halves have chains 3 sd apart: they go,
    and what is left has the draws that it had.
    """
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(2, 500, 50))
    apart = np.r_[:20, 40:45]
    draws[1][:, apart] += 3.0
    flat = draws.reshape(1000, 50)
    around = measure.Sample((2, 500), True, {}, np.empty(0), {"expected data": flat[:, 40:]})
    one = {"x": agreement.quantities(flat[:, :40])}
    other = {"expected data": agreement.quantities(flat[:, 40:])}
    stick = measure.Yardstick("gibbs", {}, {"x": np.arange(40)}, one, other)
    engine = around._replace(invariant={"expected data": rng.normal(size=(300, 10))})
    kept, left, share = modes.only_settled(around, stick, engine)
    assert share == 0.5
    assert kept.picked["x"].tolist() == list(range(20, 40))
    np.testing.assert_array_equal(kept.sites["x"].draws, flat[:, 20:40])
    np.testing.assert_array_equal(kept.invariant["expected data"].mean, flat[:, 45:].mean(0))
    np.testing.assert_array_equal(
        left.invariant["expected data"], engine.invariant["expected data"][:, 5:]
    )


def test_an_engine_is_judged_by_the_numbers_that_have_settled(problem, monkeypatch):
    """With half of the numbers left out by force, draws of the mode are right by the other half."""
    model, hyper, data = problem
    chain = inference.fit(model.name, data, "gibbs", hyper, jax.random.key(5), progress=False)
    monkeypatch.setattr(modes.verdicts, "trouble", lambda row: ["R-hat 1.30 is above 1.05"])
    flat = {site: chain.posterior.flat(site) for site in chain.posterior.sites}
    aligned, _ = align.common_labels(model, flat, {site: x[0] for site, x in flat.items()})
    said = judged(_renamed(chain, aligned))
    assert said.verdict.startswith("means agree; right width (by the ")
    assert said.settled > 0.9 and "R-hat 1.30" in said.rule


def test_a_model_whose_samplers_choose_their_start_is_not_judged():
    assert modes.sampler_for(discovery.load("bernoulli_mixture")) == "gibbs"
    assert modes.sampler_for(discovery.load("ctm")) is None
