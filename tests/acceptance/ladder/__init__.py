"""The crash ladder: every way a task can end, as data, played with real workers, and made into a page.

- ``ending``: what a row is.
- ``in_body``, ``limits``, ``kills``, ``revokes``, ``messages``, ``shutdowns``, ``broker``, ``without``:
  the rows, and how each ending is brought about.
- ``scene``: one row in one pool, played, watched and judged.
- ``figures``: what was measured, written down where ``LADDER_JSON`` names a file.
- ``page``: makes ``docs/endings.md`` of the rows and figures.
"""
