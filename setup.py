"""Builds the JPEG decoder of tfpipe/native where a C compiler is; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

SOURCES = sorted(glob("tfpipe/native/*.c"))
OPS = [path for path in SOURCES if path.startswith("tfpipe/native/op")]


def library(name: str, sources: list[str]) -> Extension:
    """Describes a library that ctypes or TensorFlow loads: no module, so one wheel serves all versions of Python."""
    return Extension(
        f"tfpipe.native.{name}",
        sources,
        depends=sorted(glob("tfpipe/native/*.h")),
        # Without fused multiply-add, so that levels are the same on all processors.
        extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-pthread", "-ffp-contract=off"],
        extra_link_args=["-pthread", "-lm"],
        py_limited_api=True,
        # Without a compiler TensorFlow's ops decode.
        optional=True,
    )


# The decoder needs no TensorFlow; the ops find it, and TensorFlow, among the libraries that the process has loaded.
LIBRARIES = [library("_core", [path for path in SOURCES if path not in OPS]), library("_ops", OPS)]

setup(ext_modules=LIBRARIES, options={"bdist_wheel": {"py_limited_api": "cp310"}})
