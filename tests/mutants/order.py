"""Faults in the order, the catalog, the sources, failures and training."""

from tests.mutants.mutant import Mutant

MUTANTS = (
    # The order.
    Mutant("data/order/permutation.py", "begin + (world.rank - begin) % world.size", "begin + world.rank"),
    Mutant("data/order/permutation.py", "places, epochs = steps % cycle", "places, epochs = (steps + 1) % cycle"),
    Mutant("data/order/permutation.py", "(self.seed, world.rank)", "(self.seed, 0)"),
    Mutant("data/order/permutation.py", "if self.reshuffle else epochs * 0", "if self.reshuffle else epochs"),
    Mutant("data/order/permutation.py", "math.ceil(crops / (batch_size * size))", "crops // (batch_size * size)"),
    Mutant("data/order/stream.py", "int(crop[1]) + 1)", "int(crop[1]))"),
    Mutant("data/order/mixture.py", "of_list + start", "of_list"),
    # Windows and boxes.
    Mutant(
        "data/images/windows.py", "corners = tf.clip_by_value(edges[:, :2], 0, sizes - 1)", "corners = edges[:, :2]"
    ),
    Mutant(
        "data/images/whole.py",
        'DCT = "INTEGER_ACCURATE"',
        'DCT = "INTEGER_FAST"',
        "data/images/test_decode.py",
    ),
    Mutant(
        "data/annotations/voc.py",
        'EDGES = ("ymin", "xmin", "ymax", "xmax")',
        'EDGES = ("xmin", "ymin", "xmax", "ymax")',
    ),
    Mutant(
        "data/annotations/cleaning.py",
        "kept = (high > low).all(axis=1)",
        "kept = (high > low).any(axis=1)",
        "data/annotations data/catalog prepare",
    ),
    Mutant(
        "data/annotations/cleaning.py",
        "kept &= (classes < 0) | (classes == labels[images])",
        "kept &= classes == labels[images]",
        "data/annotations data/images data/catalog",
    ),
    Mutant(
        "data/annotations/cleaning.py", "np.all(sizes >= 1, axis=1)", "np.all(sizes > 0, axis=1)", "data/annotations"
    ),
    # The catalog.
    Mutant("data/catalog/labels.py", "zip(sorted(stems), lines, strict=True)", "zip(stems, lines, strict=True)"),
    Mutant("data/catalog/layout.py", "folder.rpartition(", "folder.partition(", "data/catalog"),
    Mutant("data/catalog/index.py", "!= expected.encode()", "== expected.encode() and False"),
    Mutant("distributed.py", "items[self.rank :: self.size]", "items[self.rank + 1 :: self.size]", "data/catalog"),
    # Sources.
    Mutant("data/sources/remote/fetcher.py", "if done <= self.config.retries and may_pass(", "if False and ("),
    Mutant("data/sources/remote/fetcher.py", "PAUSE_S * 2 ** (tries - 1)", "PAUSE_S * 2 ** tries"),
    Mutant(
        "data/runtime/store.py", 'tf.where(tf.equal(seal, _seal(source, contents, stamp)), contents, "")', "contents"
    ),
    Mutant("data/runtime/store.py", "is_cached & is_compared.sparse_read(item)", "is_cached"),
    Mutant("data/sources/space.py", "1 if len(seen) == len(split.catalog) else sharing", "sharing"),
    Mutant("data/sources/packed/pixels.py", "len(beyond := np.flatnonzero(", "len(beyond := 0 * np.flatnonzero("),
    Mutant("data/sources/packed/manifest.py", 'return "" if same else', 'return "" if True else'),
    # Failures.
    Mutant("data/failures/missing.py", "visits.position != self.last", "visits.position != -1"),
    Mutant("data/failures/diagnose.py", "done + 1).item[-1]", "done + 2).item[-1]"),
    Mutant(
        "data/failures/stalled.py", "visits.position < split.order.count", "visits.position <= split.order.count + 99"
    ),
    # Training.
    Mutant("util/retry.py", "TRIES = 5", "TRIES = 1"),
    Mutant("util/retry.py", "FIRST_PAUSE_S * 2**self._tries", "FIRST_PAUSE_S"),
    Mutant("training/evaluate.py", "positions.numpy()[:, 1] == 0", "positions.numpy()[:, 1] == 1"),
    Mutant("training/backends.py", "        if not before:\n", "        if False:\n", "test_resume.py"),
    Mutant("training/compile.py", 'var_names=["bias", "gamma", "beta"]', 'var_names=["bias", "gamma"]'),
    Mutant("collectives/mpi.py", "op=hvd.Average, compression", "op=hvd.Sum, compression", "test_mpi.py"),
    Mutant("training/skipping.py", "or any(self.model.granted):", "or self.model.granted.stop:"),
    Mutant("training/checkpointing/checkpoints.py", "paths[number + keep :]", "paths[number + keep - 1 :]"),
    Mutant(
        "training/checkpointing/resume.py",
        "(self.state.total_steps + 1) % every == 0",
        "self.state.total_steps % every == 0",
        "test_resume.py",
    ),
    Mutant(
        "training/checkpointing/start.py",
        "<= state.total_steps)",
        "<= state.total_steps + 1)",
        "training test_resume.py",
    ),
    Mutant("training/monitor/stalls.py", "LONGER = 1.25", "LONGER = 0.5"),
    Mutant("data/order/state.py", "== 1 and not has_phases:", "== 1:", "data/test_phases.py"),
    Mutant("data/delivery/delivery.py", "at if ends == [", "at if False and ends == [", "interop/test_keras.py"),
    Mutant("prepare/pack.py", '    "on_error": "raise",\n', "", "prepare/test_pack.py"),
    # Preparing, the command line, ranks.
    Mutant("prepare/stage.py", "annotated % node.size == node.rank", "annotated % node.size == 0"),
    Mutant("prepare/parts.py", "if not bad:", "if True:"),
    Mutant("errors.py", "exit_code = 75", "exit_code = 74"),
    Mutant("util/resources.py", "1 / users[cpu]", "1", "util/test_cpu_share.py"),
)
