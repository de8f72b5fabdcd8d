"""Reads images and XMLs behind URLs, some at a call."""

import tensorflow as tf

from tfpipe.config import DataConfig, Remote
from tfpipe.data.catalog.locate import SamplePaths
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.runtime.simulated_latency import simulate_latency
from tfpipe.data.runtime.skip_failed import skip_failed_elements
from tfpipe.data.runtime.stage import stage
from tfpipe.data.sources.cache import Store
from tfpipe.data.sources.crop_cache import find
from tfpipe.data.sources.reading import Encoded, waiting
from tfpipe.data.sources.remote.fetcher import Fetcher
from tfpipe.data.sources.remote.fetching import calls, check_cache, fetching
from tfpipe.distributed import World


def read_remote(
    dataset: tf.data.Dataset,
    catalog: Catalog,
    fetcher: Fetcher,
    remote: Remote,
    config: DataConfig,
    world: World,
    store: Store | None,
) -> tf.data.Dataset:
    """Fetches URLs, `SamplePaths` -> `Encoded`, `data.remote.batch` images per call."""
    check_cache(config)
    fetch = fetching(fetcher)

    @stage("read")
    def fetch_some(images: SamplePaths) -> Encoded:
        kept = tf.zeros_like(images.path)
        if store is not None:
            kept = tf.map_fn(lambda item: find(store, item), images.visit.item, fn_output_signature=tf.string)
        wanted = tf.equal(kept, "")
        if config.storage_delay_ms:
            with tf.control_dependencies([simulate_latency(images.path[0], config.storage_delay_ms)]):
                wanted = tf.identity(wanted)
        xml_paths = images.xml_path if catalog.boxes is None else tf.zeros_like(images.xml_path)
        jpeg, size, xml, xml_path = fetch(*(tf.where(wanted, urls, "") for urls in (images.path, xml_paths)))
        return Encoded(images.visit, jpeg, size, xml, xml_path, images.label, kept)

    if config.on_error == "skip":
        fetch_some = skip_failed_elements(fetch_some)
    return waiting(dataset.batch(remote.batch), fetch_some, calls(remote, config, world)).unbatch()
