"""The part of ``scalebook probe`` that runs on the devices: torch alone, no megatron."""
