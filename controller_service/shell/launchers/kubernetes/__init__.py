"""Replicas as pods of Kubernetes: started here, or by another system and watched."""
