"""What does a result say? A `Report`, said once; shown in terminals, pages, notebooks and files."""

from keyhole.report.page import as_html
from keyhole.report.report import Bar, Cell, Picture, Report, Reported, Section, Spans, Table

__all__ = ["Bar", "Cell", "Picture", "Report", "Reported", "Section", "Spans", "Table", "as_html"]
