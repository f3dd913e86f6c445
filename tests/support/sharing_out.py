"""Which tests one process of several gets together."""

from __future__ import annotations

import re

from xdist.scheduler import LoadFileScheduling

ON_A_PAGE = re.compile(r"tests/web/.*\[(server|current_server)-")


class ByFilesAndPages(LoadFileScheduling):
    """Whole files; of the web tests, all that share the server and the pages of one front end."""

    def _split_scope(self, nodeid: str) -> str:
        shared = ON_A_PAGE.match(nodeid)
        return shared[1] if shared else super()._split_scope(nodeid)
