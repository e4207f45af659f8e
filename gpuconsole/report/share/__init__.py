"""Reports to share: one page, as HTML without scripts and requests, or as Markdown for an issue
tracker.

`session.py` and `comparison.py` choose the content, `blocks.py` makes its charts and tables,
`document.py` has its shape. `html.py` and `markdown.py` write the report.
"""
