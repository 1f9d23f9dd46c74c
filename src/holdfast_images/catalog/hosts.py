"""Which machine has the name of a host, in a store that hosts share."""

from __future__ import annotations

from holdfast_images.catalog.database import CatalogOperations
from holdfast_images.catalog.rows import HostClaim


class HostTables(CatalogOperations):
    """One row for each name that a machine has used."""

    def get_host(self) -> HostClaim | None:
        """Who has the name of this catalog's host; None if nobody has used it yet."""
        return self._one(HostClaim, "get_host")

    def claim_host(self, claim: HostClaim) -> HostClaim:
        """Take the name, if nobody has it; who has it now."""
        return self._written("claim_host", claim)

    def adopt_host(self, claim: HostClaim) -> HostClaim:
        """Take the name, whoever has it. An operator's decision: what the other has made is then in nobody's rows."""
        return self._written("adopt_host", claim)

    def _written(self, statement: str, claim: HostClaim) -> HostClaim:
        with self._writing(None) as session:
            session.run(statement, machine=claim.machine, data_id=claim.data_id, directory=claim.directory)
            return session.select(HostClaim, "get_host")[0]
