"""Builds the library in C of tfpipe/native; everything else is in pyproject.toml."""

import os
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from itertools import chain
from runpy import run_path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

SOURCES = sorted(glob("tfpipe/native/**/*.c", recursive=True))
OPS = sorted(glob("tfpipe/native/ops/*.c"))
SHARED = "tfpipe/native/version.py"
VERSION, REMEDY = (run_path(SHARED)[name] for name in ("VERSION", "REMEDY"))


def library(name: str, sources: list[str]) -> Extension:
    """Describes a library that ctypes or TensorFlow loads: no module, so one wheel serves all versions of Python."""
    return Extension(
        f"tfpipe.native.{name}",
        sources,
        depends=[SHARED, *sorted(glob("tfpipe/native/**/*.h", recursive=True))],
        define_macros=[("TFPIPE_VERSION", str(VERSION))],
        # Without fused multiply-add, so that levels are the same on all processors.
        extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-pthread", "-ffp-contract=off"],
        extra_link_args=["-pthread", "-lm"],
        py_limited_api=True,
    )


class BuildLibraries(build_ext):
    """Compiles a file on each CPU, and names the remedy if the libraries cannot be built."""

    def run(self) -> None:
        """Builds the libraries."""
        try:
            super().run()
        except (BaseError, CCompilerError, OSError) as error:
            message = f"tfpipe's library in C cannot be built ({error}), and nothing runs without it"
            raise SystemExit(f"{message}: {REMEDY}") from error

    def build_extensions(self) -> None:
        """Compiles and links the libraries; one file after the other, they would take 20 s."""
        compile_some = self.compiler.compile

        def compile_all(sources: list[str], *args: Any, **kwargs: Any) -> list[str]:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                return [*chain.from_iterable(pool.map(lambda name: compile_some([name], *args, **kwargs), sources))]

        self.compiler.compile = compile_all
        super().build_extensions()


# The decoder needs no TensorFlow; the ops find it, and TensorFlow, among the libraries that the process has loaded.
LIBRARIES = [library("_core", [path for path in SOURCES if path not in OPS]), library("_ops", OPS)]

setup(
    cmdclass={"build_ext": BuildLibraries},
    ext_modules=LIBRARIES,
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
