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
