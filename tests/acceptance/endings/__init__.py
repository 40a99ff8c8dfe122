"""Every way a task can end, played with real workers: what becomes of its lock, and how soon.

- ``ending``: what a row is.
- ``in_body``, ``limits``, ``kills``, ``revokes``, ``messages``, ``shutdowns``, ``broker``: the rows, and how
  each ending is brought about.
- ``scene``: one row in one pool, played and judged; ``watch``: what was seen meanwhile.
"""
