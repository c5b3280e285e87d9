"""Look for barriers on the built site with axe-core: WCAG 2.2 A and AA, in light and in dark.

    npm install --prefix /tmp/axe axe-core
    python docs/build.py
    python tests/docs/axe.py /tmp/axe/node_modules/axe-core/axe.min.js site

It ends with 1 if there are violations. It is no test, because axe-core would have to be downloaded.
"""

import argparse
import shutil
import sys
from pathlib import Path

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PAGES = [
    *("index", "quickstart", "choosing", "models-and-engines", "calibration", "numpyro"),
    *("coming-from", "single-cell", "models/lda", "engines/svi", "reference/index"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axe", type=Path, help="axe.min.js")
    parser.add_argument("site", type=Path, help="folder of the built site")
    parser.add_argument("pages", nargs="*", default=PAGES, help="pages without .html")
    chosen = parser.parse_args()
    from playwright.sync_api import sync_playwright

    script, found = chosen.axe.read_text(encoding="utf-8"), 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": 1300, "height": 900}
            )
            page = context.new_page()
            for name in chosen.pages:
                page.goto((chosen.site.resolve() / f"{name}.html").as_uri(), timeout=120_000)
                page.evaluate(script)
                result = page.evaluate(f"axe.run(document, {{runOnly: {RULES}}})")
                for one in result["violations"]:
                    places = [node["target"] for node in one["nodes"]]
                    print(f"{name}, {scheme}: {one['id']} ({one['impact']}): {places[:5]}")
                    found += len(places)
    print(f"{len(chosen.pages)} pages in light and in dark: {found} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
