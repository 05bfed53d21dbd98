"""Attacks on everything that the project reads and writes: ``python -m tests.adversary --minutes=10``.

Each kind of attack makes cases from a seed: mutated configs, mutated files of every kind that is read, names that hold
markup and control characters, and runs that are killed. The judge lets the project read a case and looks whether
anything was executed, taken in silence, printed as a traceback, waited for, or made too large.
"""
