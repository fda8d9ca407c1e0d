"""Torch-native pieces of a layer, used where Transformer Engine is absent: ``local.Style``."""
