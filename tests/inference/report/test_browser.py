"""The report in a real browser: headless Chromium opens the page from its file, as a reader does.

Chromium comes from the system (`.ci/run` installs Debian's); Playwright only drives it. Without
Chromium tests are skipped, but not where CI is set.
"""

import re

import pytest

from inference.report import page as report
from inference.report import palette

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1200, "height": 900}
ENGINES = {
    "lda": ("gibbs", "nuts", "cavi", "svi", "trust_region", "numpyro_svi", "map"),
    "lg_nmf_votes": (
        "gibbs",
        "inla",
        "laplace",
        "map",
        "memoized",
        "stochastic_map",
        "streaming",
        "streaming_batch",
        "svb",
    ),
    "bernoulli_mixture": ("gibbs", "cavi", "map"),
}


@pytest.fixture(scope="module")
def files(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return {
        name: report.write(made(name, engines), folder / name) for name, engines in ENGINES.items()
    }


@pytest.fixture
def visit(browser, files):
    """Open a report; nothing may be printed on the console or asked of a network while a test
    looks at it."""
    contexts, complaints = [], []

    def opened(name, viewport=DESK, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=False)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:"))
                else complaints.append(f"request: {request.url}")
            ),
        )
        page.goto(files[name].as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def engine_order(page):
    return page.locator("table.engines tbody th .chip").all_inner_texts()


@pytest.mark.parametrize("name", ENGINES)
def test_opens_without_errors_or_requests(visit, name):
    page = visit(name)
    page.wait_for_load_state("networkidle")
    assert page.title().startswith(page.locator("h1").inner_text())
    assert (
        page.evaluate(
            "performance.getEntriesByType('resource')"
            ".filter(one => !one.name.startsWith('data:')).length"
        )
        == 0
    )


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_is_drawn(visit, name):
    """A mark with a size on screen, in the engine's own colour, in the forest."""
    page = visit(name)
    for engine in ENGINES[name]:
        marks = page.locator(f"figure.forest .{palette.css_class(engine)} use")
        box = marks.first.bounding_box()
        assert box["width"] > 3
        shade = palette.SHADES[palette.look(engine).hue][0]
        red, green, blue = (int(shade[i : i + 2], 16) for i in (1, 3, 5))
        ink = "stroke" if palette.look(engine).is_open else "fill"
        assert (
            marks.first.evaluate(f"one => getComputedStyle(one).{ink}")
            == f"rgb({red}, {green}, {blue})"
        )


def test_equations_are_rendered_as_mathematics(visit):
    page = visit("lda")
    heights = "all => all.map(one => one.getBoundingClientRect().height)"
    sizes = page.eval_on_selector_all(".card > .story .equations math", heights)
    assert sizes and min(sizes) > 40  # several lines
    small, large = page.eval_on_selector_all(".equations msub:first-of-type > *", heights)[1::-1]
    assert small < large  # a subscript is smaller than its base


def test_table_sorts_by_clicks_and_keys(visit):
    page = visit("lda")
    given = engine_order(page)
    head = page.locator("table.engines thead th", has_text="sd ratio")
    head.locator("button").click()
    values = [
        float(v)
        for v in page.eval_on_selector_all(
            "table.engines tbody tr", "rows => rows.map(r => r.children[4].dataset.v ?? 'nan')"
        )
    ]
    known = [v for v in values if v == v]
    assert known == sorted(known)
    assert len(known) >= 4
    assert all(v != v for v in values[len(known) :])  # unknown last
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("table.engines thead th", has_text="engine").locator("button").click()
    assert engine_order(page) == given
    assert head.get_attribute("aria-sort") == "none"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("viewport", [PHONE, {"width": 320, "height": 600}])
def test_fits_a_phone(visit, name, viewport):
    """The page never scrolls sideways, details opened or not; wide tables scroll in their own
    box."""
    page = visit(name, viewport)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert page.locator("table.engines").evaluate(
        "one => one.parentNode.scrollWidth > one.parentNode.clientWidth"
    )
    texts = page.eval_on_selector_all(
        "figure svg text",
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right])",
    )
    assert min(left for left, _ in texts) >= 0
    assert max(right for _, right in texts) <= viewport["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_ink_and_paper_follow_the_reader(visit, scheme):
    page = visit("lda", scheme=scheme)

    def brightness(selector, property):
        colour = page.locator(selector).first.evaluate(f"one => getComputedStyle(one).{property}")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)

    paper, ink = (
        brightness("body", "backgroundColor"),
        [
            brightness("body", "color"),
            brightness("figure svg text", "fill"),
            brightness(".best", "color"),
        ],
    )
    assert paper < 0.2 and min(ink) > 0.6 if scheme == "dark" else paper > 0.9 and max(ink) < 0.4


def test_values_are_shown_on_hover(visit):
    page = visit("lda")
    mark = page.locator("figure.forest use").first
    tip = mark.get_attribute("data-tip")
    assert "90% from" in tip
    mark.scroll_into_view_if_needed()
    box, fills = mark.bounding_box(), "all => all.map(one => getComputedStyle(one).fill)"
    before = page.eval_on_selector_all("figure.forest use", fills)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shown = page.locator("#tip")
    shown.wait_for(state="visible")
    assert page.locator("figure.forest use.hot").count() == 1
    assert (
        page.eval_on_selector_all("figure.forest use", fills) == before
    )  # what is pointed at keeps its engine's colour
    assert shown.inner_text() in page.eval_on_selector_all(
        "figure.forest use", "all => all.map(one => one.dataset.tip)"
    )
    page.keyboard.press("Escape")
    assert not shown.is_visible()


def test_no_script_runs_but_the_pages_own(browser, files, tmp_path):
    """Even markup that got past the escaping of names could not run: the policy names the page's
    script by its hash."""
    changed = tmp_path / "report.html"
    planted = '</h1><img src="data:," onerror="window.ran = 1"><script>ran = 1</script>'
    changed.write_text(
        files["lda"].read_text(encoding="utf-8").replace("</h1>", planted), encoding="utf-8"
    )
    page = browser.new_page()
    page.goto(changed.as_uri())
    assert page.evaluate("window.ran") is None
    assert page.locator("button.copy").is_visible()  # which the page's own script shows
    page.close()


def test_contents_lead_to_sections(visit):
    page = visit("lda")
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    page.locator("nav a").last.click()
    page.wait_for_timeout(50)
    assert page.evaluate("location.hash") == "#how-to-reproduce"


def test_focus_is_visible(visit):
    page = visit("lda")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_prints_everything(visit, tmp_path):
    """In print nothing scrolls, and the paper is white whatever the reader's scheme. Details are
    opened for it."""
    page = visit("lda", scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (
        page.locator(".scroll").first.evaluate("one => getComputedStyle(one).overflowX")
        == "visible"
    )
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf(format="A4")) > 10_000
