"""Build the documentation: `python docs/build.py`, or `make docs`. No network is needed.

Pages written by hand and pages generated from the code (`pages`, `reference`) are put into
build/docs, and MkDocs makes site/ of them. A warning is an error.
"""

import argparse
import logging
import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")

import pages  # noqa: E402
import reference  # noqa: E402

from inference.core import registry  # noqa: E402

HERE = ROOT / "docs"
FROM_ROOT = {
    "MODEL_CONTRACT.md": "model-contract.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "models-and-engines.md",  # its table
    "notebooks/README.md": "notebooks.md",
    "pp_models/models": "models/index.md",
    "inference/engines": "engines/index.md",
}
_SOURCE = re.compile(r"(?:pp_models/(models)|inference/(engines))/(\w+)\.py")
_LINK = re.compile(r"(?<!\!)\[([^\]]*)\]\(([^)\s]+)\)")
_MENTION = re.compile(r"(?<![\[`(/])`((?:docs/)?[\w.-]+\.md)`(?!\])")


def gather(folder: Path) -> None:
    """All pages, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(HERE.glob("*.md")):
        write(folder / path.name, rewritten(path.read_text(encoding="utf-8"), path.name))
    for name in ("MODEL_CONTRACT.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        page = FROM_ROOT[name]
        write(folder / page, rewritten((ROOT / name).read_text(encoding="utf-8"), page))
    for name in ("figures", "assets"):
        shutil.copytree(HERE / name, folder / name)
    for name, text in generated().items():
        write(folder / name, text)


def generated() -> dict[str, str]:
    """Path in the site's sources -> text."""
    found = {f"models/{name}.md": pages.model_page(name) for name in pages.own_models()}
    found |= {f"engines/{name}.md": pages.engine_page(name) for name in registry.engines()}
    for heading, rest in reference.groups().items():
        found[f"reference/{reference.slug(heading)}.md"] = reference.reference_page(heading, *rest)
    return found | {
        "models/index.md": pages.models_index(),
        "engines/index.md": pages.engines_index(),
        "reference/index.md": reference.reference_index(),
        "models-and-engines.md": pages.matrix(),
        "notebooks.md": pages.notebooks(),
    }


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def rewritten(text: str, own: str) -> str:
    """Make links to files of the repository lead to their pages, and names of pages links."""

    def target(match: re.Match[str]) -> str:
        path, _, anchor = match[2].partition("#")
        if "://" in path or not path:
            return match[0]
        page = page_of(path)
        return f"[{match[1]}]({page}{'#' + anchor if anchor else ''})" if page else f"`{match[1]}`"

    def mention(match: re.Match[str]) -> str:
        page = page_of(match[1])
        return match[0] if page in (None, own) else f"[`{match[1]}`]({page})"

    blocks = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(blocks), 2):  # the others are code
        blocks[i] = _MENTION.sub(mention, _LINK.sub(target, blocks[i]))
    return "".join(blocks)


def page_of(path: str) -> str | None:
    """The page of a file or folder, by its path from the repository's root or from docs/."""
    name = path.removeprefix("../").removeprefix("docs/")
    if source := _SOURCE.fullmatch(name):
        return f"{source[1] or source[2]}/{source[3]}.md"
    return FROM_ROOT.get(name, name if (HERE / name).exists() else None)


def navigation(declared: list) -> list:
    """The navigation of mkdocs.yml. `models/*` stands for the pages of that folder."""
    return [_entry(one) for one in declared]


def _entry(one):
    if isinstance(one, str):
        return one
    ((heading, content),) = one.items()
    if isinstance(content, list):
        return {heading: navigation(content)}
    if not content.endswith("/*"):
        return one
    folder = content.removesuffix("/*")
    names = {
        "reference": {heading: reference.slug(heading) for heading in reference.groups()},
        "models": {name: name for name in pages.own_models()},
        "engines": {name: name for name in registry.engines()},
    }[folder]
    members = [{shown: f"{folder}/{name}.md"} for shown, name in names.items()]
    return {heading: [f"{folder}/index.md", *members]}


def build(sources: Path, site: Path) -> None:
    """Run MkDocs on the pages. A warning of its own, of a plugin or of a page is an error."""
    from mkdocs.commands.build import build as make
    from mkdocs.config import load_config

    os.chdir(ROOT)
    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(sources), site_dir=str(site), strict=True
    )
    config.nav = navigation(config.nav or [])
    config.plugins.on_startup(command="build", dirty=False)
    try:
        make(config)
    finally:
        config.plugins.on_shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("sources", ROOT / "build" / "docs"), ("site", ROOT / "site")):
        where = f"folder of the {name} (default: {default.relative_to(ROOT)})"
        parser.add_argument(f"--{name}", type=Path, default=default, metavar="DIR", help=where)
    parser.add_argument("--pages-only", action="store_true", help="make the pages, not the site")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    gather(chosen.sources)
    if chosen.pages_only:
        return 0
    from mkdocs.exceptions import MkDocsException

    try:
        build(chosen.sources.resolve(), chosen.site.resolve())
    except MkDocsException as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
