"""The page to browse a fit: what it holds, whose figures these are, and what is left out."""

import html.parser
import json
import re

import jax
import numpy as np
import pytest
from scipy.stats import beta as beta_distribution

import inference
import pp_models
from inference.cli import main
from inference.core.completion import has_topics
from inference.evaluation.ratings import predict_ratings
from inference.io.fits import load
from inference.report import explore, explore_parts, explore_topics

HOSTILE = ['<img src=x onerror="window.ran=1">', "</script><script>ran=1</script>", "a\u2028b", ""]


class Reader(html.parser.HTMLParser):
    """Collects elements, ids and the figures."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.scripts, self.text = [], [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag == "script":
            self.scripts.append(dict(attributes))

    def handle_data(self, text):
        self.text += text


def content(page):
    """The figures on a page, as its script reads them."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(found)


def notes(page):
    return page[page.index('id="notes-h"') :]


@pytest.mark.parametrize("name", pp_models.available())
def test_every_model_has_something_to_browse(name, begun, tmp_path):
    """The parts follow from what a model declares, with the data and without. No name of a model
    decides. Every part is on the page once, and the page asks for nothing."""
    fit = begun(name)
    for one in (fit, load(fit.save(tmp_path / "fit.npz"))):
        page = explore.render(one)
        reader = Reader()
        reader.feed(page)
        assert len(set(reader.ids)) == len(reader.ids)
        assert len(reader.scripts) == 2 and not any("src" in one for one in reader.scripts)
        assert not {"img", "iframe", "object"} & set(reader.tags)
        addresses = set(re.findall(r"https?://[^\"]*", page))
        assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which is not fetched
        found = content(page)
        assert len(found) > 1  # more than the nouns
        assert ("topics" in found) == has_topics(fit.model)
        assert ("users" in found) == (fit.model.ratings is not None)
        assert ("votes" in found) == (fit.model.votes is not None)
        for key in set(found) & set(explore.TABS):
            assert f"panel-{key}" in reader.ids and f"tab-{key}" in reader.ids
    if "topics" in found:  # the last page is that without data
        assert "loaded without its data" in notes(page) and "words" not in found["documents"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("lda", "point"), ("lda", "draws"), ("pmf", "point"), ("pmf", "draws")),
        *(("lg_nmf_votes", "draws"), ("lg_op", "draws"), ("gaussian_mixture", "point")),
    ],
)
def test_points_and_draws(name, kind, begun, tmp_path):
    """A point has no whiskers and says so; draws of chains are aligned before they are shown."""
    fit = begun(name, kind)
    for one in (fit, load(fit.save(tmp_path / "fit.npz"))):
        found = content(explore.render(one))
        for part in ("topics", "components"):
            if part in found:
                assert (found[part]["low"] is None) == (kind == "point")


def test_figures_are_those_of_the_fit(begun):
    """Words, shares and representative documents are what `inference.topics` and its functions
    return."""
    fit = begun("lda")
    found = content(explore.render(fit))
    known, top = inference.topics(fit), inference.top_words(fit, 3)
    topics, words, documents = found["topics"], found["words"], found["documents"]
    assert np.allclose(topics["share"], known.prevalence, rtol=5e-3)
    assert topics["order"] == np.argsort(-known.prevalence, kind="stable").tolist()
    for k, best in enumerate(top):
        listed = [words["names"][w] for w in topics["words"][k][:3]]
        assert listed == [f"word {v}" for v, _ in best]
        assert np.allclose(topics["p"][k][:3], [p for _, p in best], rtol=5e-3)
        rows = [documents["rows"][d] for d in documents["best"][k][:4]]
        assert rows == [d for d, _ in inference.representative_documents(fit, k, 4)]
    marginal = known.prevalence @ known.topics
    given = known.topics * known.prevalence[:, None] / marginal
    for w, name in enumerate(words["names"]):
        v = int(name.split()[1])
        assert np.isclose(words["p"][w], marginal[v], rtol=5e-3)
        assert np.allclose(words["given"][w], given[words["topics"][w], v], rtol=5e-3)


def test_intervals_are_those_of_the_posterior(begun):
    """The margins of a Dirichlet are beta distributions. 200 draws give their 5 % and 95 % points
    to within 4 standard errors, about half an sd."""
    fit = begun("lda")
    found = content(explore.render(fit))["topics"]
    natural = np.asarray(fit.posterior.natural("beta"))
    words = content(explore.render(fit))["words"]["names"]
    for k, listed in enumerate(found["words"]):
        a = natural[k, [int(words[w].split()[1]) for w in listed]]
        margin = beta_distribution(a, natural[k].sum() - a)
        for end, level in (("low", 0.05), ("high", 0.95)):
            assert np.all(np.abs(found[end][k] - margin.ppf(level)) < 0.6 * margin.std())


def test_large_vocabularies_have_normal_intervals(begun, monkeypatch):
    """Beyond a number of draws the intervals are 1.64 sds either way, and the page says so."""
    fit = begun("lda")
    monkeypatch.setattr(explore_topics, "MOST_DRAWN", 0)
    page = explore.render(fit)
    assert "1.64 posterior sds" in notes(page)
    found = content(page)["topics"]
    place = [int(name.split()[1]) for name in content(page)["words"]["names"]]
    sd, mean = fit.posterior.sd("beta"), fit.posterior.mean("beta")
    for k, listed in enumerate(found["words"]):
        columns = [place[w] for w in listed]
        high = mean[k, columns] + 1.6449 * sd[k, columns]
        assert np.allclose(found["high"][k], np.minimum(high, 1), rtol=5e-3)


def test_size_is_bounded_and_the_page_says_what_is_left_out(begun, monkeypatch):
    """Of many documents and words the page holds so many, the most representative documents of
    each topic among them, and says of how many."""
    monkeypatch.setattr(explore_topics, "MOST_DOCUMENTS", 70)
    monkeypatch.setattr(explore_topics, "WORDS", 25)
    counts = np.random.default_rng(0).poisson(0.1, (200, 300))
    counts[:3] = 0
    fit = begun("lda", data=pp_models.data.counts(counts), num_topics=3)
    page = explore.render(fit)
    found = content(page)
    documents = found["documents"]
    assert len(documents["rows"]) == 70 and min(documents["rows"]) > 2
    for k, best in enumerate(documents["best"]):
        rows = [documents["rows"][d] for d in best[:5]]
        assert rows == [d for d, _ in inference.representative_documents(fit, k, 5)]
    longest = max(map(len, found["topics"]["words"]))
    assert longest <= 25 * (1 + len(explore_topics.LAMBDAS))
    told = notes(page)
    assert "70 of 197 documents are on this page" in told and "3 empty documents" in told
    assert f"at most {longest} of 300 words" in told


def test_names_are_text(begun, tmp_path):
    """Names that are markup, end scripts or lines, are empty or repeat are text."""
    words = [*HOSTILE, "plain", "twice", "twice", "x" * 5000, "ß"]
    rows = [f"{name}{i}" for i, name in enumerate(HOSTILE * 4)][:14]
    example = pp_models.load("lda").example(jax.random.key(0))[1].matrix.toarray()
    fit = begun("lda", data=pp_models.data.counts(example, words, rows))
    path = explore.explore(fit, tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    assert len(reader.scripts) == 2 and "img" not in reader.tags
    inside = page[page.index('id="data">') : page.index("</script>", page.index('id="data">'))]
    assert "<" not in inside[10:] and "\u2028" not in inside
    named = content(page)["words"]["names"]
    assert HOSTILE[0] in named and "(no name)" in named and named.count("twice") == 2
    assert max(map(len, named)) == explore_parts.LONGEST_NAME


@pytest.mark.parametrize(
    ("name", "hyper", "counts"),
    [
        ("lda", {"num_topics": 1}, [[2, 1, 0], [0, 0, 3]]),
        ("lda", {"num_topics": 2}, [[5, 0]]),
        ("lda", {"num_topics": 2}, [[0, 0], [3, 1], [0, 0]]),
        ("lda", {"num_topics": 3}, [[2**23]]),
        ("nmf", {"num_topics": 1}, [[1, 0, 2]]),
    ],
)
def test_edge_cases_are_ordinary_input(name, hyper, counts, begun):
    """One topic, one document, one word, empty documents and huge counts."""
    found = content(explore.render(begun(name, data=pp_models.data.counts(counts), **hyper)))
    full = [d for d, row in enumerate(counts) if sum(row)]
    assert found["documents"]["rows"] == full
    assert np.all(np.isfinite(found["topics"]["place"]))


def test_votes_without_text(begun):
    """A model of votes whose bills have no words has no topics to show, but members and bills."""
    rng = np.random.default_rng(1)
    votes = (rng.random((7, 5)) < 0.6).astype(float)
    found = content(
        explore.render(begun("lg_nmf_votes", data=pp_models.data.text_and_votes(None, votes)))
    )
    assert "topics" not in found and np.shape(found["votes"]["yea"]) == (7, 5)
    assert found["votes"]["cast"] == ["".join("ny"[int(v)] for v in row) for row in votes]


def test_predictions_are_of_items_not_rated(begun):
    """A user's list holds the largest predictions of items that he has not rated, with the
    intervals of `predict_ratings`."""
    fit = begun("pmf")
    found = content(explore.render(fit))["users"]
    rated = fit.data.matrix.toarray() != 0
    limits = tuple(found["limits"])
    for user, top in enumerate(found["top"]):
        items = [line[0] for line in top]
        assert len(items) == (~rated[user]).sum() and not rated[user, items].any()
        if not items:
            continue
        known = predict_ratings(fit, np.full(len(items), user), np.array(items), limits=limits)
        lines = np.array([line[1:] for line in top])
        assert np.allclose(lines, np.stack([known.mean, known.lower, known.upper], 1), rtol=5e-3)
        free = predict_ratings(fit, np.full(len(items), user), np.array(items)).mean
        assert np.all(np.diff(free) <= 1e-9)


def test_maps_keep_distances():
    """Scaling of distances between points of a plane gives the points back, up to a rotation."""
    points = np.random.default_rng(2).normal(size=(7, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    placed = explore_parts.map_of_distances(distances)
    assert np.allclose(np.linalg.norm(placed[:, None] - placed, axis=2), distances)
    turned = explore_parts.map_of_places(points)
    centred = np.linalg.norm(turned[:, None] - turned, axis=2)
    assert np.allclose(centred, distances)


def test_hellinger_distances():
    """0 for equal distributions, 1 for those without a word in common."""
    shares = np.array([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    assert np.allclose(explore_parts.hellinger(shares), [[0, 0, 1], [0, 0, 1], [1, 1, 0]])


def test_rounding_keeps_three_digits():
    """Numbers of any size keep three significant digits; what is not finite becomes 0."""
    x = [0.0, 1.23456e-7, -98765.0, np.nan, np.inf]
    assert explore_parts.rounded(x) == [0.0, 1.23e-7, -98800.0, 0.0, 0.0]


def test_the_page_is_the_same_each_time(begun):
    """Maps, draws and order do not depend on chance."""
    fit = begun("correlated_nmf")
    assert explore.render(fit) == explore.render(fit)


def test_colours_are_those_of_the_report():
    """Both pages have the same ink and paper, by day and by night."""
    report, own = (explore._package_text(name) for name in ("page.css", "explore.css"))
    pairs = dict(re.findall(r"--(\w+): light-dark\((#\w+), #\w+\)", own))
    dark = dict(re.findall(r"--(\w+): light-dark\(#\w+, (#\w+)\)", own))
    for name in ("paper", "ink", "soft", "line", "card", "accent", "note", "noteline"):
        shades = re.findall(rf"--{name}: (#\w+)", report)
        assert [pairs[name], dark[name]] == shades


def test_the_command(begun, tmp_path, capsys):
    """`pp-models explore DIR` writes DIR/explore.html; --out names another file; a fit that is not
    there is told in one sentence."""
    begun("lda").save(tmp_path / "fit.npz")
    assert main(["explore", str(tmp_path)]) == 0
    assert (tmp_path / "explore.html").is_file()
    assert main(["explore", str(tmp_path), "--out", str(tmp_path / "other.html")]) == 0
    assert (tmp_path / "other.html").read_text() == (tmp_path / "explore.html").read_text()
    assert capsys.readouterr().out.count("written to") == 2
    assert main(["explore", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_both_doors_lead_to_it():
    """`pp_models.explore` is `inference.explore`."""
    assert pp_models.explore is inference.explore is explore.explore
