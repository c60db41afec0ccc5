"""HTML pages, charts and wording of reports."""
