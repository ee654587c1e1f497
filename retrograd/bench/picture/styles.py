"""The colour and the marker of an implementation: by its name, so that they are the same in every picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

OWN = "retrograd"
RED, BLUE, GREEN, ORANGE, PURPLE, GREY = "#c8324a", "#1f5f99", "#16876a", "#dd8f1b", "#7b5ea7", "#7d8590"


@dataclass(frozen=True, slots=True)
class Style:
    """A colour, a marker of matplotlib's, and whether the marker is filled."""

    colour: str
    shape: str
    filled: bool = True

    def marker(self, size: float) -> dict[str, Any]:
        """The arguments of `plot` that draw the marker, of this size in points with its edge."""
        edge = 0.5 if self.filled else 1.2
        return {
            "color": self.colour,
            "marker": self.shape,
            "markersize": size - edge,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgecolor": "white" if self.filled else self.colour,
            "markeredgewidth": edge,
        }


# In the order of legends. A name that continues one of these is a variant: the same colour and marker, hollow.
FAMILIES: dict[str, Style] = {
    OWN: Style(RED, "o"),
    "fused": Style(RED, "o"),
    "split": Style(RED, "o", filled=False),
    "fa4": Style(BLUE, "^"),
    "cudnn": Style(GREEN, "D"),
    "sdpa_flash": Style(ORANGE, "v"),
    "varlen_flash": Style(ORANGE, "v", filled=False),
    "flash_attn": Style(ORANGE, "P"),
    "flex_attention": Style(GREY, "X"),
    "tokamax": Style(BLUE, "s"),
    "pallas_mha": Style(ORANGE, "v"),
    "quack": Style(BLUE, "^"),
    "liger": Style(GREEN, "D"),
    "mamba_ssm": Style(BLUE, "^"),
    "causal-conv1d": Style(BLUE, "^"),
    "fla": Style(ORANGE, "v"),
    "jla": Style(PURPLE, "p"),
    "torch": Style(GREY, "s"),
    "xla": Style(GREY, "s"),
    "lax.associative_scan": Style(GREY, "s"),
    "lax.scan": Style(GREY, "s", filled=False),
}
# For names that nobody has given a style.
OTHERS = tuple(
    Style(colour, shape) for shape in ("h", "*", "d", "<", ">") for colour in (PURPLE, GREEN, BLUE, ORANGE, GREY)
)


def family(name: str) -> str | None:
    """The longest name in FAMILIES that is this one, or that this one continues as `torch.compile` does `torch`."""
    known = [known for known in FAMILIES if name.startswith(known) and not name[len(known) :][:1].isalnum()]
    return max(known, key=len, default=None)


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """The style of each implementation of a picture, in the order of its legend; no two are the same."""
    order = {known: place for place, known in enumerate(FAMILIES)}
    chosen: dict[str, Style] = {}
    for name in sorted(set(names), key=lambda name: (order.get(family(name) or "", len(order)), name)):
        known = family(name)
        style = FAMILIES[known] if known else OTHERS[crc32(name.encode()) % len(OTHERS)]
        if known and name != known:
            style = Style(style.colour, style.shape, filled=False)
        place = crc32(name.encode())
        while style in chosen.values():
            style = OTHERS[place % len(OTHERS)]
            place += 1
        chosen[name] = style
    return chosen
