"""Monitoring without labels: an alarm when the signals of a classifier change, that stays true for its whole life.

>>> import numpy as np
>>> from cots.watch import Watch
>>> rng = np.random.default_rng(0)
>>> watch = Watch(["brightness"], reference={"brightness": rng.normal(100, 10, 500)})
>>> stream = np.concatenate([rng.normal(100, 10, 2000), rng.normal(110, 10, 200)])
>>> for n, value in enumerate(stream):
...     if alarm := watch.add({"brightness": value}, f"{n}.jpg"):
...         break
>>> alarm.signal, alarm.higher, alarm.since, alarm.at
('brightness', True, 2003, 2082)
>>> [photo.name for photo in alarm.extremes]
['2063.jpg', '2060.jpg', '2012.jpg', '2071.jpg', '2039.jpg']

An alarm shows when to look at the photos, not whether predictions are right: confidence can stay the same while
accuracy falls, and vice versa.
"""

from ._predictions import NO_REFERENCE, SIGNALS, check_frozen, lines, reference_of
from ._signal import Alarm
from ._state import WINDOW, Seen
from ._watch import FALSE_ALARMS, Watch

__all__ = [
    "FALSE_ALARMS", "NO_REFERENCE", "SIGNALS", "WINDOW", "Alarm", "Seen", "Watch", "check_frozen", "lines",
    "reference_of",
]  # fmt: skip
