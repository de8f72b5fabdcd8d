"""Builds the JPEG decoder of tfpipe/native where a C compiler is; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

# Not a module of Python: TensorFlow and ctypes load it, so one wheel serves all versions of Python (abi3).
DECODER = Extension(
    "tfpipe.native._crops",
    sorted(glob("tfpipe/native/*.c")),
    depends=sorted(glob("tfpipe/native/*.h")),
    extra_compile_args=["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
    # Without a compiler tfpipe decodes by simplejpeg and OpenCV.
    optional=True,
)

setup(ext_modules=[DECODER], options={"bdist_wheel": {"py_limited_api": "cp310"}})
