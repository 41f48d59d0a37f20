"""The invariants, by the names of the design, and the auxiliary ones that make them inductive."""

from cutover import CUTOVER
from ownership import OWNERSHIP

INVARIANTS = CUTOVER + OWNERSHIP
INVARIANT = {invariant.name: invariant for invariant in INVARIANTS}
