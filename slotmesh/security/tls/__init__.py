"""TLS: certificates from files, reloaded when they change, and gRPC credentials made of them."""

from slotmesh.security.tls.certificates import BadTls
from slotmesh.security.tls.files import TlsFiles, TlsMaterial
from slotmesh.security.tls.source import TlsSource

__all__ = ["BadTls", "TlsFiles", "TlsMaterial", "TlsSource"]
