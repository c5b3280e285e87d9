"""The model contract: what follows from nine fields is what was declared by hand, the derived guide
is the hand-written one, and a wrong declaration is refused by a sentence that names the field."""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

import pp_models
from pp_models import base
from pp_models import families as fam
from pp_models.errors import InputError
from pp_models.model import Count, Finite, Flag, Positive, Positives, guide_of
from pp_models.model.declaration import CORE
from pp_models.model.derived import check_declaration, example_of
from pp_models.model.hyper import check_fields

# Declared by hand in the first version: kind, local sites, observed site, coupled, damped.
DECLARED = {
    "bayesian_nmf": ("counts", {"theta"}, "counts", "", set()),
    "bayesian_pmf": ("ratings", {"u"}, "ratings", "rows", set()),
    "bernoulli_mixture": ("dense", set(), "observations", "", set()),
    "correlated_nmf": ("counts", {"s", "u"}, "counts", "rows", {"u", "ell"}),
    "ctm": ("counts", {"y"}, "counts", "", {"y"}),
    "gaussian_mixture": ("dense", set(), "observations", "", set()),
    "hpf": ("counts", {"theta", "xi"}, "counts", "prior", set()),
    "lda": ("counts", {"theta"}, "counts", "", set()),
    "lg_nmf": ("counts", {"s"}, "counts", "", set()),
    "lg_nmf_votes": ("text_and_votes", {"s"}, "votes", "prior", set()),
    "lg_op": ("counts", {"s"}, "counts", "", set()),
    "nmf": ("counts", {"theta"}, "counts", "", set()),
    "pmf": ("ratings", {"u"}, "ratings", "", set()),
}
CARD = ("lda", "bayesian_nmf", "correlated_nmf", "pmf", "lg_nmf_votes")  # keep hand-written guides


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_derived_is_what_was_declared(name):
    model = pp_models.load(name)
    found = model.kind, set(model.local), model.observed, model.coupled, set(model.damped)
    assert found == DECLARED[name] and model.name == name
    check_declaration(model)


def test_variants_of_correlated_topics_are_damped_where_they_are_not_conjugate():
    """Locations as points, and the CTM on locations: Newton steps in both of u and ell."""
    correlated, ctm = pp_models.load("correlated_nmf"), pp_models.load("ctm")
    points = correlated.variant(correlated.Hyper(point_u=True), "counts")
    places = ctm.variant(ctm.Hyper(prior="locations"), "counts")
    assert points.damped == places.damped == {"u", "ell"}
    assert points.local == {"s", "u"} and places.local == {"u"}


@pytest.mark.parametrize("name", CARD)
def test_models_of_the_card_have_guides_written_by_hand(name):
    assert pp_models.load(name).guide is not None


@pytest.mark.parametrize(
    "name", [name for name in DECLARED if name != "nmf"]
)  # which has no posterior
def test_the_derived_guide_has_the_density_of_the_families(name):
    """log q of a draw from the derived guide is that of the declared families at its parameters,
    exactly; for the models of the card it is also the density of the guide written by hand with
    those parameters' distributions."""
    model = dataclasses.replace(pp_models.load(name), guide=None)
    hyper, _, batch = example_of(model)
    program = guide_of(model)
    trace = handlers.trace(handlers.seed(program, jax.random.key(3))).get_trace(hyper, batch)
    params = {n: site["value"] for n, site in trace.items() if site["type"] == "param"}
    draws = {site: trace[site]["value"] for site in model.families}
    theirs, _ = log_density(program, (hyper, batch), {}, {**params, **draws})
    ours = 0.0
    for site, family in model.families.items():
        if family.has_density:
            natural = family.natural(trace[site]["fn"])
            ours += jnp.sum(fam.log_density(family, natural, family.stats(draws[site])))
    np.testing.assert_allclose(theirs, ours, rtol=1e-10)


LDA = pp_models.load("lda")


def _generate_more(hyper, data):
    LDA.generate(hyper, data)
    import numpyro
    import numpyro.distributions as dist

    numpyro.sample("scale", dist.Gamma(1.0, 1.0))


def _wrong_shape(key, hyper, data):
    return {
        **LDA.init(key, hyper, data),
        "beta": jnp.ones((hyper.num_topics + 1, data.num_columns)),
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"families": {"theta": fam.dirichlet, "beta": fam.dirichlet, "phi": fam.dirichlet},
          "init": lambda key, hyper, data: {**LDA.init(key, hyper, data), "phi": jnp.ones((2, 3))}},
         "families names 'phi'"),
        ({"generate": _generate_more}, "samples 'scale', which families does not name"),
        ({"init": _wrong_shape}, r"init of .* gives 'beta' the shape \(4, 9\)"),
        ({"init": lambda key, hyper, data: {"beta": LDA.init(key, hyper, data)["beta"]}},
         "init of lda gives no natural parameter of 'theta'"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_one_sentence(change, sentence):
    with pytest.raises(InputError, match=sentence):
        check_declaration(dataclasses.replace(LDA, **change))


def test_an_unknown_symmetry_is_named():
    with pytest.raises(InputError, match="Unknown symmetry 'rotations'"):
        dataclasses.replace(LDA, symmetry="rotations")


@pytest.mark.parametrize("field", CORE)
def test_a_missing_field_is_named(field):
    declared = {f.name: getattr(LDA, f.name) for f in dataclasses.fields(LDA)}
    with pytest.raises(InputError, match=f"must declare {field}"):
        base.Model(**{name: x for name, x in declared.items() if name != field})


def test_a_site_that_hyper_parameters_give_is_left_out():
    """The declaration of a given precision has no such site, and is the same object every time."""
    model = pp_models.load("lg_nmf")
    given = base.choose_variant(model, model.Hyper(alpha1=0.7), "counts")
    assert set(given.families) == {"s", "d1"} and "alpha1" in model.families
    assert given is base.choose_variant(model, model.Hyper(alpha1=2.0), "counts")
    assert base.choose_variant(model, model.Hyper(), "counts") is model


def test_fields_of_the_first_version_are_checked():
    """A kind that is not the example's, and a field that never was."""
    declared = {f.name: getattr(LDA, f.name) for f in dataclasses.fields(LDA)}
    with pytest.raises(InputError, match="kind is declared as 'ratings'"):
        base.Model(**declared, kind="ratings")
    with pytest.raises(InputError, match="field of a model 'guid'"):
        base.Model(**declared, guid=None)


class Hyper(NamedTuple):
    number: Count = 3
    rate: Positive = 1.0
    several: Positives = (1.0, 2.0)
    place: Finite | None = None
    flag: Flag = False
    choice: Literal["one", "two"] = "one"
    free: float = -1.0


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("number", 0, "number must be a whole number of at least 1"),
        ("number", 2.5, "number must be a whole number"),
        ("rate", -1.0, "rate must be positive and finite"),
        ("rate", (1.0, 2.0), "rate must be one number"),
        ("rate", 1e-320, "rate must be from"),
        ("several", (1.0, 0.0), "several must be positive"),
        ("place", float("nan"), "place must be one finite number"),
        ("flag", 1, "flag must be True or False"),
        ("choice", "three", "Unknown choice 'three'"),
    ],
)
def test_hyper_parameters_are_checked_by_their_types(field, value, sentence):
    with pytest.raises(InputError, match=sentence):
        check_fields(Hyper(**{field: value}))
    assert check_fields(Hyper()) == Hyper()


def test_static_fields_are_in_the_structure():
    """Counts, flags and names are part of what a program is compiled for; the rest are leaves."""
    model = pp_models.load("lda")
    hyper = base.as_arrays(model.Hyper(num_topics=3, alpha=(0.1, 0.2, 0.3)))
    leaves, structure = jax.tree.flatten(hyper)
    assert [x.shape for x in leaves] == [(3,), ()] and structure.unflatten(leaves).num_topics == 3
    traces = []
    program = jax.jit(lambda h: traces.append(1) or h.eta * h.num_topics)
    assert float(program(hyper)) == pytest.approx(0.15)
    program(base.as_arrays(hyper._replace(eta=0.2)))
    assert len(traces) == 1
    program(hyper._replace(num_topics=4))
    assert len(traces) == 2
