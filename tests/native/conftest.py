"""The native core, built once."""

from pathlib import Path

import pytest

from tests.support.core import Core, build_core


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_core(tmp_path_factory.mktemp("core"))


@pytest.fixture(params=[0, 1], ids=["plain", "avx2"])
def core(library: Path, request: pytest.FixtureRequest) -> Core:
    """A new scratch, with each kind of instructions."""
    core = Core(library)
    if core.library.tfpipe_use_simd(request.param) < request.param:
        pytest.skip("the processor has no AVX2")
    return core
