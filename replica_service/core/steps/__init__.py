"""What happens to calls at the replica, a step a module: taken in, started, ended, taken back, handed back; slots."""
