"""What the documentation says is true: its code runs, its reference is complete."""

import pathlib
import pkgutil
import re
import runpy

import numpy as np
import pytest

import nashgp
from nashgp.experiments import overview

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_code_on_the_page_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.S)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    error = np.sqrt(np.mean((np.ravel(names["mean"]) - np.sign(names["x"][:, 0])) ** 2))
    assert error < 0.35  # a straight line through the step is off by 0.5
    variance = names["std"] ** 2 if "std" in names else names["variance"]
    assert 0.005 < np.median(variance) < 0.1  # the noise has variance 0.01


def test_equations_are_shown_without_a_network():
    """As MathML, inline or on a line of their own; and nothing on a page is fetched to do so."""
    hook = runpy.run_path(str(ROOT / "docs/mathml.py"))["on_page_content"]
    inline = r'<p>of <span class="arithmatex">\(a &lt; b\)</span> and'
    assert re.fullmatch(
        r'<p>of <math .*display="inline".*<mo>&#x0003C;</mo>.*</math> and', hook(inline)
    )
    display = '<div class="arithmatex">\\[\nx^2\n\\]</div>'
    assert 'display="block"' in hook(display) and "msup" in hook(display)
    assert "extra_javascript" not in (ROOT / "mkdocs.yml").read_text()


def test_every_module_is_in_the_reference():
    listed = set(re.findall(r"^::: nashgp\.(\w+)", (ROOT / "docs/reference.md").read_text(), re.M))
    assert listed == {module.name for module in pkgutil.iter_modules(nashgp.__path__)}


def test_scores_are_those_of_the_results(tmp_path):
    page = overview.write(ROOT / "results", tmp_path / "scores.md")
    assert (ROOT / "docs/scores.md").read_text() == page.read_text(), "run `make scores`"
