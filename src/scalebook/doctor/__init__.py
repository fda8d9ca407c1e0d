"""What on this machine would spoil a run, and how to fix it: ``gather``, then ``checks``."""
