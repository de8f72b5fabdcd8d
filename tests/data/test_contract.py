"""The contract of the data: what a continuation must share, and what it need not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.gathers import Gather, on_all
from tests.support.targets import LABEL, catalog_of, data_config
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.contract import check_ranks, contract_differences, data_contract
from tfpipe.data.sources.files import FileSplit
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

AGES = np.array([3, 5])


def contract_of(**parts: Any) -> dict[str, Any]:
    """The contract of two images whose catalog has these parts."""
    return data_contract(FileSplit(data_config(), replace(catalog_of([LABEL] * 2), **parts), World()))


def test_further_columns_are_the_same_by_name_order_and_value() -> None:
    then = contract_of(values={"age": AGES, "id": AGES + 1})
    assert contract_differences(then, contract_of(values={"id": AGES + 1, "age": AGES.copy()})) == []
    for other in ({"id": AGES, "age": AGES + 1}, {"age": AGES[::-1], "id": AGES + 1}, {"aged": AGES, "id": AGES + 1}):
        (breach,) = contract_differences(then, contract_of(values=other))
        assert breach.startswith("further columns: ")
    assert len(contract_differences(then, contract_of())) == 1


def test_tables_versions_are_compared_if_both_are_known() -> None:
    known, other, unknown = (contract_of(version=version) for version in ("a", "b", ""))
    assert contract_differences(known, other) == ['the tables\' version: "a" then, "b" now']
    assert (
        contract_differences(known, unknown)
        == contract_differences(unknown, known)
        == contract_differences(known, known)
        == []
    )


def test_of_boxes_and_a_layout_the_boxes_decide_where_both_know_them() -> None:
    """The same boxes may be in XMLs elsewhere, or in an index; where one does not know them, the XMLs' places count."""
    then = {"boxes": "ab", "layout": "../xmls"}
    assert contract_differences(then, {"boxes": "ab", "layout": "../others"}) == []
    assert contract_differences(then, {"boxes": "cd", "layout": "../xmls"}) == ['boxes: "ab" then, "cd" now']
    assert contract_differences(then, {"boxes": None, "layout": "../others"}) == [
        'layout: "../xmls" then, "../others" now'
    ]
    assert contract_differences(then, {"boxes": None, "layout": None}) == []


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"labels": np.array([LABEL, 0], np.int32)}, "labels"),
        ({"classes": ("n01", "n02", "cat")}, "classes"),
        ({"paths": FileList.of(["/x/1.JPEG", "/x/0.JPEG"])}, "file names"),
        ({"annotated": np.array([True, False])}, "images with an XML"),
        ({"values": {"age": AGES}}, "further columns"),
        ({"paths": FileList.of(["/copy/0.JPEG", "/copy/1.JPEG"]), "version": "2"}, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_differ_on_a_rank_are_named_on_all_but_not_their_folder(parts: dict[str, Any], named: str) -> None:
    gather = Gather(3)

    def compare(rank: int) -> str:
        catalog = replace(catalog_of([LABEL] * 2), **(parts if rank == 1 else {}))
        try:
            check_ranks(FileSplit(data_config(), catalog, World(rank, 3)), gather.of(rank))
        except ConfigError as error:
            return str(error)
        return ""

    (said,) = {*on_all(compare, range(3))}
    keys = [line.strip().partition(": ")[0] for line in said.splitlines() if line.startswith("  ")]
    assert keys == ([f"the train data's {named}"] if named else [])
    assert not named or " on ranks 0, 2, " in said
