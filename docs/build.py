"""Build the documentation: `python docs/build.py`, or `make docs`. Needs mkdocs-material and mkdocstrings, and no network.

Pages written by hand and pages made from what is discovered (`pages`) are put into build/docs, and MkDocs makes site/ of them, strictly: a warning
is an error.
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

from inference.core import registry  # noqa: E402

HERE = ROOT / "docs"
FROM_ROOT = {
    "MODEL_CONTRACT.md": "model-contract.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(?<!\!)\[([^\]]*)\]\(([^)\s]+)\)")
_MENTION = re.compile(r"(?<![\[`(/])`((?:docs/)?[\w.-]+\.md)`(?!\])")


def gather(folder: Path) -> None:
    """All pages, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(HERE.glob("*.md")):
        write(folder / path.name, rewritten(path.read_text(encoding="utf-8"), path.name))
    for name, page in FROM_ROOT.items():
        write(folder / page, rewritten((ROOT / name).read_text(encoding="utf-8"), page))
    for name in ("figures", "assets"):
        shutil.copytree(HERE / name, folder / name)
    for name, text in generated().items():
        write(folder / name, text)


def generated() -> dict[str, str]:
    """Path in the site's sources -> text."""
    found = {f"models/{name}.md": pages.model_page(name) for name in pages.own_models()}
    found |= {f"engines/{name}.md": pages.engine_page(name) for name in registry.engines()}
    found |= {
        f"reference/{pages.slug(heading)}.md": pages.reference_page(heading, *rest)
        for heading, rest in pages.groups().items()
    }
    found |= {
        "models/index.md": pages.models_index(),
        "engines/index.md": pages.engines_index(),
        "reference/index.md": pages.reference_index(),
    }
    return found | {"models-and-engines.md": pages.matrix(), "notebooks.md": pages.notebooks()}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def rewritten(text: str, own: str) -> str:
    """Links to files of the repository lead to their pages, or, where these are none, are code; pages named in the text are links."""
    blocks = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        block
        if block.startswith("```")
        else _MENTION.sub(lambda m: _mention(m, own), _LINK.sub(_target, block))
        for block in blocks
    )


def page_of(path: str) -> str | None:
    """The page of a Markdown file of the repository, by its path from there or from docs/."""
    name = path.removeprefix("../").removeprefix("docs/")
    if name in FROM_ROOT:
        return FROM_ROOT[name]
    return (
        name
        if (HERE / name).exists() or name in FROM_ROOT.values() or _is_generated(name)
        else None
    )


def _is_generated(name: str) -> bool:
    return name.split("/")[0] in ("models", "engines", "reference") or name in (
        "models-and-engines.md",
        "notebooks.md",
    )


def _target(match: re.Match[str]) -> str:
    path, _, anchor = match[2].partition("#")
    if not path or "://" in path or not path.endswith(".md"):
        return match[0]
    page = page_of(path)
    return f"[{match[1]}]({page}{'#' + anchor if anchor else ''})" if page else f"`{match[1]}`"


def _mention(match: re.Match[str], own: str) -> str:
    page = page_of(match[1])
    return match[0] if page is None or page == own else f"[`{match[1]}`]({page})"


def navigation(declared: list) -> list:
    """mkdocs.yml's, in which `models/*` stands for the pages of that folder, its index first."""
    return [_entry(one) for one in declared]


def _entry(one):
    if isinstance(one, str):
        return one
    ((heading, content),) = one.items()
    if isinstance(content, list):
        return {heading: navigation(content)}
    return {heading: _members(content.removesuffix("/*"))} if content.endswith("/*") else one


def _members(folder: str) -> list:
    if folder == "reference":
        return [
            "reference/index.md",
            *({heading: f"reference/{pages.slug(heading)}.md"} for heading in pages.groups()),
        ]
    names = pages.own_models() if folder == "models" else registry.engines()
    return [f"{folder}/index.md", *({name: f"{folder}/{name}.md"} for name in names)]


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
    parser.add_argument(
        "--sources",
        type=Path,
        default=ROOT / "build" / "docs",
        metavar="DIR",
        help="where pages are put (default: build/docs)",
    )
    parser.add_argument(
        "--site",
        type=Path,
        default=ROOT / "site",
        metavar="DIR",
        help="where the site is made (default: site)",
    )
    parser.add_argument(
        "--pages-only",
        action="store_true",
        help="make the pages and not the site: for this MkDocs is not needed",
    )
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
