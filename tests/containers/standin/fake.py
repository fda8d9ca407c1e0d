"""Put an empty torch, Megatron-Core and Transformer Engine into a virtual environment.

Runs while the stand-in image is made, with that environment's Python.
"""

import site
from pathlib import Path

PACKAGES = {
    "torch": "2.12.0a0+0291f960b6",
    "megatron-core": "0.18.0",
    "transformer-engine": "2.16.0+abc",
}
TORCH = """class cuda:
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
"""

place = Path(site.getsitepackages()[0])
for name, version in PACKAGES.items():
    folder = place / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)
    (folder / "RECORD").write_text("")
    (folder / "INSTALLER").write_text("pip\n")
(place / "torch").mkdir()
(place / "torch" / "__init__.py").write_text(TORCH)
(place / "torch" / "version.py").write_text("cuda = '13.2'\nhip = None\n")
(place / "megatron" / "core").mkdir(parents=True)
