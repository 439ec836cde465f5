"""What turns the pages into a site that needs no network: links out of docs/, formulas, pages kept elsewhere.

The pages themselves stay plain Markdown that a code host shows as it is. Formulas become MathML while the site is
built, which browsers draw on their own: no script, and one small font of the site's own.
"""

import html
import logging
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages that live beside docs/, where people look for them, and their place on the site.
ELSEWHERE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
IMAGES = (".png", ".svg", ".gif", ".jpg", ".webp", ".mp4")
# MathML as browsers have it knows no alphabets but by their own letters.
ALPHABETS = {
    "double-struck": ({"C": "ℂ", "H": "ℍ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"}, 0x1D538),
    "script": (
        {"B": "ℬ", "E": "ℰ", "F": "ℱ", "H": "ℋ", "I": "ℐ", "L": "ℒ", "M": "ℳ", "R": "ℛ"},
        0x1D49C,
    ),
}

log = logging.getLogger("mkdocs.hooks.becl")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Takes in the pages that live elsewhere."""
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes links that leave docs/ lead to the site or the repository, or nowhere."""
    return LINK.sub(lambda link: _link(link, page, config, files), markdown)


def _link(link: re.Match[str], page: Page, config: MkDocsConfig, files: Files) -> str:
    image, text, address, anchor = link.groups(default="")
    source = page.file.abs_src_path
    if source is None or re.match(r"[a-z]+:", address):
        return link[0]
    target = Path(os.path.normpath(Path(source).parent / address))
    if not target.exists() or not target.is_relative_to(ROOT):
        return link[0]  # Left to MkDocs, which warns.
    name = target.relative_to(ROOT).as_posix()
    place = ELSEWHERE.get(name) or name.removeprefix("docs/")
    if name.startswith("docs/") or name in ELSEWHERE:
        return f"{image}[{text}]({_from(page, place)}{anchor})"
    if target.suffix in IMAGES:
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(target)))
        return f"{image}[{text}]({_from(page, name)})"
    return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{name})" if config.repo_url else text


def _from(page: Page, place: str) -> str:
    """A place on the site as a page names it."""
    return os.path.relpath(place, os.path.dirname(page.file.src_uri) or ".").replace(os.sep, "/")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML."""
    return FORMULA.sub(lambda formula: _formula(formula, page), html)


def _formula(formula: re.Match[str], page: Page) -> str:
    tag, text = formula[1], html.unescape(formula[2]).strip()
    try:
        math = mathml(text, block=tag == "div")
    except Exception as error:  # Its own kinds have no common base.
        log.warning("%s: %s cannot be read: %s", page.file.src_uri, text, type(error).__name__)
        return formula[0]
    if "\\" in math:
        log.warning("%s: %s has a command that is not known", page.file.src_uri, text)
    return f'<div class="formula">{math}</div>' if tag == "div" else math


def mathml(text: str, block: bool = False) -> str:
    """A formula of LaTeX as MathML that browsers draw as it is meant."""
    math = convert(text, display="block" if block else "inline")
    math = re.sub(r"<mi>([;,])</mi>", r'<mo separator="true">\1</mo>', math)
    return re.sub(r'<mi mathvariant="([a-z-]+)">(\w+)</mi>', _letters, math)


def _letters(found: re.Match[str]) -> str:
    if found[1] not in ALPHABETS:
        return found[0]
    odd, first = ALPHABETS[found[1]]
    letters = (odd.get(letter) or chr(first + ord(letter) - ord("A")) for letter in found[2])
    return f"<mi>{''.join(letters)}</mi>"
