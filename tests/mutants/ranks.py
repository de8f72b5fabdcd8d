"""Faults in ranks, collectives, schedules, Loaders and storage."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Ranks and Loaders of other frameworks.
    Mutant("interop/ahead.py", "hosts[:rank].count(hosts[rank])", "rank", "interop/test_ahead.py"),
    Mutant("interop/jax.py", "epochs.filled - epochs.step", "epochs.filled", "interop/test_jax.py"),
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
        "            self.taker.close()\n        self.batches",
        "            pass\n        self.batches",
        "data/test_loader.py",
    ),
    Mutant("data/loader.py", "self._epochs.ended &= self.step == self.used", "pass", "data/test_loader.py"),
    Mutant(
        "data/delivery/taker.py",
        "            if not self._batches.failing:\n                raise\n",
        "",
        "data/delivery/test_taker.py",
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
        "if had_one and not target.exists():",
        "if had_one and target.exists():",
        "prepare/test_entries.py",
    ),
    # Tools.
    Mutant(
        "tools/bench/machine.py",
        "reads = threads if reads == tf.data.AUTOTUNE else reads",
        "pass",
        "tools/bench/test_bench.py",
    ),
    Mutant("tools/check/reading.py", "in range(2, 9)", "in range(2, 8)", "tools/check/test_split.py"),
    Mutant(
        "tools/report/runs.py",
        'interval["seconds" if part is None else "steps"]',
        'interval["steps" if part is None else "seconds"]',
        "tools/report/test_report.py",
    ),
    # Small helpers.
    Mutant("util/open_files.py", "soft >= needed", "soft >= files", "util/test_open_files.py"),
)
