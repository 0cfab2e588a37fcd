"""Random calls of every op, judged by the oracle and by repetition (`tools/fuzz.py`).

cases      what a call is made of: arrays, their layouts and values, parameters, outputs
adapters   a class a family: which arguments its ops take, what they should give, and its bounds
frameworks how arrays become those of NumPy, torch, a plain DLPack producer or the emulated device
memory     arrays between guard bytes
judge      what is held of a call and of its repeats
campaign   many cases in worker processes, of which each may die
hostile    objects that lie (`tools/fuzz_hostile.py`)
"""
