"""Iterates over a dataset so that another thread can end a wait for an element."""

import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfpipe.data.runtime.shutdown import close_at_exit, end
from tfpipe.util.tensorflow_api import CancellationManager, context, execute_with_cancellation, structure


class Cancellable(Iterator[Any]):
    """An iterator over a dataset of tensors; an element takes a third of the time that tf.data's own needs for it.

    It calls the op of `next`, which cannot be cancelled itself; TensorFlow's CancellationManagerContext would also
    cancel the ops of the caller's other threads.
    """

    def __init__(self, dataset: tf.data.Dataset, manager: CancellationManager | None = None) -> None:
        """Starts the pipeline; `manager` cancels this iterator, among others."""
        self._held = [iter(close_at_exit(dataset))]
        # Unlike __del__, never called while the interpreter takes its modules apart.
        weakref.finalize(self, end, self._held).atexit = False
        self.element_spec, self._manager = dataset.element_spec, manager or CancellationManager()
        # A ragged tensor is a single one here.
        types = structure.get_flat_tensor_types(self.element_spec)
        shapes = structure.get_flat_tensor_shapes(self.element_spec)
        self._count = len(types)
        self._attrs = (
            *("output_types", [each.as_datatype_enum for each in types]),
            *("output_shapes", [None if shape.rank is None else shape.as_list() for shape in shapes]),
        )

    @property
    def iterator(self) -> Any:
        """The pipeline's own iterator, for its statistics."""
        return self._held[0]

    def cancel(self) -> None:
        """Ends another thread's wait for an element, with tf.errors.CancelledError."""
        self._manager.start_cancel()

    def __next__(self) -> Any:
        """Returns the next element, or raises tf.errors.CancelledError after the manager has cancelled."""
        tensors, problem = self._take()
        if problem is None:
            return structure.from_compatible_tensor_list(self.element_spec, tensors)
        try:
            raise StopIteration if isinstance(problem, tf.errors.OutOfRangeError) else problem
        finally:
            del problem  # otherwise this frame and the error, which has it in its traceback, hold each other

    def _take(self) -> tuple[list[tf.Tensor], tf.errors.OpError | None]:
        """Returns the next element's tensors, or an error that does not hold the pipeline.

        The frames in an error's traceback would: then the pipeline ends when the error is dropped, wherever that is.
        """
        inputs = [self.iterator._iterator_resource]
        try:
            return execute_with_cancellation(
                "IteratorGetNext", self._count, inputs, self._attrs, context.context(), self._manager
            ), None
        except tf.errors.OpError as error:
            error.__context__ = None
            return [], error.with_traceback(None)
