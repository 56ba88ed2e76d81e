"""etcd's API as far as the controller uses it. Generated from protos/, but for this file."""
