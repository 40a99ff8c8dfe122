"""What is in which state in ``broken_system.py``: keys, unless it says otherwise."""

#: Held by a run on a machine that is gone; four calls wait behind it.
DEAD = "account:1"
#: Held by nobody; three calls wait, and belong to a broker without workers.
HEADLESS = "warehouse:north"
#: Queued for half an hour where nobody consumes, in the queue ``reports``; and two more there.
UNCONSUMED = "report:2026-09"
#: It has had its three starts of this hour; three calls wait.
RATE = "mail:post"
#: Waits until no other call comes for an hour; two were merged into it.
DEBOUNCED = "index:toys"
#: Two wait for it, and more may not; two more calls are tried again and again.
FULL = "images"
#: Held by another program, whose value is ``FOREIGN_VALUE``; a call waits behind it.
FOREIGN = "backup"
FOREIGN_VALUE = "nightly.sh on 10.0.0.7 <img src=x onerror=alert('foreign')>"
#: Held by an operator. Taken away by one.
HELD, FORCED = "account:9", "report:2026-12"
#: Three of three hold it; two wait.
PERMITS = "tenant:acme"
#: Accepted, and free, for three days; a call was skipped since, of the second one.
PERIOD, SKIPS = "confirm:8", "confirm:7"

#: Entries of the schedule. Each tick is skipped, as the run of the first goes on.
SKIPPED = "sync-stock"
#: Was sent half an hour ago by a beat that was killed; the one that lives does not know it.
OVERDUE = "invoices"
PAUSED = "newsletter"
#: So many ticks at least have been skipped in a row when the system is there.
IN_A_ROW = 3

#: In which section of the page, of which key or entry, what the row tells, and the command that it ends in.
ON_PAGE = [
    ("needs", DEAD, ("dead holder", r"\b4 wait"), "redislock release --reason TEXT -- account:1"),
    ("needs", HEADLESS, ("still", r"\b3 wait"), f"redislock waiting --drain --home {HEADLESS}"),
    ("needs", FOREIGN, ("foreign lock", r"\b1 wait"), "redislock release --reason TEXT -- backup"),
    ("needs", FULL, ("line is full", r"\b2 wait"), "redislock explain -- images"),
    ("needs", UNCONSUMED, ("queued for long", "reports"), "worker -Q reports"),
    ("needs", SKIPPED, ("schedule", "in a row"), "redislock explain -- shop.sync_stock"),
    ("needs", OVERDUE, ("schedule", "overdue"), "redislock explain -- shop.invoices"),
    ("needs", "warning", ("set-up", "result_expires"), "redislock doctor"),
    ("lines", DEAD, ("late", r"\b4\b", "30 EUR"), ""),
    ("lines", HEADLESS, ("nobody", r"\b3\b"), ""),
    ("lines", FOREIGN, ("foreign", r"\b1\b"), ""),
    ("lines", FULL, ("running", r"\b2\b", "dog.png"), ""),
    ("lines", RATE, ("3 of 3", r"\b3\b"), ""),
    ("lines", DEBOUNCED, ("due in", r"\b1\b", "merged 2"), ""),
    ("lines", PERMITS, ("and 2 others", r"\b2\b", "limit 3"), ""),
    ("held", DEAD, ("running", "late", "20 EUR", "worker-7"), ""),
    ("held", HELD, ("hold", "dispute, ticket 12"), ""),
    ("held", PERIOD, ("period", "2 days"), ""),
    ("schedule", OVERDUE, ("overdue",), ""),
    ("schedule", PAUSED, ("paused", "the provider is down"), ""),
    ("happened", "stock", ("skipped", "shop.sync_stock"), ""),
    ("happened", FULL, ("had to wait", "shop.resize"), ""),
]  # fmt: skip

#: What may be anybody's, and a page must show as text.
HOSTILE = (
    "<script>document.title='xss'</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</title></style></script><b>bold</b>",
    "javascript:alert(1)",
    "&lt;b&gt; &#60;i&#62; &amp;",
    "{{7*7}} ${7*7} %s %(key)s",
    "\u202eright to left \u0007 \x1b[31mred",
    "a" * 300,
)
HOSTILE_TASK = "shop.<script>alert('task')</script>"
HOSTILE_HOST = "<img src=x onerror=alert('host')>"
