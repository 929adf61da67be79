"""The picture of attention weights."""

from __future__ import annotations

from xml.etree import ElementTree

from claims.studies.heat_map import heat_maps


def test_the_picture_is_well_formed_and_has_a_square_for_each_weight() -> None:
    panel = {"1 tired": [0.0, 0.25, 0.75], "2 <wet>": [1.0, 0.0, 0.0]}
    picture = ElementTree.fromstring(heat_maps({"a": panel, "b & c": panel}, ["x", "y", "z"], 2))
    squares = [e for e in picture.iter() if e.tag.endswith("rect") and e.get("stroke")]
    assert len(squares) == 2 * 2 * 3
    texts = [e.text for e in picture.iter() if e.text]
    assert {".25", ".75", "1.0", "b & c", "2 <wet>"} <= set(texts)
