"""Pages as they are: their addresses and tables, and what a real browser makes of them."""

import html.parser
import json
import re
import shutil
import subprocess

import matplotlib.image
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 120  # on a machine that is busy with other tests
PROBE = """<script>addEventListener("load", () => {
  const width = document.documentElement.clientWidth, images = [...document.images];
  parent.postMessage(JSON.stringify({
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    images: images.length,
    decoded: images.filter(image => image.naturalWidth > 0).length,
    beyond: [...document.querySelectorAll("h1, h2, h3, p, ul, dl, nav, img, pre, .scroll")]
      .filter(e => e.getBoundingClientRect().right > width + 1).map(e => e.outerHTML.slice(0, 80)),
    loaded: performance.getEntriesByType("resource").map(one => one.name.slice(0, 80))
      .filter(name => !name.startsWith("data:")),
  }), "*")
})</script>"""
LISTEN = """<script>addEventListener("message", event => {
  document.getElementById("seen").textContent = event.data
})</script>"""


class Links(html.parser.HTMLParser):
    """Every address that a browser would load, and every tag."""

    def __init__(self, text):
        super().__init__()
        self.found, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.found += [value for key, value in attrs if key in ("src", "srcset", "href", "data")]


class Rows(html.parser.HTMLParser):
    """The texts of every row of every table."""

    def __init__(self, text):
        super().__init__()
        self.found, self._inside = [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.found.append([])
        if tag in ("td", "th"):
            self.found[-1].append("")
            self._inside = True

    def handle_endtag(self, tag):
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self._inside:
            self.found[-1][-1] += data


def look(page, folder, width):
    """What a browser tells of a page in a frame of some width, after a look at a picture of it.

    A frame, because windows have a least width of their own, above that of a phone.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser to open the page with; on Debian, `apt-get install chromium`")
    inside, outside, image = folder / "inside.html", folder / "outside.html", folder / "seen.png"
    inside.write_text(page.read_text() + PROBE)
    frame = f'<iframe src="inside.html" width="{width}" height="800" style="border: 0"></iframe>'
    outside.write_text(f'<body style="margin: 0">{LISTEN}{frame}<p id="seen"></p>')
    start = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    start += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000"]
    start += [f"--window-size={width},800"]

    def run(*options):
        done = subprocess.run(
            [*start, *options, outside.as_uri()], capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = re.search(r'<p id="seen">({.*?})</p>', run("--dump-dom"), re.S)
    assert found, "the page said nothing"
    run(f"--screenshot={image}")
    pixels = matplotlib.image.imread(image)
    assert pixels.shape[:2] == (800, width) and pixels.std() > 0.01
    return json.loads(html.unescape(found[1]))
