"""Running plans: ``sweep.run_plan`` goes through a plan, ``runner.train`` trains one configuration."""
