"""A stand-in for PyCUDA whose device is absent, or is lost at the moment that DRIVER_STAND_IN names."""

import os

if os.environ["DRIVER_STAND_IN"] == "no library":
    raise ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")
