"""The membership streams of replicas and routers."""
