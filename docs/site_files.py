"""A hook of mkdocs (mkdocs.yml): the files of the site, with their paths in the repository.

mkdocs reads one folder. README.md and the other pages outside of docs/ belong to the site too, so
the links between all pages work both here and in the repository.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

OF_THE_SITE = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/results/README.md", "docs/**/*.md",
    "docs/*.yml", "docs/*.json", "docs/examples/*.ipynb", "screenshots/*.svg", "screenshots/*.png",
)  # fmt: skip


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = [
        path.relative_to(root) for pattern in OF_THE_SITE for path in sorted(root.glob(pattern))
    ]
    return Files(
        [
            *of_theme,
            *(
                File(str(path), str(root), config.site_dir, config.use_directory_urls)
                for path in paths
            ),
        ]
    )
