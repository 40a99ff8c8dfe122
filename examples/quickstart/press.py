"""Press the shop's buttons more often than needed, and print what came of each press.

Needs a running worker: docker compose exec worker python press.py
"""

from itertools import pairwise

from shop import charge, sync_account

__all__ = ["main"]

#: Seconds to wait for a task's end.
PATIENCE = 30.0


def main() -> None:
    """Publish duplicates of each task."""
    print("sync_account.delay(42), five times: one is published, the others get its result")
    results = [sync_account.delay(42) for _ in range(5)]
    for result in results:
        print(f"  {result.id}  {'duplicate' if result.is_duplicate else 'published'}")
    print(f"  every result says: {sorted({result.get(timeout=PATIENCE) for result in results})}")

    holder = sync_account.lock_for(42).holder()
    print(f"  its lock after get(): {'free' if holder is None else holder}")

    print("charge.delay(7, ...), three times: all run, one after the other")
    results = [charge.delay(7, amount) for amount in (1, 2, 3)]
    charges = sorted((result.get(timeout=PATIENCE) for result in results), key=lambda one: one["began"])
    for one in charges:
        began, ended = (one[name] - charges[0]["began"] for name in ("began", "ended"))
        print(f"  amount {one['amount']}: {began:.2f} s to {ended:.2f} s")
    overlaps = sum(one["ended"] > after["began"] for one, after in pairwise(charges))
    print(f"  overlaps: {overlaps}")


if __name__ == "__main__":
    main()
