"""Turn logs from elsewhere into run directories of the same shape as our own.

``ingestion`` is what the command line calls. ``group`` joins the files of one job, ``log_config``
settles the configuration with where each value comes from, ``rates`` compares the log with itself,
``write`` makes the run directory of ``steps``, and ``job_summary`` describes a job.
"""
