"""What of this machine would spoil a run, and how to mend it: ``gather``, then ``checks``."""
