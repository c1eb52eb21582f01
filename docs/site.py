"""Hooks of mkdocs: README is the first page, and links out of docs/ lead to the repository."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

REPOSITORY = "https://github.com/ettsweep/ettsweep/blob/main"


def on_files(files: Any, config: Any) -> Any:
    """Add README as the first page."""
    text = Path(config.config_file_path).with_name("README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links to other files of the repository lead there."""
    if page.file.src_uri == "index.md":
        return re.sub(
            r"\]\(((?:CONTRIBUTING|CHANGELOG)\.md|CITATION\.cff|results/[^)]*|examples/[^)]*)\)",
            rf"]({REPOSITORY}/\1)",
            markdown,
        )
    return re.sub(r"\]\(\.\./([^)]*)\)", rf"]({REPOSITORY}/\1)", markdown)
