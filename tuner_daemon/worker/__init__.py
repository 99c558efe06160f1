"""The child process that checks and times candidates: ``python -m tuner_daemon.worker``.

It imports numpy and the standard library only (pycuda when it is asked for a CUDA device), so that a child
that a candidate has brought down is replaced in a fraction of a second.
"""
