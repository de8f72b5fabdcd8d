"""Lets TensorFlow decide, as the pipeline would, about files that other libraries doubt."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from tfpipe.data.images.damage import JPEG
from tfpipe.util.files import read_whole
from tfpipe.util.progress import progress

# Part of libjpeg-turbo's message on a truncated JPEG.
CUT_OFF = "premature end"
# XMLs parsed per call, which costs little more than a call for one.
XMLS = 64


class Doubt(NamedTuple):
    """An image that libjpeg-turbo complains about, or whose XML is not of the ordinary form."""

    path: str
    xml: str  # path of an unusual XML, "" if its XML is not in doubt
    damage: str  # libjpeg-turbo's complaint, "" if the image is not in doubt


def recheck_with_tensorflow(doubts: Sequence[Doubt], channels: int, show: bool) -> list[tuple[set[str], str]]:
    """Returns, for each doubt, its codes of kinds.KINDS and the reason. Loads TensorFlow."""
    refused = _refused([doubt.xml for doubt in doubts if doubt.xml])
    work = partial(_settle, channels=channels, refused=refused)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        settled = pool.map(work, doubts)
        return list(progress(settled, len(doubts), "trying the doubtful ones with TensorFlow", "image", show))


def _settle(doubt: Doubt, channels: int, refused: set[str]) -> tuple[set[str], str]:
    codes, reasons = set(), []
    if doubt.damage:
        code, reason = _decoded(doubt, channels)
        codes |= {code} - {""}
        reasons.append(reason)
    if doubt.xml in refused:
        codes.add("unusual xml")
        reasons.append(doubt.xml)
    return codes, "; ".join(filter(None, reasons))


def _decoded(doubt: Doubt, channels: int) -> tuple[str, str]:
    from tfpipe.tools.view.broken import find_fault

    fault = find_fault(doubt.path, channels)
    if fault is not None:
        return "truncated" if CUT_OFF in fault.reason.lower() else "undecodable", fault.reason
    with open(doubt.path, "rb") as file:
        if file.read(len(JPEG)) != JPEG:
            return "", ""  # e.g. a PNG
    return "damaged", doubt.damage


def _refused(xmls: Sequence[str]) -> set[str]:
    """Returns the XMLs that the graph cannot parse."""
    if not xmls:
        return set()
    import tensorflow as tf

    from tfpipe.data.annotations.graph import examine

    signature = [tf.TensorSpec([None], tf.string)] * 2
    readable = tf.function(lambda texts, paths: examine(texts, paths)[0], input_signature=signature)

    def refused_of(chunk: Sequence[str]) -> list[str]:
        texts = [read_whole(xml) for xml in chunk]
        return [xml for xml, good in zip(chunk, readable(texts, chunk).numpy().tolist(), strict=True) if not good]

    together = [xml for start in range(0, len(xmls), XMLS) for xml in refused_of(xmls[start : start + XMLS])]
    # Again one by one: a malformed XML may have spoilt others of its call.
    return {refused for xml in together for refused in refused_of([xml])}
