"""What the wheel of ddp::libtorch needs: ddp of the same version, and PyTorch of the minor version that is installed here."""

import importlib.metadata


def dynamic_metadata(settings, project):
    minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    return {"dependencies": [f"ddp=={project['version']}", f"torch=={minor}.*"]}
