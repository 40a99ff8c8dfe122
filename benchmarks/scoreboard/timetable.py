"""The app of ``celery -A benchmarks.scoreboard.timetable beat``: some entries on the schedule it is told.

Its import ends when the scenario lets the beat go: what decides the phase of a
beat is when its entries are made, not how long an interpreter takes to start.
"""

import json
import os
import threading
import time

from celery.schedules import schedule
from celery.signals import beat_init

from benchmarks.scoreboard.beat import BEAT, GO, LOADED, TICKING
from benchmarks.scoreboard.bytheclock import ByTheClock
from benchmarks.scoreboard.libraries import EVERY
from benchmarks.scoreboard.shop import app, journal, periodic
from benchmarks.scoreboard.worker import die_with_the_publisher

__all__ = ["SCHEDULES", "app"]

#: Seconds between two looks whether it may go.
LOOK = 0.01


SCHEDULES = {"interval": schedule(EVERY), "clock": ByTheClock(EVERY)}

_beat = json.loads(os.environ[BEAT])
threading.Thread(target=die_with_the_publisher, args=(_beat["directory"],), daemon=True).start()
app.conf.beat_schedule = {
    f"periodic {number}": {
        "task": periodic.name,
        "schedule": SCHEDULES[_beat["schedule"]],
        "args": (number,),
    }
    for number in range(_beat["entries"])
}
beat_init.connect(lambda **_: journal.note(TICKING + _beat["number"]), weak=False)
journal.note(LOADED + _beat["number"])
while not journal.is_noted(GO + _beat["number"]):
    time.sleep(LOOK)
