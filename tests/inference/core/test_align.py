"""Laws of alignment: relabelling changes nothing that is compared, and alignment undoes any
relabelling.
"""

import dataclasses

import jax
import numpy as np
import pytest

import pp_models
from inference.core import align
from pp_models.errors import InputError
from pp_models.model import factor_axes, value_shapes

LDA = pp_models.load("lda")
NUM_DRAWS = 6
ROUNDING = {"rtol": 1e-9, "atol": 1e-10}  # of double precision, through a product of rotations


def separated_topics(num_topics=4, num_columns=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(num_columns, 0.2), num_topics)


def draws_around(topics, shape, seed=1, num_rows=7):
    """Draws of both sites whose topics scatter around the given ones."""
    rng = np.random.default_rng(seed)
    beta = rng.gamma(200 * topics + 0.5, size=(*shape, *topics.shape))
    return {
        "theta": rng.dirichlet(np.ones(len(topics)), (*shape, num_rows)),
        "beta": beta / beta.sum(-1, keepdims=True),
    }


def shuffled_labels(draws, shape, num_topics, seed=2):
    orders = np.random.default_rng(seed).permuted(
        np.broadcast_to(np.arange(num_topics), (*shape, num_topics)), axis=-1
    )
    return align.permute(LDA, draws, orders), orders


def test_topic_order_undoes_a_permutation():
    topics = separated_topics()
    order = np.array([2, 0, 3, 1])
    found = align.topic_order(topics, topics[order])
    np.testing.assert_array_equal(topics[order][found], topics)


def test_topic_order_does_not_depend_on_the_scale_of_topics():
    """Bayesian NMF's topics are not normalised: only their shapes may matter."""
    topics = separated_topics()
    scaled = topics[::-1] * np.array([1e-3, 5.0, 40.0, 0.2])[:, None]
    np.testing.assert_array_equal(align.topic_order(topics, scaled), [3, 2, 1, 0])


def test_permuting_leaves_the_rates_alone():
    """theta @ beta is what the data see: a relabelling that moved it would not be one."""
    draws = draws_around(separated_topics(), (3, 5))
    moved, _ = shuffled_labels(draws, (3, 5), 4)
    assert not np.array_equal(moved["beta"], draws["beta"])
    np.testing.assert_allclose(
        moved["theta"] @ moved["beta"], draws["theta"] @ draws["beta"], rtol=1e-12
    )


@pytest.mark.parametrize("shape", [(), (6,), (3, 5)])
def test_aligned_draws_do_not_depend_on_their_labels(shape):
    """Every draw relabelled on its own, within and between chains: after alignment both sets are
    the same, bit for bit.
    """
    topics = separated_topics()
    draws = draws_around(topics, shape)
    pivot = {"theta": np.full((7, 4), 0.25), "beta": topics}
    moved, _ = shuffled_labels(draws, shape, 4)
    first, second = align.align_draws(LDA, draws, pivot), align.align_draws(LDA, moved, pivot)
    for site in draws:
        np.testing.assert_array_equal(first[site], second[site])
    np.testing.assert_array_equal(
        first["beta"], draws["beta"]
    )  # they scattered around the pivot's labels to begin with


def test_vectorised_alignment_is_that_of_single_draws():
    topics = separated_topics()
    draws, _ = shuffled_labels(draws_around(topics, (2, 3)), (2, 3), 4)
    pivot = {"theta": np.full((7, 4), 0.25), "beta": topics}
    together = align.align_draws(LDA, draws, pivot)
    alone = align.align_draws(LDA, {site: value[1, 2] for site, value in draws.items()}, pivot)
    for site in draws:
        np.testing.assert_array_equal(together[site][1, 2], alone[site])


def test_axis_of_factors():
    """Sites that one more factor makes larger, along the axis that grew: whatever the sizes,
    nothing else is relabelled.
    """
    assert factor_axes(LDA) == {"theta": (-1,), "beta": (-2,)}
    assert factor_axes(pp_models.load("bernoulli_mixture")) == {"pi": (-1,), "beta": (-2,)}
    hpf = pp_models.load("hpf")
    assert factor_axes(hpf) == {"theta": (-1,), "xi": (), "beta": (-2,), "eta": ()}
    values = {
        "theta": np.arange(9.0).reshape(3, 3),
        "xi": np.arange(3.0),
        "beta": np.arange(9.0).reshape(3, 3),
        "eta": np.arange(3.0),
    }
    moved = align.permute(hpf, values, np.array([2, 0, 1]))
    assert moved["xi"] is values["xi"] and moved["eta"] is values["eta"]
    np.testing.assert_array_equal(moved["theta"], values["theta"][:, [2, 0, 1]])
    np.testing.assert_array_equal(moved["beta"], values["beta"][[2, 0, 1]])


def test_factors_in_columns_are_aligned_too():
    def init(key, hyper, data):
        natural = LDA.init(key, hyper, data)
        return {"s": natural["theta"], "d1": natural["beta"].T}

    model = dataclasses.replace(
        LDA, families={"s": LDA.families["theta"], "d1": LDA.families["beta"]}, init=init
    )
    model.__dict__["local"] = frozenset(
        {"s"}
    )  # in place of what is derived from `generate`, whose sites have other names
    topics = separated_topics().T
    pivot = {"s": np.ones((5, 4)), "d1": topics}
    moved = align.permute(model, pivot, np.array([3, 1, 0, 2]))
    np.testing.assert_array_equal(align.align_draws(model, moved, pivot)["d1"], topics)


def test_different_modes_are_not_aligned_away():
    topics, others = separated_topics(), separated_topics(seed=9)
    order = align.topic_order(topics, others)
    assert np.diagonal(align.hellinger(topics, others[order])).mean() > 0.2


def test_other_symmetries_are_refused_in_words():
    with pytest.raises(InputError, match="Unknown symmetry 'shear'"):
        dataclasses.replace(LDA, symmetry="shear")


def test_an_empty_topic_is_no_division_by_zero():
    topics = separated_topics()
    topics[2] = 0
    np.testing.assert_array_equal(align.topic_order(topics, topics), np.arange(4))


# Every model, every symmetry ----------------------------------------------------------------------

LOCATIONS = pp_models.load("ctm").variant(pp_models.load("ctm").Hyper(prior="locations"), "counts")
PMF = pp_models.load("pmf")
# Models of this zoo are invariant to rotations where others are to signs; their sites serve to test
# those, one that packs a mean and precision too.
SIGNED = {
    "pmf, signs": dataclasses.replace(PMF, symmetry="signed_permutation"),
    "bayesian_pmf, signs": dataclasses.replace(
        pp_models.load("bayesian_pmf"), symmetry="signed_permutation"
    ),
}
MODELS = (
    {name: pp_models.load(name) for name in pp_models.available()}
    | {"ctm, locations": LOCATIONS}
    | SIGNED
)


def draw_site(rng, family, shape):
    """Values that the family could take; nothing is compiled for them."""
    if family == "dirichlet":
        return rng.dirichlet(np.full(shape[-1], 0.5), shape[:-1])
    if family == "beta":
        return rng.beta(0.7, 0.7, shape)
    if family in ("normal", "normal_tied", "point"):
        return rng.normal(size=shape)
    if family in ("wishart", "normal_wishart"):
        root = rng.normal(size=(*shape[:-2], shape[-1], shape[-1] + 2))
        precision = root @ np.swapaxes(root, -1, -2)
        return (
            precision
            if family == "wishart"
            else np.concatenate([rng.normal(size=(*shape[:-2], 1, shape[-1])), precision], -2)
        )
    return rng.gamma(0.7, size=shape)


def some_draws(model, shape=(NUM_DRAWS,), seed=0):
    """Hyper-parameters of the model's example, and unrelated values of its sites for draws."""
    hyper, data = model.example(jax.random.key(seed))
    hyper, rng = model.resolve(hyper, data), np.random.default_rng(seed)
    shapes = value_shapes(model, hyper, data)
    return hyper, {
        site: draw_site(rng, model.families[site].name, (*shape, *shapes[site])) for site in shapes
    }


def change_labels(model, draws, shape, seed=5):
    """Every draw moved along its orbit, each in its own way, by formulas of this file."""
    rng, axes = np.random.default_rng(seed), factor_axes(model)
    site = (
        model.rotation.sites[0]
        if model.symmetry in ("rotation", "signed_permutation")
        else align.deciding(model, draws)[0]
    )
    size = draws[site].shape[axes[site][0]]
    moved = {name: np.array(value) for name, value in draws.items()}
    for index in np.ndindex(shape):
        order, sign, scale = (
            rng.permutation(size),
            rng.choice([-1.0, 1.0], size),
            rng.gamma(2.0, size=size),
        )
        for name, value in moved.items():
            one = value[index]
            if model.symmetry in ("permutation", "scale") or (
                model.symmetry == "signed_permutation" and name not in model.rotation.sites
            ):
                for axis in axes[name]:
                    one = np.take(one, order, axis)
            if model.symmetry == "scale":
                one = one * scale if name in model.local else one / scale[:, None]
            if model.symmetry == "signed_permutation" and name in model.rotation.sites:
                one = turned(model, name, one, np.eye(size)[:, order] * sign)
            value[index] = one
        if model.rotation.sites and model.symmetry in ("permutation", "rotation"):
            turn = np.linalg.qr(rng.normal(size=(moved[model.rotation.sites[0]].shape[-1],) * 2))[0]
            for name in model.rotation.sites:
                moved[name][index] = turned(model, name, moved[name][index], turn)
    return moved


def turned(model, name, value, turn):
    if model.families[name].name != "normal_wishart":
        return value @ turn
    return np.concatenate([value[:, :1] @ turn, turn.T @ value[:, 1:] @ turn], 1)


def assert_same(first, second, **tolerance):
    for site in first:
        np.testing.assert_allclose(first[site], second[site], err_msg=site, **tolerance)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(NUM_DRAWS,), (2, 3)])
def test_alignment_undoes_every_symmetry(name, shape):
    """Draws moved along their orbits are the same as the draws themselves after alignment, to
    rounding, and their predictions never changed.

    Alignment is idempotent: what is aligned stays as it is. A new model joins by being discovered.
    """
    model = MODELS[name]
    hyper, draws = some_draws(model, shape)
    moved = change_labels(model, draws, shape)
    pivot = {site: value[(0,) * len(shape)] for site, value in draws.items()}
    first, second = align.align_draws(model, draws, pivot), align.align_draws(model, moved, pivot)
    assert any(not np.allclose(moved[site], draws[site]) for site in draws)
    assert_same(first, second, **ROUNDING)
    assert_same(align.align_draws(model, first, pivot), first, **ROUNDING)
    expected = [
        np.stack(
            [
                model.predict(hyper, {site: value[index] for site, value in some.items()})
                for index in np.ndindex(shape)
            ]
        )
        for some in (draws, moved, first, second)
    ]
    for other in expected[1:]:
        np.testing.assert_allclose(other, expected[0], **ROUNDING)


@pytest.mark.parametrize("name", MODELS)
def test_common_labels_do_not_depend_on_those_of_the_draws(name):
    """Moved along their orbits and aligned to the same first draw, draws and pivot come out the
    same: iterating forgets the labels they had.

    And the draws are what `align_draws` makes of them with the pivot returned. 1e-5: rotations rest
    when the pivot moves by less than 1e-6.
    """
    model = MODELS[name]
    _, draws = some_draws(model)
    first = {site: value[2] for site, value in draws.items()}
    one, pivot = align.common_labels(model, draws, first)
    other, again = align.common_labels(model, change_labels(model, draws, (NUM_DRAWS,)), first)
    assert_same(one, other, rtol=1e-5, atol=1e-6)
    assert_same(pivot, again, rtol=1e-5, atol=1e-6)
    assert_same(align.align_draws(model, draws, pivot), one, **ROUNDING)
    assert model.symmetry == "none" or align.deciding(model, first)[0] in align.pivot_in_words(
        model
    )


@pytest.mark.parametrize("name", MODELS)
def test_labels_follow_the_pivots(name):
    """Equivariance: with a pivot of other labels, aligned draws have those labels, and are at the
    same distance from it.
    """
    model = MODELS[name]
    _, draws = some_draws(model)
    pivot = {site: value[:1] for site, value in draws.items()}
    other = change_labels(model, pivot, (1,))
    here, there = ({site: value[0] for site, value in one.items()} for one in (pivot, other))
    aligned = align.align_draws(model, draws, here)
    assert_same(
        align.align_draws(model, draws, there), align.align_draws(model, aligned, there), **ROUNDING
    )


@pytest.mark.parametrize(
    "name", ["lda", "nmf", "pmf", "pmf, signs", "bernoulli_mixture", "ctm, locations"]
)
def test_aligned_draws_are_nearest(name):
    """No other relabelling of a draw is nearer to the pivot than the one chosen, of many tried at
    random.
    """
    model = MODELS[name]
    _, draws = some_draws(model)
    pivot = {site: value[0] for site, value in draws.items()}
    site = model.rotation.sites[0] if model.rotation.sites else "beta"
    aligned = align.align_draws(model, draws, pivot)
    normalise = align._root if name in ("lda", "nmf") else np.asarray
    unit = 1.0
    if name == "bernoulli_mixture":
        unit = align.spread(pivot[site], draws[site])
    if name == "pmf, signs":  # one for each item
        unit = align.spread(pivot[site].T, np.swapaxes(draws[site], 1, 2), centred=False)[:, None]

    def far(values):
        return np.sum(((normalise(values[site]) - normalise(pivot[site])) / unit) ** 2, (-2, -1))

    for seed in range(30):
        tried = change_labels(model, aligned, (NUM_DRAWS,), seed)
        if model.rotation.sites == (
            "ell",
            "u",
        ):  # topics come first, their places follow: only the turn is tried
            tried = align.relabel(
                model, tried, align.Labels(order=align.find_labels(model, tried, pivot).order)
            )
        assert np.all(far(aligned) <= far(tried) + 1e-9)


def test_a_mean_over_draws_is_a_better_pivot():
    """Iterated to rest, the sum of squared distances to the mean is no larger than after one
    alignment to a single draw, for rotations.
    """
    rng = np.random.default_rng(0)
    v = rng.normal(size=(8, 3)) + 0.7 * rng.normal(size=(200, 8, 3))
    turns = np.linalg.qr(rng.normal(size=(200, 3, 3)))[0]
    draws = {"v": v @ turns, "u": rng.normal(size=(200, 9, 3))}
    first = {site: value[0] for site, value in draws.items()}
    once = align.align_draws(PMF, draws, first)["v"]
    aligned, pivot = align.common_labels(PMF, draws, first)
    assert aligned["v"].var(0).sum() < 0.98 * once.var(0).sum()
    np.testing.assert_allclose(
        aligned["v"].mean(0), pivot["v"], rtol=0, atol=0.02
    )  # after ten rounds, of locations of size one


@pytest.mark.parametrize("name", ["bernoulli_mixture", "gaussian_mixture", "lg_nmf", "pmf, signs"])
def test_a_pivot_with_its_unit_needs_no_other_draws(name):
    """One draw alone gets the labels it has among all, also where the cost is in units of the
    draws.
    """
    _, draws = some_draws(MODELS[name], (40,))
    aligned, pivot = align.common_labels(
        MODELS[name], draws, {site: value[0] for site, value in draws.items()}
    )
    for i in range(40):
        alone = align.align_draws(
            MODELS[name], {site: value[i] for site, value in draws.items()}, pivot
        )
        assert_same(alone, {site: value[i] for site, value in aligned.items()}, **ROUNDING)


def test_draws_that_are_not_finite_keep_their_labels():
    for model in (LDA, PMF, SIGNED["pmf, signs"], MODELS["nmf"]):
        _, draws = some_draws(model)
        draws = {site: np.array(value) for site, value in draws.items()}
        for value in draws.values():
            value[1] = np.nan
        first = {site: value[0] for site, value in draws.items()}
        aligned, pivot = align.common_labels(model, draws, first)
        assert all(np.isfinite(value).all() for value in pivot.values())
        assert all(np.isfinite(value[2:]).all() for value in aligned.values())


def test_single_precision_and_blocks(monkeypatch):
    """Draws keep their type, and doing a few at a time changes nothing."""
    for name in ("lda", "bernoulli_mixture", "pmf, signs", "nmf", "pmf"):
        _, draws = some_draws(MODELS[name])
        draws = {site: value.astype(np.float32) for site, value in draws.items()}
        first = {site: value[0] for site, value in draws.items()}
        whole, _ = align.common_labels(MODELS[name], draws, first)
        monkeypatch.setattr(align, "BLOCK", 20)
        parts, _ = align.common_labels(MODELS[name], draws, first)
        monkeypatch.undo()
        for site in draws:
            assert whole[site].dtype == np.float32
            np.testing.assert_allclose(whole[site], parts[site], rtol=1e-5, atol=1e-6)


def test_relabelling_is_no_mode_and_another_factor_is():
    """Chains of LDA that differ in labels alone are in one mode after alignment; with one topic
    replaced in a chain, in two.
    """
    topics = separated_topics()
    draws = draws_around(topics, (2, 300))
    moved, _ = shuffled_labels(draws, (2, 300), 4)

    def modes(beta):
        flat = {"beta": beta.reshape(600, 4, 12)}
        aligned, _ = align.common_labels(LDA, flat, {"beta": flat["beta"][0]})
        return align.find_modes(aligned["beta"].reshape(2, 300, -1)).groups

    assert modes(moved["beta"]) == [[0, 1]]
    topics[2] = separated_topics(seed=9)[0]
    moved["beta"][1] = shuffled_labels(draws_around(topics, (300,)), (300,), 4)[0]["beta"]
    assert modes(moved["beta"]) == [[0], [1]]
