"""Run the same Megatron training configuration on any vendor and report its throughput honestly.

``import scalebook as sb`` gives the verbs of ``scalebook.api``, each loaded at its first use.
"""

from importlib import import_module

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # By its name, so that no module of the package imports the API by importing the package.
    if name == "predict":
        return import_module("scalebook.predict")  # the package, which is the verb as well
    if not name.startswith("_"):
        api = import_module("scalebook.api")
        if name in api.VERBS:
            return getattr(api, name)
    raise AttributeError(f"module 'scalebook' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package with the verbs, which a shell completes."""
    return sorted({*globals(), *import_module("scalebook.api").VERBS})
