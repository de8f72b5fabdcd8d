"""Packages as a program imports them."""

import importlib
import pkgutil

import tfpipe


def test_every_package_can_be_imported_with_a_star() -> None:
    """`__all__` names nothing that is not there."""
    found = [module.name for module in pkgutil.walk_packages(tfpipe.__path__, "tfpipe.") if module.ispkg]
    assert {"tfpipe.training", "tfpipe.data.runtime", "tfpipe.tools.check"} <= set(found)
    for name in ("tfpipe", *found):
        importlib.import_module(name)
        exec(f"from {name} import *", {})
