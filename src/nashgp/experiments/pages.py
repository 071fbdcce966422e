"""What pages share: templates, and figures that are inside the one file a page is."""

import base64
import io
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from matplotlib.figure import Figure
from PIL import Image  # matplotlib brings it

from nashgp.datasets import whole_file

DASH = "–"


class Picture(NamedTuple):
    """A figure as PNG for wide and for narrow screens, and what to see in it."""

    title: str
    caption: str
    wide: bytes
    narrow: bytes
    alt: str = ""  # for who cannot see it, where the title does not say enough

    @property
    def addresses(self) -> tuple[str, str]:
        """Both as `data:` addresses, so that a page holds its figures."""
        wide, narrow = (base64.b64encode(png).decode() for png in (self.wide, self.narrow))
        return f"data:image/png;base64,{wide}", f"data:image/png;base64,{narrow}"


def both(draw: Callable[..., Figure], *args: Any) -> tuple[bytes, bytes]:
    """A figure for wide and for narrow screens."""
    return png(draw(*args)), png(draw(*args, stacked=True))


def png(figure: Figure) -> bytes:
    """Twice as many dots as a page of normal size shows, in 256 colours: a third of the bytes."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=200)
    Image.open(full).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()


def write(out: Path, template: str, **values: Any) -> Path:
    """Fill a template of this folder and write it whole or not at all."""
    folder = resources.files("nashgp.experiments")
    loader = FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8"))
    forms = Environment(
        loader=loader,
        autoescape=".html" in template,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    text = forms.get_template(template).render(**values)
    with whole_file(out) as partial:
        partial.write_text(text, encoding="utf-8")
    return out
