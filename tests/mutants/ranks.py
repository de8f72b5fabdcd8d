"""Faults in ranks, collectives, schedules, Loaders and storage."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Ranks and Loaders of other frameworks.
    Mutant("interop/ahead.py", "hosts[:rank].count(hosts[rank])", "rank", "interop/test_ahead.py"),
    Mutant("data/delivery/opening.py", "rest -= step - at.first.step", "rest -= 0", "interop/test_jax.py"),
    Mutant(
        "interop/keras.py",
        "min(self._first + batch + 1, self.loader.step)",
        "self._first + batch + 1",
        "interop/test_keras.py",
    ),
    Mutant("interop/torch.py", "or tensor.dtype == torch.bool else", "else", "interop/test_torch.py"),
    # Collectives.
    Mutant(
        "collectives/launch.py",
        '"SLURM_STEP_ID" in environ else ()',
        '"SLURM_STEP_ID" not in environ else ()',
        "collectives/test_launch.py",
    ),
    Mutant(
        "collectives/tensorflow.py",
        "rank0 if not address or is_loopback(address) else address",
        "rank0 if not address else address",
        "collectives/test_tensorflow.py",
    ),
    Mutant("collectives/mpi.py", "-sum(lengths) % self.size", "sum(lengths) % self.size", "collectives/test_mpi.py"),
    # Schedules, Loaders and their failures.
    Mutant(
        "data/order/schedule.py",
        "min(crops // (now.batch_size * ranks), now.steps - 1)",
        "crops // (now.batch_size * ranks)",
        "data/test_phases.py",
    ),
    Mutant(
        "data/delivery/delivery.py",
        "taker, self.taker = self.taker, None\n        if taker is not None:\n            taker.close()",
        "if self.taker is not None:\n            self.taker.close()\n        self.taker = None",
        "data/delivery/test_states.py",
    ),
    Mutant(
        "data/delivery/taker.py",
        "not (self.batches.failing and self._receive(NAMING_S))",
        "not self._receive(NAMING_S)",
        "data/delivery/test_taker.py",
    ),
    # The one position: handing out and counting, moves, commits, passes, and what is left for other ranks.
    *(
        Mutant(file, old, new, "data/delivery/test_states.py")
        for file, old, new in (
            (
                "data/order/stream.py",
                "int(np.searchsorted(self.pending[:, 0], end)) + max(0, end - self.rest)",
                "end",
            ),
            ("data/order/progress.py", "self.given == self.first and not", "self.used == self.first and not"),
            ("data/order/progress.py", "self.ended and self.used.step == self.given.step", "self.ended"),
            ("data/order/progress.py", "counted = None if at.counted is None else first", "counted = None"),
            ("data/order/progress.py", "given=used, moves", "moves"),
            ("data/order/progress.py", "last if step is None else step", "last"),
            (
                "data/delivery/delivery.py",
                "                    self.progress.at = before\n",
                "                    pass\n",
            ),
            ("data/delivery/delivery.py", "self.dropped.find_dropped(final=True)", "self.dropped.find_dropped()"),
            ("data/delivery/delivery.py", "            self.dropped.discard_unconfirmed()\n", ""),
            ("data/delivery/delivery.py", "math.inf if at.is_over else", "math.inf if at.ended else"),
            ("data/failures/missing.py", "            self._open |= {", "            self._open = {"),
            ("data/failures/batches.py", "sleep or self._cancelled.wait", "sleep or __import__('time').sleep"),
            ("data/loader.py", "end - min(max(first, self.step), end)", "end - max(first, self.step)"),
            ("data/loader.py", "at.stream if at.is_fresh else self._progress.start", "at.stream"),
        )
    ),
    # Training.
    Mutant(
        "training/compile.py",
        "round(section.warmup_epochs * steps_per_epoch)",
        "int(section.warmup_epochs) * steps_per_epoch",
        "training/test_compile.py",
    ),
    Mutant(
        "training/evaluate.py",
        "if (epoch + 1) % self.every and epoch + 1 != self.checkpoints.epochs:",
        "if (epoch + 1) % self.every:",
        "training/test_evaluation.py",
    ),
    Mutant(
        "training/not_finite.py",
        "self._steps = self._steps + 1 if anywhere else 0",
        "self._steps += anywhere",
        "training/test_not_finite.py",
    ),
    Mutant(
        "training/monitor/accounting.py",
        "cpu_s / (seconds * self.cores)",
        "cpu_s / seconds",
        "training/monitor/test_accounting.py",
    ),
    # Preparing.
    Mutant(
        "prepare/stage.py",
        "np.arange(whose.rank, len(catalog), whose.size)",
        "np.arange(whose.rank, len(catalog) - len(catalog) % whose.size, whose.size)",
        "prepare/test_stage.py",
    ),
    Mutant("prepare/pack.py", "packed.check_sizes(folder)", "pass", "prepare/test_pack.py"),
    Mutant(
        "prepare/entries.py",
        'return str(_read_part(path, "stamps")) == json.dumps([self.split.stamp(item) for item in items])',
        "return True",
        "prepare/test_parts.py",
    ),
    # Tools.
    Mutant(
        "tools/bench/machine.py",
        "threads if reads == tf.data.AUTOTUNE else reads",
        "reads",
        "tools/bench/test_bench.py",
    ),
    Mutant(
        "tools/report/runs.py",
        'interval["seconds" if part is None else "steps"]',
        'interval["steps" if part is None else "seconds"]',
        "tools/report/test_report.py",
    ),
    # What runs and launches promise.
    Mutant(
        "collectives/agreement.py",
        "if len(set(texts)) > 1]",
        "if len(set(texts)) > 2]",
        "collectives/test_agreement.py",
    ),
    Mutant(
        "collectives/rendezvous.py",
        "if peer.rank and not (peer.rank in peers and _is_there(peers[peer.rank])):",
        "if peer.rank:",
        "collectives/test_hub.py",
    ),
    Mutant(
        "training/own_callbacks.py",
        "callback.set_model(self.plain)",
        "callback.set_model(model)",
        "training/test_own_callbacks.py",
    ),
    Mutant(
        "training/own_callbacks.py",
        "with averaged_weights(self.model):\n            names",
        "if self.model:\n            names",
        "training/test_evaluation.py training/test_own_callbacks.py",
    ),
    Mutant(
        "training/loop.py",
        "Evaluation | OwnCallbacks | Record",
        "Evaluation | Record",
        "training/test_own_callbacks.py",
    ),
    Mutant(
        "training/checkpointing/signals.py",
        "if self.signal is received and now_s < self._asked_s + FORWARDED_S:",
        "if False:",
        "training/checkpointing/test_signals.py",
    ),
    Mutant(
        "training/compile.py",
        'MEANS = ("sum_over_batch_size", "mean")',
        'MEANS = ("sum_over_batch_size", "mean", "sum")',
        "training/test_compile.py",
    ),
    Mutant(
        "training/compile.py",
        "section.name is not None or section.warmup_epochs > 0 or",
        "section.name is not None or",
        "training/test_compile.py",
    ),
    Mutant("training/devices.py", "if there and not count and", "if count and", "training/test_devices.py"),
    Mutant(
        "tools/report/diagnosis.py",
        "_straggler(run) or _too_many_threads(run) or _other_part(run)",
        "_straggler(run) or _too_many_threads(run)",
        "tools/report/test_report.py",
    ),
    Mutant("util/process.py", 'sys.modules["__main__"] = _Main(main)', "pass", "util/test_pools.py"),
    Mutant(
        "data/sources/packed/shards.py",
        "exists & (offset >= 0) & (lengths >= 0)",
        "exists & (lengths >= 0)",
        "data/sources/packed fuzz/test_fuzz.py",
    ),
    # Small helpers.
    Mutant("util/open_files.py", "soft >= needed", "soft >= files", "util/test_open_files.py"),
)
