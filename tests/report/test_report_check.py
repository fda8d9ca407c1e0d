"""The check refuses a site that needs a network, hides a figure from some, or leads nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalebook.report import check

GOOD = (
    '<html><head><link rel="stylesheet" href="a.css"><script src="a.js"></script></head><body>'
    '<p id="run-a">x</p><a href="#run-a">a</a> <a href="b.html#here">b</a>'
    '<div class="sb-chart" role="img" aria-label="Bars"></div>'
    '<script type="application/json" class="sb-spec">{"mark":"bar"}</script>'
    '<a href="https://example.org/a">a link that a reader clicks</a></body></html>'
)


def site(folder: Path, page: str) -> Path:
    (folder / "index.html").write_text(page)
    (folder / "b.html").write_text('<h2 id="here">b</h2>')
    (folder / "a.css").write_text("p { color: red; background: url(data:image/png;base64,AA) }")
    (folder / "a.js").write_text("let page = 'https://example.org';")
    return folder


def test_a_good_site_has_no_problem(tmp_path: Path) -> None:
    assert check(site(tmp_path, GOOD)) == ()


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<img alt="x" src="//cdn.example/x.png">', "loads //cdn.example/x.png"),
        (
            """<img alt='<td class="num" data-value="' src=//cdn.example/y x="">1</td>'>""",
            "loads //cdn.example/y",
        ),
        (
            """<img alt='<td class="num" data-value="1">' src=//cdn.example/z title='</td>'>""",
            "loads //cdn.example/z",
        ),
        ('<link href="HTTP://cdn.example/x.css">', "loads HTTP://cdn.example/x.css"),
        ('<iframe src="https://a.example"></iframe>', "loads https://a.example"),
        ("<style>@import 'https://a.example/x.css';</style>", "style asks for https://a.example"),
        ('<p style="background:url(https://a.example/x)">', "style asks for https://a.example/x"),
        ('<img src="gone.png" alt="x">', "loads gone.png, which is not in the site"),
        ('<img src="data:,">', "a <img> has no alternative text"),
        ('<div class="sb-chart" role="img" aria-label=""></div>', "a <div> has no alternative"),
        ('<a href="gone.html">x</a>', "links to gone.html, which is not in the site"),
        ('<a href="b.html#run-gone">x</a>', "links to b.html#run-gone, but nothing there"),
        ('<a href="#run-gone">x</a>', "links to #run-gone, but nothing there"),
        ('<p id="run-a">again</p>', "the id 'run-a' appears twice"),
        ('<script class="sb-spec">{"mark":</script>', "specification is not JSON"),
        ('<script class="sb-spec">{"data":{"url":"x.csv"}}</script>', "loads its data from an"),
    ],
)
def test_each_flaw_is_a_problem_with_its_page(tmp_path: Path, extra: str, problem: str) -> None:
    (found,) = check(site(tmp_path, GOOD.replace("</body>", f"{extra}</body>")))
    assert found.startswith("index.html: ")
    assert problem in found


def test_a_style_file_that_asks_the_network_is_a_problem(tmp_path: Path) -> None:
    folder = site(tmp_path, GOOD)
    (folder / "a.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') }")
    assert check(folder) == ("a.css: style asks for https://fonts.example/a.woff2",)
