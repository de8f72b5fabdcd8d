"""The contract of the data: what a continuation must share, and what it need not."""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe.data.contract import breaches, data_contract
from tfpipe.data.sources.files import FileSplit
from tfpipe.distributed import World

AGES = np.array([3, 5])


def contract_of(**parts: Any) -> dict[str, Any]:
    """The contract of two images whose catalog has these parts."""
    return data_contract(FileSplit(data_config(), replace(catalog_of([LABEL] * 2), **parts), World()))


def test_further_columns_are_the_same_by_name_order_and_value() -> None:
    then = contract_of(values={"age": AGES, "id": AGES + 1})
    assert breaches(then, contract_of(values={"id": AGES + 1, "age": AGES.copy()})) == []
    for other in ({"id": AGES, "age": AGES + 1}, {"age": AGES[::-1], "id": AGES + 1}, {"aged": AGES, "id": AGES + 1}):
        (breach,) = breaches(then, contract_of(values=other))
        assert breach.startswith("further columns: ")
    assert len(breaches(then, contract_of())) == 1


def test_tables_versions_are_compared_if_both_are_known() -> None:
    known, other, unknown = (contract_of(version=version) for version in ("a", "b", ""))
    assert breaches(known, other) == ['the tables\' version: "a" then, "b" now']
    assert breaches(known, unknown) == breaches(unknown, known) == breaches(known, known) == []


def test_of_boxes_and_a_layout_the_boxes_decide_where_both_know_them() -> None:
    """The same boxes may be in XMLs elsewhere, or in an index; where one does not know them, the XMLs' places count."""
    then = {"boxes": "ab", "layout": "../xmls"}
    assert breaches(then, {"boxes": "ab", "layout": "../others"}) == []
    assert breaches(then, {"boxes": "cd", "layout": "../xmls"}) == ['boxes: "ab" then, "cd" now']
    assert breaches(then, {"boxes": None, "layout": "../others"}) == ['layout: "../xmls" then, "../others" now']
    assert breaches(then, {"boxes": None, "layout": None}) == []
