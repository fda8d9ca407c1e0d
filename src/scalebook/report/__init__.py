"""Runs -> a site: execute the pages, render them with Quarto or the preview, check the HTML."""

from scalebook import light_jsonschema as light_jsonschema  # before papermill and altair
from scalebook.report.site.builder import Places, build
from scalebook.report.site.menu import PAGES, Page
from scalebook.report.site.site_check import check

__all__ = ["PAGES", "Page", "Places", "build", "check"]
