"""What an index page needs to know of where the repository is: addresses, and the README's links in full.

Nothing in the repository says where it is published. A build takes that from `BECL_REPOSITORY`, for example
https://github.com/OWNER/becl, or on GitHub's runners from their own variables; links then lead to the commit or tag in
`BECL_REVISION` (there: the one that is built). A build that knows no address leaves out what would lead nowhere:
relative links become plain words, and pictures go.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = {
    "Paper": "https://proceedings.mlr.press/v202/yang23a.html",
    "Preprint": "https://arxiv.org/abs/2305.04477",
}
IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)\s]+)\)")


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        address, revision = repository(os.environ)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, address, revision)}
        metadata["urls"] = urls(address, revision)


def repository(environment: Any) -> tuple[str, str]:
    """Where the repository is, and which revision of it is built; empty where nobody says."""
    server, name = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
    address = environment.get("BECL_REPOSITORY") or (f"{server}/{name}" if server and name else "")
    return address.rstrip("/"), environment.get("BECL_REVISION") or environment.get("GITHUB_SHA") or "main"


def urls(address: str, revision: str) -> dict[str, str]:
    """The addresses of the project."""
    if not address:
        return PAPER
    own = {
        "Source": address,
        "Documentation": f"{address}/tree/{revision}/docs",
        "Changelog": f"{address}/blob/{revision}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    return own | PAPER


def readme(text: str, address: str, revision: str) -> str:
    """The README for a page that is elsewhere."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    if not address:
        return LINK.sub(r"\1", IMAGE.sub("", text))
    text = IMAGE.sub(rf"![\1]({address}/raw/{revision}/\2)", text)
    return LINK.sub(rf"[\1]({address}/blob/{revision}/\2)", text)
