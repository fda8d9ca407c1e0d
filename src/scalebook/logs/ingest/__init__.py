"""Turn logs from elsewhere into run directories of the same shape as our own.

``reader`` reads a file into jobs, ``observe`` and ``supply`` settle the configuration with where
each value comes from, ``check`` holds the log against itself, ``group`` joins the files of one
job, ``write`` makes the run directory; ``run`` is what the command line calls.
"""
