"""What a model may offer beyond its nine fields: small records, each read by a few engines or
measures. A model without one is served by the general method, or not at all by those.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pp_models.data.batches import Batch
from pp_models.elimination.passes import Solved


class Tokens(NamedTuple):
    """How tokens choose a factor. Read by `collapsed_gibbs` and `hybrid`.

    odds:  (hyper, stats, batch, summary="collapsed") -> `row_solver.Odds`, with the rows' weights,
           the first site of `families`, integrated out under Dirichlet or gamma priors
    begin: (hyper, data, topics) -> natural parameters of the global sites at these (K, columns)
           distributions over columns; read by `hybrid` alone
    """

    odds: Callable[..., Any]
    begin: Callable[..., Any] | None = None


class Topics(NamedTuple):
    """(hyper, values) -> the rows' weights (rows, K) and topics (K, columns), for a model without
    sites theta and beta. Read by `inference.topics`."""

    weights: Callable[..., jax.Array]
    topics: Callable[..., jax.Array]


class Ratings(NamedTuple):
    """noise: (hyper, values) -> variance of an observation about `predict`. sites: factors of the
    rows and of the columns, whose products `predict` adds to an offset. Read by
    `inference.predict_ratings`."""

    noise: Callable[..., Any]
    sites: tuple[str, str] = ("u", "v")


class Votes(NamedTuple):
    """Probit votes of members on rows: P(yea) = Phi(row'member + offset). Read by
    `inference.predict_votes`.

    rows, members: sites of positive weights (rows, K) and of normal tastes (members, K)
    precision:     name of the tastes' prior precision, a hyper-parameter, or a site if not given
    offsets:       (hyper) -> (members,), or one number
    prior:         (hyper, stats, batch) -> natural parameters (rows, K) and (1, K, K) of normals
                   that, restricted to positive weights, are the rows' density without votes
    """

    rows: str
    members: str
    precision: str
    offsets: Callable[..., Any]
    prior: Callable[..., Any]


class Marginal(NamedTuple):
    """Read by `laplace`, `inla` and the searches for a mode, for latent Gaussian models.

    gridded: names of hyper-parameters, sites if they are not given, that `inla` puts on a grid
    balance: (hyper) -> two dicts site -> prior precision: scaling the first sites by c and the
             second by 1/c leaves the likelihood as it is
    bent:    (model, hyper, stats, batch) -> the part of F that is not linear in the sites `curved`
             (default: F)
    held:    (hyper) -> names of the sites that have no useful joint mode with the others, so that
             `map` and `stochastic_map` hold them at an estimate
    """

    gridded: tuple[str, ...] = ()
    balance: Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Any]]] | None = None
    bent: Callable[..., jax.Array] | None = None
    held: Callable[[Any], tuple[str, ...]] = lambda hyper: ()


class Rotation(NamedTuple):
    """sites: locations known up to a common rotation or, for the symmetry "signed_permutation", up
    to the signs of the axes. The first, a global one, is aligned. Read by `core.align`."""

    sites: tuple[str, ...] = ()


def _without_allocations(hyper: Any, stats: Any, batch: Batch) -> Batch:
    """The same rows without allocations, whose bound is a function of statistics alone."""
    if batch.entries is None:
        return batch
    known = Solved(jnp.zeros((), batch.mask.dtype), None, None)
    return batch.replace(entries=dataclasses.replace(batch.entries, solved=known))


class Learning(NamedTuple):
    """Read by empirical Bayes.

    start:    names of the hyper-parameters that may be learned, or (hyper) -> name -> value to
              start from (default: every positive value)
    fix_rows: (hyper, stats, batch) -> the batch with the parts computed that hyper-parameters do
              not change (default: without its allocations)
    """

    start: tuple[str, ...] | Callable[[Any], Mapping[str, Any]] | None = None
    fix_rows: Callable[..., Batch] = _without_allocations
