"""The end of tf.data's pipelines in the tests' own process."""

import sys


def end_aside() -> None:
    """Lets the pipelines that a test iterates itself end as tfpipe's own do, once TensorFlow is imported.

    A dropped iterator otherwise holds its test up for as much as a minute: tfpipe.data.runtime.shutdown.end says why.
    """
    if "tensorflow" not in sys.modules:
        return
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    OwnedIterator.__del__ = _end


def _end(iterator: object) -> None:
    from tfpipe.data.runtime.shutdown import end

    references = list(vars(iterator).values())
    vars(iterator).clear()
    end(references)
