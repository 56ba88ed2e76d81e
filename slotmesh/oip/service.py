"""What a server of the Open Inference Protocol says of itself, over gRPC and HTTP alike."""

from __future__ import annotations

from typing import Final

SERVER_NAME: Final = "slotmesh"
PLATFORM: Final = "slotmesh_python"
BACKEND: Final = "python"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "sequence", "statistics")
"""As Triton names them."""
