"""Run plans: ``sweep.run_plan`` goes through one, ``runner.train`` trains one configuration."""
