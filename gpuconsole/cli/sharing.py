"""`--html` and `--markdown`: a report to share as a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuconsole.cli.options.files import writable
from gpuconsole.cli.options.usage import UsageError
from gpuconsole.model.files import write_whole
from gpuconsole.report.share.document import Document
from gpuconsole.report.share.html import html_page
from gpuconsole.report.share.markdown import markdown_page


def add_sharing_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one HTML page: charts included, no scripts, no requests")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write Markdown, for an issue tracker")


def check_sharing(args: argparse.Namespace) -> bool:
    """Whether a file is wanted. Raises UsageError for a file that cannot be written, before anything starts."""
    return any([writable(args.html, "--html") is not None, writable(args.markdown, "--markdown") is not None])


def share(args: argparse.Namespace, document: Document) -> None:
    """Write the files of --html and --markdown, and name each on stdout. Raises UsageError."""
    for path, make in ((args.html, html_page), (args.markdown, markdown_page)):
        if path is not None:
            try:
                write_whole(path, make(document).encode())
            except OSError as error:
                raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
            print(f"wrote {path}")
