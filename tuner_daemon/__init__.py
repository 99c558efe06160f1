"""tunerd: a kernel-tuning daemon for GPU servers."""

__version__ = "0.1.0"
