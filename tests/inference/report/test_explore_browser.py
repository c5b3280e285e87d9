"""The page to browse a fit in headless Chromium: drawn, by keyboard, on a phone, in the dark."""

import itertools
import re

import jax
import numpy as np
import pytest

import inference
import pp_models
from inference.core.completion import has_topics
from inference.report import explore

PHONE, NARROW, DESK = ({"width": w, "height": h} for w, h in ((360, 780), (320, 600), (1300, 900)))
MODELS = ("lda", "correlated_nmf", "pmf", "lg_nmf_votes", "bernoulli_mixture", "lg_op")
HOSTILE = '<img src=x onerror="window.ran=1">'
CONTROLS = "button, input, a[href], [role=button], [tabindex]"
GROUP = """const named = (one) => {
  const group = one.closest('[data-roves], [role=tablist]') ?? one;
  return `${group.id}.${group.className}`;
};"""
FOCUSED = """
const one = document.activeElement;
const ring = getComputedStyle(one.querySelector(':scope > .ring') ?? one);
const seen = getComputedStyle(one).outlineStyle !== 'none' || ring.stroke !== 'none';
return one === document.body ? null : [named(one), seen];"""
NAMELESS = """() => [...document.querySelectorAll('button, input, [role], svg, ol, ul')]
  .filter((one) => one.checkVisibility() && !one.closest('.notes'))
  .filter((one) => !['aria-label', 'aria-labelledby'].some((name) => one.getAttribute(name)))
  .filter((one) => !one.textContent.trim() && !one.labels?.length)
  .map((one) => one.outerHTML.slice(0, 90))"""
LOST = """() => ['aria-labelledby', 'aria-controls', 'aria-describedby'].flatMap((name) =>
  [...document.querySelectorAll(`[${name}]`)].map((one) => one.getAttribute(name)))
  .filter((id) => !document.getElementById(id))"""


def words_of(size):
    return [HOSTILE, "</script><b>bold", *(f"word{v}" for v in range(size - 2))]


@pytest.fixture(scope="module")
def fits(begun):
    found = {}
    for name in MODELS:
        data = pp_models.load(name).example(jax.random.key(0))[1]
        if has_topics(pp_models.load(name)) and data.kind == "counts":
            names = words_of(data.num_columns), [f"{HOSTILE} {d}" for d in range(data.num_rows)]
            data = pp_models.data.counts(data.matrix, *names)
        found[name] = begun(name, data=data)
    return found


@pytest.fixture(scope="module")
def files(fits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {name: explore.explore(fit, folder / f"{name}.html") for name, fit in fits.items()}


@pytest.fixture
def visit(browser, files):
    """Open a page; nothing may be printed on the console or asked of a network meanwhile."""
    contexts, complaints = [], []

    def opened(name, viewport=DESK, scheme="light", place="", **more):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: complaints.append(f"request: {request.url}"))
        page.goto(files[name].as_uri() + place)
        complaints.remove(f"request: {files[name].as_uri()}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def tabs(page):
    return page.locator("[role=tab]").all()


def focused(page, property="textContent"):
    return page.evaluate(f"document.activeElement.{property}")


def listed(page, place):
    return page.locator(f"#{place} .name").all_inner_texts()


@pytest.mark.parametrize("name", MODELS)
def test_every_part_is_drawn(visit, name):
    """Each tab shows one panel with its lists filled, and nothing that is a name is markup."""
    page = visit(name)
    for tab in tabs(page):
        tab.click()
        panel = page.locator("[role=tabpanel]:visible")
        assert panel.count() == 1 and panel.get_attribute("aria-labelledby") == tab.get_attribute(
            "id"
        )
        for filled in panel.locator(".list, .bars:visible, svg").all():
            assert filled.locator("> *").count() > 0
        assert panel.locator("h2:visible").count() > 0
    assert page.evaluate("window.ran") is None and page.locator("main b b, main img").count() == 0


def test_names_are_shown_as_text(visit):
    """A word that is markup is read letter by letter, wherever it stands."""
    page = visit("lda")
    assert HOSTILE in page.locator("#panel-topics").inner_text()
    page.locator("#search").fill("<img")
    assert page.locator("#found [role=option]").first.inner_text().startswith(HOSTILE)


def test_relevance_ranks_words(visit, fits):
    """At lambda = 1 words stand by probability, at 0 by lift; the keyboard moves the slider."""
    page = visit("lda")
    known = inference.topics(fits["lda"])
    largest = int(np.argmax(known.prevalence))
    names = words_of(known.topics.shape[1])
    slider = page.locator("#lambda")
    slider.focus()
    topic, marginal = known.topics[largest], known.prevalence @ known.topics
    for key, weight in (("End", 1.0), ("Home", 0.0)):
        page.keyboard.press(key)
        assert page.locator("#lambda-value").inner_text() == f"{weight:.2f}"
        relevance = weight * np.log(topic) + (1 - weight) * np.log(topic / marginal)
        wanted = [names[v] for v in np.argsort(-relevance, kind="stable")]
        assert listed(page, "topic-words") == wanted
        shown = page.locator("#topic-rows [aria-current=true] .second").inner_text()
        assert shown.split(", ")[:3] == wanted[:3]


def test_a_word_leads_to_its_topics(visit):
    """A word shows where it comes from; Escape closes it and gives the focus back."""
    page = visit("lda")
    word = page.locator("#topic-words button").nth(2)
    word.focus()
    page.keyboard.press("Enter")
    card = page.locator("#word-card")
    assert word.inner_text() in card.locator("h2").inner_text()
    assert word.get_attribute("aria-pressed") == "true"
    assert page.locator("#map .shaded").count() == page.locator("#topic-rows li").count()
    shares = [float(x.strip("%")) for x in card.locator(".value").all_inner_texts()]
    assert sum(shares) == pytest.approx(100, abs=3)  # topics below half a percent are not listed
    page.keyboard.press("Escape")
    assert not card.is_visible() and page.locator("#topic-words button:focus").count() == 1


@pytest.mark.parametrize("name", MODELS)
def test_every_control_is_reached_by_keyboard(visit, name):
    """Tab stops at each group of controls, arrows move within it, and the focus is visible."""
    page = visit(name)
    for tab in range(len(tabs(page))):
        page.locator("[role=tab]").nth(tab).focus()
        page.keyboard.press("Enter")
        reached = set()
        for _ in range(25):  # past the end the browser starts again
            page.keyboard.press("Tab")
            if (found := page.evaluate(f"() => {{ {GROUP} {FOCUSED} }}")) is not None:
                assert found[1], f"the focus cannot be seen on {found[0]}"
                reached.add(found[0])
        groups = page.evaluate(
            f"""() => {{ {GROUP} return [...document.querySelectorAll('{CONTROLS}')]
              .filter((one) => one.checkVisibility() && one.id !== 'main').map(named); }}"""
        )
        assert set(groups) <= reached


def test_arrows_move_within_lists_maps_and_tabs(visit):
    page = visit("lda")
    first = page.locator("#topic-rows button").first
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#topic-rows button").nth(1).get_attribute("aria-current") == "true"
    assert focused(page) == page.locator("#topic-rows button").nth(1).inner_text().replace("\n", "")
    page.keyboard.press("End")
    assert page.locator("#topic-rows button").last.evaluate("one => one === document.activeElement")
    bubble = page.locator("#map [tabindex='0']")
    bubble.focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    assert first.get_attribute("aria-current") == "true"
    page.locator("#tab-topics").focus()
    page.keyboard.press("ArrowRight")
    assert focused(page, "id") == "tab-documents" and page.locator("#panel-documents").is_visible()
    page.keyboard.press("End")
    assert focused(page, "id") == "tab-about"


def test_search_by_keyboard(visit):
    """/ leads to the search, arrows choose, Enter opens, Escape closes."""
    page = visit("lda")
    page.keyboard.press("/")
    assert focused(page, "id") == "search"
    page.keyboard.type("word3")
    options = page.locator("#found [role=option]")
    assert options.count() == 1 and options.first.get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")
    assert "word3" in page.locator("#word-card h2").inner_text()
    page.locator("#search").focus()
    page.keyboard.type("onerror")
    before = page.locator("#search").get_attribute("aria-activedescendant")
    page.keyboard.press("ArrowDown")
    assert page.locator("#search").get_attribute("aria-activedescendant") != before
    page.keyboard.press("Escape")
    assert not page.locator("#found").is_visible()
    page.keyboard.type("no such name")
    assert "Nothing" in page.locator("#found").inner_text()


def test_documents_topics_and_words_lead_to_each_other(visit, fits):
    """A document's topics are its proportions; its words and neighbours are links."""
    page = visit("lda", place="#documents=2")
    known = inference.topics(fits["lda"]).proportions[2]
    first = page.locator("#document-topics li").first
    assert first.locator(".name").inner_text().startswith(f"Topic {np.argmax(known)}")
    share = float(first.locator(".value").inner_text().split("%")[0])
    assert share == pytest.approx(100 * known.max(), rel=0.01)
    page.locator("#document-near button").first.click()
    assert page.locator("#document-rows [aria-current=true]").count() == 1
    page.locator("#document-words button").first.click()
    assert page.locator("#panel-topics").is_visible() and page.locator("#word-card").is_visible()
    assert re.fullmatch(r"#topics=\d+", page.evaluate("location.hash"))


def test_filter_hides_what_does_not_match(visit):
    page = visit("pmf")
    rows = page.locator("#item-rows li:visible")
    page.locator("#item-filter").fill("item 3")
    assert rows.all_inner_texts()[0].startswith("item 3") and rows.count() == 1
    page.locator("#item-filter").fill("nothing")
    assert rows.count() == 0 and page.locator("#item-count").inner_text() == "0 shown"
    page.locator("#item-filter").fill("")
    assert rows.count() == 6


def test_votes(visit):
    """A bill colours the members by what is likelier; a member shows his figures."""
    page = visit("lg_nmf_votes", place="#votes=1")
    assert page.locator("#member-map .pick").count() == 5
    page.locator("#member-map .pick").nth(3).click()
    told = page.locator("#member-facts").inner_text()
    assert re.search(r"probability of yea on this bill \d+%, (voted|did)", told)
    page.locator("#bill-rows button").first.click()
    assert page.locator("#member-facts").inner_text() != ""


@pytest.mark.parametrize("viewport", [PHONE, NARROW])
@pytest.mark.parametrize("name", MODELS)
def test_fits_a_phone(visit, name, viewport):
    """No part scrolls sideways or reaches beyond the edge, and letters on maps stay legible."""
    page = visit(name, viewport, has_touch=True, is_mobile=True)
    for tab in tabs(page):
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        beyond = page.evaluate(
            """(width) => [...document.querySelectorAll('main :is(button, p, h2, span, svg text)')]
              .filter((one) => one.checkVisibility() && !one.closest('.sr, .scroll'))
              .filter((one) => one.getBoundingClientRect().right > width + 1).length""",
            viewport["width"],
        )
        assert beyond == 0
        heights = page.eval_on_selector_all(
            "[role=tabpanel]:not([hidden]) svg text", "all => all.map(one => one.getBBox().height)"
        )
        assert not heights or min(heights) >= 10


def brightness(page, selector, property):
    return page.locator(selector).first.evaluate(
        """(one, property) => {
          const brush = new OffscreenCanvas(1, 1).getContext('2d');
          brush.fillStyle = getComputedStyle(one)[property];
          brush.fillRect(0, 0, 1, 1);
          return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        property,
    )


def contrast(one, other):
    """Of the Web Content Accessibility Guidelines."""

    def luminance(colour):
        x = np.asarray(colour) / 255
        return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4) @ [
            0.2126,
            0.7152,
            0.0722,
        ]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(visit, scheme):
    """A contrast of 4.5 for text and 3 for bars, as accessibility guidelines have it."""
    page = visit("lda", scheme=scheme)
    paper = brightness(page, "body", "backgroundColor")
    card = brightness(page, ".card", "backgroundColor")
    assert (sum(paper) < 150) == (scheme == "dark")
    for selector in ("h1", ".lead", ".tabs [aria-selected=true]", ".tabs [aria-selected=false]"):
        assert contrast(brightness(page, selector, "color"), paper) >= 4.5
    for selector in (".hint", ".value", ".second", ".name", ".legend"):
        assert contrast(brightness(page, selector, "color"), card) >= 4.5
    assert contrast(brightness(page, ".track i", "backgroundColor"), card) >= 2.7
    assert contrast(brightness(page, "#map .bubble", "stroke"), card) >= 3
    chosen = brightness(page, "#map .on .bubble", "fill"), brightness(page, "#map .on text", "fill")
    assert contrast(*chosen) >= 4.5


def test_the_button_of_colours(visit):
    """It goes from the system's choice to light to dark and back, and says which it is."""
    page = visit("lda", scheme="dark")
    papers = []
    for said in ("light", "dark", "auto"):
        page.locator("#theme").click()
        assert said in page.locator("#theme").inner_text()
        papers.append(sum(brightness(page, "body", "backgroundColor")))
    assert papers[0] > 700 and max(papers[1:]) < 150


@pytest.mark.parametrize("name", MODELS)
def test_roles_and_names(visit, name):
    """Every control has a name, ids are unique, references lead somewhere, headings nest, and what
    looks chosen is told."""
    page = visit(name)
    for tab in tabs(page):
        tab.click()
        assert page.evaluate(NAMELESS) == []
        levels = page.evaluate(
            """() => [...document.querySelectorAll('h1, h2, h3')]
              .filter((one) => one.checkVisibility()).map((one) => Number(one.tagName[1]))"""
        )
        assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))
        assert tab.get_attribute("aria-selected") == "true"
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert page.evaluate(LOST) == [] and len(set(ids)) == len(ids)


def test_nothing_moves_for_those_who_asked(visit):
    """The page has no transitions or animations at all."""
    page = visit("lda", reduced_motion="reduce")
    page.locator("#topic-rows button").last.click()
    assert page.evaluate("document.getAnimations().length") == 0
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_no_script_runs_but_the_pages_own(browser, files, tmp_path):
    """Markup that got past the escaping of names could not run."""
    changed = tmp_path / "page.html"
    planted = '</h1><img src="data:," onerror="window.ran = 1"><script>ran = 1</script>'
    text = files["lda"].read_text(encoding="utf-8")
    changed.write_text(text.replace("</h1>", planted), encoding="utf-8")
    page = browser.new_page()
    page.goto(changed.as_uri())
    assert page.evaluate("window.ran") is None and page.locator("#topic-rows li").count() == 3
    page.close()
