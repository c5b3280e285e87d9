"""Comparisons made up without a single fit, and what every page must be."""

import importlib.util
import os
import re
import shutil
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jax
import numpy as np
import pytest
import xarray

import pp_models
from inference.core.objective import Problem
from inference.core.posteriors import Draws, Point, Variational
from inference.io.fits import Fit
from inference.report import page as report
from pp_models.data import Data
from pp_models.model import as_arrays, declare, value_shapes

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = importlib.util.find_spec("playwright")
MISSING = (
    "no Chromium on this machine"
    if CHROMIUM is None
    else "the Python package playwright is not installed"
    if DRIVER is None
    else ""
)
FLAGS = (  # root needs no sandbox; the rest keeps Chromium itself, not the page, from calling home
    *(
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
    ),
    *("--disable-component-update", "--disable-sync"),
)
KINDS = {
    "gibbs": "draws",
    "nuts": "draws",
    "map": "point",
    "stochastic_map": "point",
    "inla": "mixture",
}
WIDTHS = {"cavi": 0.5, "svi": 0.7, "laplace": 1.2}
FIGURES = (
    "mean_error_sd",
    "sd_ratio",
    "coverage50",
    "coverage90",
    "wasserstein_sd",
    "tail_error_sd",
    "correlation_error",
)
NOTHING = (
    *(
        "kind",
        "error",
        "rule",
        "seconds",
        "seconds_to_1pct",
        "bound",
        "kl",
        "log_joint",
        *FIGURES,
        "quantities",
        "khat",
        "psis",
        "heldout",
    ),
    *("heldout_se", "rhat", "ess_bulk", "ess_tail", "divergences", "ebfmi", "modes"),
)


class Comparison(NamedTuple):
    """The fields of `inference.comparison.compare.Comparison`, which the report reads."""

    model: Any
    hyper: Any
    data: Data
    reference: str | None
    fits: dict[str, Any]
    draws: dict[str, dict[str, np.ndarray]]
    summary: dict[str, Any]
    quantities: xarray.Dataset
    chains: dict[str, Any]
    truth: dict[str, np.ndarray] | None
    pivot: dict[str, np.ndarray]


class Tree:
    """What `to_arviz` returns, as far as the report needs it."""

    def __init__(self, **asked):
        pass

    def __getitem__(self, group):
        return SimpleNamespace(attrs={"note": ""})

    def to_netcdf(self, path):
        with open(path, "wb") as file:
            file.write(b"CDF")


def _made(
    name,
    engines=("gibbs", "cavi", "svi", "map"),
    data=None,
    hyper=None,
    reference="gibbs",
    truth=True,
    num_draws=120,
    seed=0,
):
    """A whole comparison of made-up Gaussian posteriors, without a single fit."""
    rng = np.random.default_rng(seed)
    example, drawn = pp_models.load(name).example(jax.random.key(0))
    data = drawn if data is None else data
    model, hyper = declare(pp_models.load(name), example if hyper is None else hyper, data)
    shapes = value_shapes(model, hyper, data)
    signed = ("normal", "normal_tied", "normal_wishart", "point")
    centre = {
        site: (1 if model.families[site].name in signed else 0) * rng.normal(size=shape)
        for site, shape in shapes.items()
    }
    centre = {
        site: value if np.any(value) else rng.gamma(0.7, size=shapes[site]) + 0.3
        for site, value in centre.items()
    }
    draws = {
        engine: _draws(
            rng, centre, 1 if KINDS.get(engine) == "point" else num_draws, WIDTHS.get(engine, 1.0)
        )
        for engine in engines
    }
    fits = {engine: _fit(rng, model, hyper, data, engine) for engine in engines}
    rows = {engine: _row(rng, engine, draws, reference) for engine in engines}
    chains = {engine: _chains(rng) for engine in engines if KINDS.get(engine) == "draws"}
    summary = _summary(model, hyper, data, reference, rows)
    return Comparison(
        model,
        hyper,
        data,
        reference,
        fits,
        draws,
        summary,
        _quantities(draws, reference, data),
        chains,
        dict(centre) if truth else None,
        dict(centre),
    )


def _draws(rng, centre, number, width):
    return {
        site: value + 0.05 * width * rng.normal(size=(number, *value.shape))
        for site, value in centre.items()
    }


def _fit(rng, model, hyper, data, engine):
    kind = KINDS.get(engine, "variational")
    steps = np.arange(1, 30)
    history = {
        "step": steps,
        "seconds": 0.1 * steps,
        "bound": -100.0 - 50.0 / steps if kind == "variational" else np.full(len(steps), np.nan),
    }
    names = tuple(model.marginal.gridded)
    theta = rng.normal(size=(9, len(names))) * 0.3
    posterior = SimpleNamespace(
        kind=kind,
        names=names,
        theta=theta,
        weights=np.exp(-(theta**2).sum(1)) / np.exp(-(theta**2).sum(1)).sum(),
    )
    return SimpleNamespace(
        model=model,
        hyper=hyper,
        data=data,
        engine=engine,
        seconds=0.5,
        history=history,
        posterior=posterior,
        to_arviz=Tree,
        stopped=None,
    )


def _row(rng, engine, draws, reference):
    kind = KINDS.get(engine, "variational")
    row = {
        "engine": engine,
        **dict.fromkeys(NOTHING),
        "kind": kind,
        "verdict": "means agree; far too narrow",
        "seconds": float(rng.uniform(1, 9)),
    }
    row |= {
        "rule": "mean error below 0.2 sd; sd ratio below 0.5",
        "notes": [],
        "heldout": -2.5,
        "heldout_se": 0.01,
        "heldout_curve": [],
        "log_joint": -90.0,
    }
    if reference in draws and engine != reference:
        record = {name: float(rng.uniform(0.1, 0.9)) for name in FIGURES} | {"quantities": 30}
        if kind == "point":
            record |= dict.fromkeys(
                ("sd_ratio", "coverage50", "coverage90", "tail_error_sd", "correlation_error")
            )
        row |= record | {
            "sites": dict.fromkeys(draws[engine], record),
            "invariant": {"expected data": record, "log joint": record},
        }
    if kind == "variational":
        row |= {
            "bound": -101.7,
            "kl": 3.2,
            "khat": 2.4,
            "seconds_to_1pct": 0.3,
            "heldout_curve": [[0.1, -3.0], [0.5, -2.6], [1.0, -2.5]],
        }
    if kind == "draws":
        row |= {"rhat": 1.004, "ess_bulk": 812.0, "ess_tail": 650.0, "divergences": 0, "ebfmi": 0.9}
        row["verdict"] = "the reference" if engine == reference else "means agree; right width"
    return row | {"sites": row.get("sites") or {}, "invariant": row.get("invariant") or {}}


def _chains(rng, chains=4, length=100):
    return SimpleNamespace(
        names=["log joint", *(f"expected data {i}" for i in range(5))],
        values=rng.normal(size=(chains, length, 6)),
    )


def _summary(model, hyper, data, reference, rows):
    about = {
        "kind": data.kind,
        "rows": data.num_rows,
        "columns": data.num_columns,
        "entries": data.num_entries,
        "total": data.total,
    }
    about |= {"rows_fitted": data.num_rows, "rows_heldout": 3, "entries_heldout": 12}
    plain = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in hyper._asdict().items()
    }
    return {
        "format": 1,
        "model": model.name,
        "title": model.title,
        "kind": model.kind,
        "symmetry": model.symmetry,
        "hyper": plain,
        "reference": reference,
        "converged": True if reference is not None else None,
        "partial": None,
        "quick": False,
        "budget": None,
        "pivot": "the mean of the reference's draws",
        "evidence": {"log_evidence": -98.5, "error": 0.3, "method": "bridge sampling"},
        "engines": rows,
        "options": {"gibbs": {"num_samples": 100}},
        "num_draws": 120,
        "data": about,
        "data_hash": data.hash,
        "seed": 0,
        "versions": {"python": "3.11.7", "jax": "0.10.2"},
        "command": None,
    }


def _quantities(draws, reference, data):
    """The tidy table of a comparison: dimensions engine and quantity."""
    sites = {site: value.shape[1:] for site, value in next(iter(draws.values())).items()}
    index = [(site, place) for site, shape in sites.items() for place in np.ndindex(*shape)]
    columns = {
        engine: np.concatenate([value.reshape(len(value), -1) for value in found.values()], axis=1)
        for engine, found in draws.items()
    }
    mean, sd = (
        np.array([getattr(np, name)(x, axis=0) for x in columns.values()])
        for name in ("mean", "std")
    )
    sd = np.where(np.array([len(x) for x in columns.values()])[:, None] > 1, sd, np.nan)
    levels = {
        f"q{level:02d}": np.array([np.quantile(x, level / 100, axis=0) for x in columns.values()])
        for level in (5, 50, 95)
    }
    anchor = list(columns).index(reference) if reference in columns else None
    shift = (mean - mean[anchor]) / sd[anchor] if anchor is not None else np.full_like(mean, np.nan)
    ratio = sd / sd[anchor] if anchor is not None else np.full_like(mean, np.nan)
    variables = {
        "mean": mean,
        "sd": sd,
        **levels,
        "mean_shift_sd": shift,
        "sd_ratio": ratio,
        "wasserstein_sd": np.abs(shift),
    }
    variables |= {"coverage50": np.full_like(mean, 0.5), "coverage90": np.full_like(mean, 0.9)}
    coords = {"engine": list(columns), "site": ("quantity", [site for site, _ in index])}
    coords["label"] = (
        "quantity",
        [f"{site}[{', '.join(map(str, place))}]" for site, place in index],
    )
    return xarray.Dataset(
        {name: (("engine", "quantity"), value) for name, value in variables.items()}, coords
    )


MODELS = {  # models of every kind of data and symmetry, and engines that apply to them
    "lda": ("gibbs", "nuts", "cavi", "svi", "trust_region", "numpyro_svi", "map"),
    "pmf": ("gibbs", "cavi", "laplace", "map"),
    "lg_nmf_votes": ("gibbs", "inla", "cavi", "map"),
    "lg_nmf": ("gibbs", "inla", "cavi"),
    "bernoulli_mixture": ("gibbs", "cavi", "map"),
    "gaussian_mixture": ("gibbs", "cavi"),
    "correlated_nmf": ("nuts", "cavi"),
    "bayesian_pmf": ("gibbs", "cavi"),
}


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


@pytest.fixture(scope="session")
def comparisons():
    return {name: _made(name, engines, reference=engines[0]) for name, engines in MODELS.items()}


@pytest.fixture(scope="session")
def pages(comparisons):
    return {name: report.render(comparison) for name, comparison in comparisons.items()}


def _pictures(page, about):
    """The figures of one sort."""
    return re.findall(rf'<figure class="{about}".*?</figure>', page, re.DOTALL)


def _changed(comparison, **rows):
    """The comparison with some fields of its summary changed."""
    return comparison._replace(summary={**comparison.summary, **rows})


def _check_page(page):
    """Well-formed, self-contained and small: what every page must be."""
    assert len(page.encode()) < 5_000_000
    assert not re.search(
        r"https?:|src=[\"'](?!data:)|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", page
    )
    body = page[page.index("<body>") : page.index("<script>")]
    ElementTree.fromstring(f"{body}</body>".replace("&nbsp;", " ").replace(" hidden>", ">"))
    drawn = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert all(re.search(r'role="img" aria-label="[^"]{20,}"', one) for one in drawn)
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(identifiers)
    assert not re.search(
        r"(?<![\w.])(nan|inf|None)(?![\w])",
        re.sub(
            r"<style>.*?</style>|<script>.*?</script>|<article.*?</article>",
            "",
            page,
            flags=re.DOTALL,
        ),
    )


# Test files are no package: they take these functions as fixtures.


@pytest.fixture(scope="session")
def made():
    return _made


@pytest.fixture(scope="session")
def changed():
    return _changed


@pytest.fixture(scope="session")
def pictures():
    return _pictures


@pytest.fixture(scope="session")
def check_page():
    return _check_page


@pytest.fixture(scope="session")
def quantities():
    return _quantities


@pytest.fixture(scope="session")
def nothing():
    """The fields of an engine's row that has no figures."""
    return dict.fromkeys(NOTHING)


@pytest.fixture(scope="module")
def browser():
    if MISSING and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"The report must be opened in a browser here, but there is {MISSING}.")
    if MISSING:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


def _begun(name, kind="variational", data=None, **hyper):
    """A fit at its start, before any step: a posterior of this kind without a run."""
    own, drawn = pp_models.load(name).example(jax.random.key(0))
    data = drawn if data is None else data
    model, hyper = declare(pp_models.load(name), {**own._asdict(), **hyper}, data)
    problem = Problem(model, as_arrays(hyper), data, tuple(jax.local_devices()))
    natural = model.init(jax.random.key(1), problem.hyper, data)
    local = {site: natural[site] for site in model.local}
    posterior = Variational(problem, {site: natural[site] for site in model.shared}, local)
    if kind == "point":
        values = {site: np.asarray(posterior.mean(site)) for site in model.families}
        posterior = Point(problem, {})
        posterior.values = values
    if kind == "draws":
        draws = posterior.sample(jax.random.key(2), 6)
        chains = {site: x.reshape(2, 3, *x.shape[1:]) for site, x in draws.items()}
        posterior = Draws(problem, chains, {"lp": np.arange(6.0).reshape(2, 3)})
    return Fit(problem, "cavi", {"basis": "log"}, posterior, {"step": np.arange(3)}, 1.0)


@pytest.fixture(scope="session")
def begun():
    return _begun
