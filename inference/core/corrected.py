"""A mean-field posterior with the widths and correlations of linear response."""

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from inference.core import climb, gauge
from inference.core import linear_response as lr
from inference.core import objective as obj
from inference.core import response_draws as draws_
from inference.core.posterior import Names, Posterior, Stored, Values
from inference.core.posteriors import Variational
from pp_models import families as fam
from pp_models.errors import InputError, TooLarge
from pp_models.families.margins import Margin, normal_quantile
from pp_models.model import Sites

MOST_EXACT = 3000  # numbers of a site whose widths are solved for one by one
PROBES = 200  # draws from which the widths of larger sites are estimated
BLOCK = 2**22  # numbers of all right-hand sides that are solved for together
FEW = 8  # right-hand sides that are solved for together in any case
TINY = np.finfo(np.float64).tiny
FINE = 1e-5  # residual where its error is not squared: sensitivities
LEAST_DRAWS = 400  # made at a time: margins are drawn by the ranks among them
LEAST_SHARE = 0.1  # of q's variance, for variances estimated from draws
MOST_DRAWS = 1000  # that a comparison or a file is given: each costs some dozen sweeps
MOST_DRAWN = 2**25  # numbers of such draws
MOST_NUMBERS = 2**27  # of all right-hand sides of a site whose widths are solved for


class Widths(NamedTuple):
    """Variances of a site's numbers, and the relative standard error of their roots."""

    variance: np.ndarray
    error: float


class Corrected(Variational):
    """q at the maximum of its bound, with the covariance of linear response.

    All of it is computed in double precision, from the data.

    notes: sentences on why the widths may be wrong; empty where nothing speaks against them
    until: time (`time.perf_counter`) after which whatever takes long raises TooLarge
    """

    kind, has_density, has_bound = "corrected", False, False

    def __init__(
        self, problem: obj.Problem, shared: Sites, local: Any = (), positions: Any = ()
    ) -> None:
        super().__init__(problem, shared, local, positions)
        self.notes: list[str] = []
        self._widths: dict[str, Widths] = {}
        self._spectrum: draws_.Spectrum | None = None
        self._ascent: climb.Ascent | None = None
        self.settled, self.until = climb.SETTLED, math.inf
        self._drawn: Values = {}
        self._known: tuple[float, ...] = ()  # the ascent's numbers, of a stored posterior

    @property
    def ascent(self) -> climb.Ascent:
        """The maximum of the bound, found when first asked for. Means move there too."""
        if self._ascent is None:
            if self.problem.data is None:
                raise InputError(
                    "Linear response needs the data, and this fit was loaded without them: pass "
                    "data= to pp_models.load_fit."
                )
            model, data = self.problem.model, self.problem.data
            with jax.enable_x64(True):
                natural = {site: lr.double(self.natural(site)) for site in model.families}
                place = lr.place_at(model, lr.double(self.problem.hyper), natural, data.pack())
                if self._known:
                    distance, is_maximum, gain, steps = self._known
                    self._ascent = climb.Ascent(place, distance, bool(is_maximum), gain, int(steps))
                else:
                    self._ascent = climb.climb(model, place, self.settled, self._on_time)
            self.notes += climb.doubts(model, self._ascent, self.settled)
            found = jax.tree.map(np.asarray, self._ascent.place.natural)
            self._shared = {site: found[site] for site in model.shared}
            self._local = {site: found[site] for site in model.local}
        return self._ascent

    @property
    def _place(self) -> lr.Place:
        return self.ascent.place

    def _on_time(self) -> None:
        if time.perf_counter() > self.until:
            raise TooLarge(
                "The corrected widths were not found in the time that there was for them."
            )

    # Functionals ------------------------------------------------------------------------------

    def covariance(
        self, function: Callable[[Any], Any], tolerance: float = lr.TOLERANCE
    ) -> np.ndarray:
        """The covariance of functions of the sites' values, linear about their means.

        With s = Sigma (b - r) it is b's + r's up to the square of the residuals r.

        function: values of all sites, site -> array, -> one number or a vector
        """
        with jax.enable_x64(True):
            rights = self._rights(function)
            shift, rest = self._respond(rights, tolerance)
            found = gauge.products(jax.tree.map(jnp.add, rights, rest), shift)
            found = np.asarray(found) + self._unexplained(function)
        return 0.5 * (found + found.T)

    def _unexplained(self, function: Callable[[Any], Any]) -> np.ndarray:
        """Covariances under q that the regression on its statistics leaves, by polarisation."""
        slopes, total = self._slopes(function), 0.0
        for site, family in self.problem.model.families.items():
            if family.spread is not None:
                natural, c = self._place.natural[site], slopes[site]
                b = jax.vmap(lambda x, f=family, n=natural: fam.regression(f, n, x))(c)
                moved = jax.vmap(lambda x, f=family, n=natural: jax.jvp(f.mean, (n,), (x,))[1])(b)
                whole = jax.vmap(lambda x, f=family, n=natural: f.spread(n, x))(c)
                total = total + gauge.products(c, whole) - gauge.products(b, moved)
        return np.asarray(total)

    def sensitivity(self, function: Callable[[Any], Any]) -> dict[str, np.ndarray]:
        """How fast the expected function rises with each hyper-parameter.

        Name -> derivatives, of the shape of the function by that of the hyper-parameter.
        """
        with jax.enable_x64(True):
            rights = self._rights(function)
            shift, _ = self._respond(rights, FINE)
            return lr.sensitivities(self.problem.model, self._place, shift)

    def doubled(self, function: Callable[[Any], Any]) -> dict[str, np.ndarray]:
        """How far the expected function moves if a hyper-parameter is doubled, to first order.

        Name -> log 2 times the derivatives by the hyper-parameter's logarithm.
        """
        hyper = self.problem.hyper._asdict()
        slopes = self.sensitivity(function)
        return {
            name: math.log(2) * np.reshape(x, (len(x), -1)) @ np.ravel(hyper[name]).astype(float)
            for name, x in slopes.items()
        }

    def _rights(self, function: Callable[[Any], Any]) -> Sites:
        """The functions' gradients with respect to the expected statistics, stacked."""
        model, place = self.problem.model, self._place
        rights = lr.regressions(model, place, self._slopes(function))
        return gauge.without_turns(model, place.mean, rights)

    def _slopes(self, function: Callable[[Any], Any]) -> Sites:
        """The functions' gradients with respect to the sites' means, stacked."""
        means = {site: jnp.asarray(self._mean(site)) for site in self.sites}
        return jax.jacrev(lambda values: jnp.ravel(jnp.asarray(function(values), float)))(means)

    def _respond(self, rights: Sites, tolerance: float) -> tuple[Sites, Sites]:
        """Sigma b and the residuals, some right-hand sides at a time. Doubts are noted."""
        number = len(jax.tree.leaves(rights)[0])
        parts = []
        for some, size in self._blocks(number):
            filled = np.resize(some, size)  # blocks of one size are compiled once
            part = jax.tree.map(lambda x, places=filled: x[places], rights)
            model, watch = self.problem.model, self._on_time
            found = lr.respond(model, self._place, part, tolerance, watch=watch)
            self._judge(found, tolerance)
            parts.append((found.shift, found.rest))
        return jax.tree.map(lambda *x: jnp.concatenate(x)[:number], *parts)

    def _blocks(self, number: int) -> Iterator[tuple[np.ndarray, int]]:
        """Places of blocks, and the size that all of them are filled up to."""
        together = min(number, max(FEW, BLOCK // self._size))
        for first in range(0, number, together):
            yield np.arange(first, min(first + together, number)), together

    @property
    def _size(self) -> int:
        """Numbers of all sites."""
        return sum(x.size for site in self.sites for x in jax.tree.leaves(self.natural(site)))

    def _judge(self, found: lr.Response, tolerance: float) -> None:
        if not found.is_maximum.all():
            self._note(
                "The bound is not at a maximum in all directions: widths are not to be trusted."
            )
        elif (worst := float(found.residual.max())) > tolerance:
            self._note(
                f"Linear response was not solved to the end (residual {worst:.1g} after "
                f"{found.steps} steps): some widths are too small."
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # Moments of sites -------------------------------------------------------------------------

    def _mean(self, site: str) -> np.ndarray:
        return np.asarray(super().mean(site), np.float64)

    def sd(self, site: str) -> np.ndarray:
        """Solved for, or of sites with more than `MOST_EXACT` numbers estimated (`sd_error`)."""
        return np.sqrt(self.widths(site).variance).astype(self._dtype)

    def sd_error(self, site: str) -> float:
        """The relative standard error of `sd`: 0 where it was solved for."""
        return self.widths(site).error

    def interval(self, site: str, probability: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The ends of central intervals of single numbers: quantiles of their margins."""
        if not 0 < probability < 1:
            raise InputError(f"probability must lie between 0 and 1, not {probability!r}.")
        margin = self.problem.model.families[self._check(site)].margin or Margin(normal_quantile)
        mean, variance = self._mean(site), self.widths(site).variance
        low, high = (
            margin.quantile(np.full(mean.shape, ndtri(0.5 + end)), mean, variance)
            for end in (-0.5 * probability, 0.5 * probability)
        )
        return low.astype(self._dtype), high.astype(self._dtype)

    def widths(self, site: str) -> Widths:
        """The variances of a site's numbers."""
        if self._check(site) not in self._widths:
            with jax.enable_x64(True):
                if self._is_small(site):
                    self._widths[site] = self._solved_widths(site)
                else:
                    self._widths |= self._estimated_widths()
        return self._widths[site]

    def _solved_widths(self, site: str) -> Widths:
        if not self._mean(site).size:
            return Widths(np.zeros(self._mean(site).shape), 0.0)
        rights = self._rights(lambda values: values[site])
        variance = gauge.diagonal(rights, self._respond(rights, lr.TOLERANCE)[0])
        shape = self._mean(site).shape
        units = jnp.eye(len(variance)).reshape(-1, *shape)
        rest = lr.unexplained(self.problem.model, self._place, site, units)
        found = np.asarray(variance + rest).reshape(shape)
        rounding = 1e-9 * np.asarray(super().sd(site)) ** 2 + 1e-18 * self._mean(site) ** 2
        if negative := int(np.sum(found < -rounding)):
            self._note(f"{negative:,} variances of {site} came out negative: their sd is set to 0.")
        return Widths(np.maximum(found, 0.0), 0.0)

    def _estimated_widths(self) -> dict[str, Widths]:
        """q's variances plus the difference of draws' variances, whose errors partly cancel."""
        before, after = self._deviations(jax.random.key(1), PROBES)
        found = {}
        for site in self.sites:
            if self._is_small(site):
                continue
            own = np.asarray(super().sd(site), np.float64) ** 2
            change = (after[site] - after[site].mean(0)) ** 2
            change -= (before[site] - before[site].mean(0)) ** 2
            variance = np.maximum(own + change.mean(0), LEAST_SHARE * own)
            if narrow := int(np.sum(own + change.mean(0) < LEAST_SHARE * own)):
                self._note(
                    f"{narrow:,} estimated variances of {site} were below {LEAST_SHARE:.0%} of "
                    "q's, and are set to that."
                )
            error = change.std(0) / math.sqrt(PROBES) / (2 * np.maximum(variance, TINY))
            found[site] = Widths(variance, float(np.median(error)))
        return found

    def _is_small(self, site: str) -> bool:
        """Whether the widths of a site's numbers are solved for one by one."""
        size = self._mean(site).size
        return size <= MOST_EXACT and size * self._size <= MOST_NUMBERS

    # Draws ------------------------------------------------------------------------------------

    def sample(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """Draws with margins of q's family and the corrected variances, joined by a normal copula
        with the corrected correlations. Matrices are drawn from q."""
        wanted = self.sites if sites is None else list(sites)
        families = self.problem.model.families
        plain = [site for site in wanted if families[self._check(site)].margin is None]
        out = Variational.sample(self, key, num_draws, plain) if plain else {}
        if plain:
            self._note(
                f"Draws of {' and '.join(plain)} are those of q, independent of the other sites."
            )
        scaled = [site for site in wanted if site not in plain]
        if coupled := [site for site in scaled if families[site].settles]:
            self._note(f"Draws of {' and '.join(coupled)} have approximate correlations in a row.")
        if scaled:
            widths = {site: self.widths(site).variance for site in scaled}
            with jax.enable_x64(True):
                _, after = self._deviations(key, max(num_draws, LEAST_DRAWS))
        seed = np.asarray(jax.random.key_data(key)).ravel()
        for site in scaled:
            margin: Any = families[site].margin
            rng = np.random.default_rng([*seed, zlib.crc32(site.encode())])
            z = draws_.normal_scores(after[site], widths[site], rng)
            found = margin.quantile(z[:num_draws], self._mean(site), widths[site])
            out[site] = margin.join(found).astype(self._dtype)
        return {site: out[site] for site in wanted}

    def _deviations(self, key: jax.Array, number: int) -> tuple[Values, Values]:
        """(number, ...) linear deviations of the sites' values, of q and of this posterior."""
        model, place = self.problem.model, self._place
        if self._spectrum is None:
            self._spectrum = draws_.spectrum(model, place, jax.random.key(0))
            if not self._spectrum.is_maximum:
                self._note(
                    "The bound rises along some direction: draws have the correlations of q, and "
                    "widths that are estimated from draws are those of q."
                )
            elif self._spectrum.least < draws_.FLATTEST:
                self._note(
                    "The bound is nearly flat along some direction: draws, and widths that are "
                    "estimated from draws, are too narrow there."
                )
        terms = draws_.polynomial(self._spectrum)
        befores, afters = [], []
        for some, size in self._blocks(number):
            self._on_time()
            block = draws_.deviations(model, place, jax.random.fold_in(key, some[0]), size)
            block = gauge.without_turning(model, place.mean, place.natural, block)
            wider = block
            if self._spectrum.is_maximum:
                wider = draws_.spread_out(model, place, block, *terms)
            wider = gauge.aligned(model, place.mean, wider)
            befores.append(draws_.values(model, place, block))
            afters.append(draws_.values(model, place, wider))
        before, after = (
            {site: np.concatenate([part[site] for part in parts])[:number] for site in self.sites}
            for parts in (befores, afters)
        )
        return before, after

    def num_draws(self, wanted: int) -> int:
        """Draws are costly: where their number is free there are fewer of a large posterior."""
        if self._drawn:
            return min(wanted, len(self._drawn[self.sites[0]]))
        return min(wanted, MOST_DRAWS, max(LEAST_DRAWS, MOST_DRAWN // self._size))

    def chains(self, key: jax.Array, num_draws: int, sites: Names = None) -> Values:
        """One chain of draws. They are kept: another call gets the same, or the first of them."""
        number = self.num_draws(num_draws)
        self._drawn = self._drawn or self.sample(key, number)
        return {site: self._drawn[site][None, :number] for site in sites or self.sites}

    def stored(self, sites: Sequence[str], options: dict[str, Any]) -> Stored:
        more: dict[str, Any] = {"ascent": np.array(self.ascent[1:], float)}
        for site, (variance, error) in self._widths.items():
            more |= {f"variance/{site}": variance, f"error/{site}": np.array(error)}
        more |= {f"draws/{site}": x for site, x in self._drawn.items()}
        return super().stored(sites, options)._replace(more=more)

    @classmethod
    def restored(cls, problem: obj.Problem, stored: Stored) -> "Corrected":
        found, more = cast(Corrected, super().restored(problem, stored)), stored.more
        found._known = tuple(more["ascent"].tolist())
        for site in problem.model.families:
            if f"variance/{site}" in more:
                error = float(more[f"error/{site}"])
                found._widths[site] = Widths(more[f"variance/{site}"], error)
            if f"draws/{site}" in more:
                found._drawn[site] = more[f"draws/{site}"]
        return found

    def log_density(self, draws: dict[str, Any]) -> np.ndarray:
        return Posterior.log_density(self, draws)

    @property
    def _dtype(self) -> Any:
        return jnp.result_type(float)


def corrected(
    found: Variational, settled: float = climb.SETTLED, max_seconds: float | None = None
) -> Corrected:
    """The same posterior at the maximum of its bound, with the widths of linear response.

    settled: how far, in its sd, any functional's mean may be from that at the maximum
    max_seconds: after which this and whatever is asked later raises TooLarge
    """
    model = found.problem.model
    shared = {site: found.natural(site) for site in model.shared}
    local = {site: found.natural(site) for site in model.local}
    posterior = Corrected(found.problem, shared, local)
    posterior.settled = settled
    posterior.until = math.inf if max_seconds is None else time.perf_counter() + max_seconds
    _ = posterior.ascent
    return posterior
