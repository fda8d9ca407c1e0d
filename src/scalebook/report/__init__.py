"""Runs -> a site: execute the pages, render them with Quarto or the preview, check the HTML."""

from scalebook.report.build import Places, build
from scalebook.report.check import check
from scalebook.report.pages import PAGES, Page

__all__ = ["PAGES", "Page", "Places", "build", "check"]
