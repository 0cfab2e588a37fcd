"""Random calls of every op, judged by the oracle and by repetition (`tools/fuzz.py`).

cases      what a call is made of: arrays, their layouts and values, parameters, outputs
calls      draws a call of any op by its signature and roles, values for it, and what is right
frameworks how arrays become NumPy's, torch's, a plain DLPack producer's or the emulated device's
memory     arrays between guard bytes
judge      what is held of a call and of its repeats
campaign   one case and all that is held of it; many of them
processes  workers that run them, each of which may die
hostile    objects that lie (`--kind hostile`)
derivatives second derivatives and tangents (`--kind derivatives`)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))  # its arrays and capsules
