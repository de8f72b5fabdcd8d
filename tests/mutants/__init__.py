"""Small faults that are put into tfpipe/, one at a time: do the tests find them?"""

from tests.mutants import data, native, order, ranks
from tests.mutants.mutant import Mutant

TABLES: dict[str, tuple[Mutant, ...]] = {
    "order": order.MUTANTS,
    "data": data.MUTANTS,
    "ranks": ranks.MUTANTS,
    "native": native.MUTANTS,
}
"""The faults by the module that holds them."""
