"""What TensorFlow makes of files that libraries have doubts about, as the pipeline would."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tfpipe.data.damage import JPEG
from tfpipe.data.files import read_whole
from tfpipe.progress import progress

# What libjpeg-turbo says of it.
CUT_OFF = "premature end"


class Doubt(NamedTuple):
    """An image that libjpeg-turbo objects to, or whose XML is written in an unusual way."""

    path: str
    xml: str
    """Path of an unusual XML, "" if its XML is not in doubt."""
    damage: str
    """What libjpeg-turbo says, "" if the image is not in doubt."""


def settle(doubts: Sequence[Doubt], channels: int, show: bool) -> list[tuple[set[str], str]]:
    """Codes of kinds.KINDS for each, and what is wrong with it. Loads TensorFlow."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        settled = pool.map(partial(_settle, channels=channels), doubts)
        return list(progress(settled, len(doubts), "trying the doubtful ones with TensorFlow", "image", show))


def _settle(doubt: Doubt, channels: int) -> tuple[set[str], str]:
    codes, reasons = set(), []
    if doubt.damage:
        code, reason = _decoded(doubt, channels)
        codes |= {code} - {""}
        reasons.append(reason)
    if doubt.xml and not _parses(doubt.xml):
        codes.add("unusual xml")
        reasons.append(doubt.xml)
    return codes, "; ".join(filter(None, reasons))


def _decoded(doubt: Doubt, channels: int) -> tuple[str, str]:
    from tfpipe.tools.broken import find_fault

    fault = find_fault(doubt.path, channels)
    if fault is not None:
        return "truncated" if CUT_OFF in fault.reason.lower() else "undecodable", fault.reason
    with open(doubt.path, "rb") as file:
        if file.read(len(JPEG)) != JPEG:
            return "", ""  # a PNG, say
    return "damaged", doubt.damage


def _parses(xml: str) -> bool:
    import tensorflow as tf

    from tfpipe.data.xml_graph import parse_xml

    try:
        parse_xml(tf.constant([read_whole(xml)]), tf.constant([xml]))
    except tf.errors.OpError:
        return False
    return True
